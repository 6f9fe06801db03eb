"""Which producers are gone, with values only."""

from __future__ import annotations

from forwardpass.trace.stale import SegmentState, StaleProducer, beyond, stale_producers


def state(producer: str, written: int, index: int = 0, size: int = 10, held: bool = False) -> SegmentState:
    """Return one segment."""
    return SegmentState(f"/d/fpm.{producer}.{index:06d}.jsonl.gz", producer, size, written, held)


def test_a_producer_is_stale_as_a_whole() -> None:
    """D-27: a producer is gone only if all its files are old; one young file keeps them all."""
    segments = [state("1", 100), state("1", 900, 1), state("2", 200), state("2", 300, 1, 20)]

    assert stale_producers(segments, 500) == [
        StaleProducer("2", ("/d/fpm.2.000000.jsonl.gz", "/d/fpm.2.000001.jsonl.gz"), 30, 300)
    ]


def test_an_open_file_keeps_its_producer() -> None:
    """TRACE-46: a producer one of whose files is open somewhere is not gone, however old they are."""
    assert stale_producers([state("1", 1), state("1", 2, 1, held=True)], 500) == []


def test_the_longest_silent_comes_first() -> None:
    """Producers are listed by when they wrote last; the limit itself is not old enough."""
    segments = [state("a", 3), state("b", 1), state("c", 5)]

    assert [stale.producer for stale in stale_producers(segments, 5)] == ["b", "a"]


def test_nothing_is_nothing() -> None:
    """No segments, no producers."""
    assert stale_producers([], 1) == []


def test_a_limit_takes_the_longest_silent_first() -> None:
    """D-27: As many go as must, in order, by number or by size, whichever asks for more; live ones count."""
    segments = [state("a", 1, size=5), state("b", 2, size=50), state("c", 3, size=5), state("live", 900)]
    stale = stale_producers(segments, 500)

    assert [each.producer for each in beyond(stale, segments)] == ["a", "b", "c"]
    assert [each.producer for each in beyond(stale, segments, producers=3)] == ["a"]
    assert [each.producer for each in beyond(stale, segments, size=65)] == ["a"]
    assert [each.producer for each in beyond(stale, segments, producers=3, size=64)] == ["a", "b"]
    assert beyond(stale, segments, producers=4, size=70) == []
    assert [each.producer for each in beyond(stale, segments, size=0)] == ["a", "b", "c"]

"""Request generators."""

from itertools import islice

import pytest

from forwardpass.engines.mock.load import Lengths, Load, arrivals, realistic
from forwardpass.errors import ConfigError

SHORT = Lengths(10)


def first(load: Load, count: int, seed: str = "s") -> list:
    return list(islice(arrivals(load, seed), count))


def test_the_same_seed_gives_the_same_requests_and_another_seed_others():
    """A load is a function of its description and its seed."""
    load = realistic(10.0)

    assert first(load, 200) == first(load, 200)
    assert first(load, 200) != first(load, 200, "other")


def test_arrivals_are_in_order_of_time():
    """Bursts and the steady stream are merged."""
    times = [arrival.at_seconds for arrival in first(realistic(10.0), 500)]

    assert times == sorted(times)


def test_the_rate_is_met_in_the_mean():
    """4,000 arrivals at 50 a second take 80 s, to within three standard deviations of a Poisson process."""
    load = Load(50.0, SHORT, SHORT)

    assert first(load, 4000)[-1].at_seconds == pytest.approx(80.0, rel=3 / 4000**0.5)


def test_bursts_bring_their_requests_almost_at_once():
    """Without a steady stream the requests stand in groups in the middle of each interval."""
    load = Load(0.0, SHORT, SHORT, burst_size=5, burst_every_seconds=10.0)
    times = [arrival.at_seconds for arrival in first(load, 10)]

    assert all(5.0 <= at < 5.5 for at in times[:5])
    assert all(15.0 <= at < 15.5 for at in times[5:])


def test_a_late_start_shifts_every_arrival():
    """The delay moves the load as a whole and changes nothing else about it."""
    now, later = first(realistic(9.0), 50), first(realistic(9.0, start_seconds=2.5), 50)

    assert [a._replace(at_seconds=a.at_seconds + 2.5) for a in now] == later


def test_the_limit_ends_the_load_and_no_rate_means_none():
    """A finite load ends; an empty one has no requests."""
    assert len(first(Load(5.0, SHORT, SHORT, limit=7), 100)) == 7
    assert first(Load(0.0, SHORT, SHORT), 100) == first(realistic(0.0), 100) == []


def test_shared_prefixes_are_part_of_the_prompt():
    """A request with a prefix is longer by it, and names which one it is."""
    load = Load(5.0, SHORT, SHORT, prefixes=(100, 200), prefix_share=1.0)
    seen = {(a.prefix_id, a.prefix_tokens, a.prompt_tokens) for a in first(load, 100)}

    assert seen == {(0, 100, 110), (1, 200, 210)}


def test_lengths_are_cut_at_both_ends():
    """No draw leaves the bounds, however wide the distribution."""
    lengths = Lengths(50, 3.0, low=20, high=60)
    drawn = {a.prompt_tokens for a in first(Load(5.0, lengths, SHORT), 300)}

    assert min(drawn) == 20
    assert max(drawn) == 60


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lengths(0, low=0),
        lambda: Lengths(10, low=11),
        lambda: Lengths(10, high=9),
        lambda: Lengths(10, -0.1),
        lambda: Load(-1.0, SHORT, SHORT),
        lambda: Load(float("inf"), SHORT, SHORT),
        lambda: Load(1.0, SHORT, SHORT, prefix_share=1.1),
        lambda: Load(1.0, SHORT, SHORT, start_seconds=float("inf")),
        lambda: Load(1.0, SHORT, SHORT, burst_size=1, burst_every_seconds=0.0),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(make):
    """A load that could not be generated is a configuration error."""
    with pytest.raises(ConfigError):
        make()

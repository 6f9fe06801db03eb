"""Many traces as one: in the order of time, and each message once."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forwardpass.cli.main import Exit
from forwardpass.cli.trace import trace
from forwardpass.errors import TracePathError
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace import merge
from forwardpass.trace.merge import FAN_IN, SAME_MS, MergeCounts, merge_traces
from forwardpass.trace.report import Problem

BEGIN = 1_796_042_065_000


def row(counter: int, at: int, producer: str = "1", *, worker: str = "w", rank: int = 0) -> bytes:
    """Return a row that was observed ``at`` milliseconds after the beginning."""
    return trace_line(
        counter, worker_id=worker, dp_rank=rank, producer_id=producer, observed_at_unix_ms=BEGIN + at
    )


def write(folder: Path, producer: str, rows: list[bytes], index: int = 0) -> Path:
    """Write rows as a segment."""
    folder.mkdir(exist_ok=True)
    path = folder / f"fpm.{producer}.{index:06d}.jsonl.gz"
    path.write_bytes(gzip_member(rows))
    return path


def merged(*paths: Path, counts: MergeCounts | None = None) -> list[bytes]:
    """Return the lines of a merge in which nothing is wrong."""
    problems: list[Problem] = []
    lines = [record.line for record in merge_traces(list(paths), on_problem=problems.append, counts=counts)]
    assert problems == []
    return lines


def message(line: bytes) -> str:
    """Return what makes a message the same one."""
    return json.dumps(json.loads(line)["event"]["fpm"])


def test_rows_of_all_producers_stand_in_the_order_of_time(tmp_path: Path) -> None:
    """TRACE-68: Whoever wrote them and in which segment, rows come as they were observed."""
    mine = [row(number, 20 * number, "1") for number in range(50)]
    other = [row(number, 7 + 30 * number, "2", worker="v") for number in range(50)]
    write(tmp_path, "1", mine[:20])
    write(tmp_path, "1", mine[20:], 1)
    write(tmp_path, "2", other)
    counts = MergeCounts()

    assert merged(tmp_path, counts=counts) == sorted(
        [*mine, *other], key=lambda line: json.loads(line)["event"]["observed_at_unix_ms"]
    )
    assert (counts.rows, counts.duplicates, counts.late) == (100, 0, 0)


def test_a_message_that_two_recorders_saw_is_there_once(tmp_path: Path) -> None:
    """TRACE-68: The same payload, seen a little later by another recorder; the first one's row is given."""
    mine = [row(number, 20 * number, "1") for number in range(9)]
    other = [row(number, 3 + 20 * number, "2") for number in range(4, 12)]
    write(tmp_path, "1", mine)
    write(tmp_path, "2", other)
    counts = MergeCounts()

    assert merged(tmp_path, counts=counts) == [*mine, *other[5:]]
    assert counts.duplicates == 5


def test_a_copy_adds_nothing(tmp_path: Path) -> None:
    """TRACE-68: The same producer's files from two places are the same rows."""
    rows = [row(number, 20 * number) for number in range(9)]
    write(tmp_path / "a", "1", rows)
    write(tmp_path / "b", "1", rows)

    assert merged(tmp_path / "a", tmp_path / "b") == rows


def test_what_happened_twice_is_there_twice(tmp_path: Path) -> None:
    """TRACE-68: A publisher that begins again repeats its first message, and a recorder saw both."""
    both = [row(0, 0), row(1, 20), row(0, 500), row(1, 520)]
    one = [row(0, 502, "2"), row(1, 522, "2")]
    write(tmp_path, "1", both)
    write(tmp_path, "2", one)

    assert [message(line) for line in merged(tmp_path)] == [message(line) for line in both]


def test_the_same_counter_much_later_is_another_message(tmp_path: Path) -> None:
    """TRACE-68: Beyond the window nothing is the same."""
    write(tmp_path, "1", [row(0, 0)])
    write(tmp_path, "2", [row(0, SAME_MS + 1, "2")])

    assert len(merged(tmp_path)) == 2


def test_rows_of_sampled_mode_are_put_in_order(tmp_path: Path) -> None:
    """TRACE-68: At an interval's end ranks are written one after the other, not as they were observed."""
    rng = random.Random(1)
    rows = [
        row(interval, 5000 * interval + rng.randrange(5000), rank=rank)
        for interval in range(20)
        for rank in range(16)
    ]
    write(tmp_path, "1", rows)
    times = [json.loads(line)["event"]["observed_at_unix_ms"] for line in merged(tmp_path)]

    assert times == sorted(times)
    assert len(times) == len(rows)


def test_rows_too_far_from_their_place_are_given_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACE-68: Nothing is lost for being late (a clock that was set back by an hour)."""
    monkeypatch.setattr(merge, "REORDER_ROWS", 4)
    rows = [row(number, 20 * number) for number in range(10)] + [row(10, -3_600_000)]
    write(tmp_path, "1", rows)
    counts = MergeCounts()

    assert sorted(merged(tmp_path, counts=counts)) == sorted(rows)
    assert counts.late == 1


@pytest.mark.parametrize("seed", range(4))
def test_any_traces_give_what_a_slow_merge_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """TRACE-68: More producers than are read at a time, with losses, restarts and common messages: in order,
    and each message as often as the producer that has it most often.
    """
    rng = random.Random(seed)
    monkeypatch.setattr(merge, "FAN_IN", 3)
    sent = [
        (worker, counter, 40 * counter + life * 900)
        for worker in "abc"
        for life in range(3)
        for counter in range(20)
    ]
    sent.sort(key=lambda each: each[2])
    most: Counter[str] = Counter()
    for producer in range(14):
        seen = [
            row(counter, at + rng.randrange(5), str(producer), worker=worker)
            for worker, counter, at in sent
            if rng.random() < 0.5
        ]
        write(tmp_path, str(producer), seen)
        most |= Counter(map(message, seen))
    lines = merged(tmp_path)
    times = [json.loads(line)["event"]["observed_at_unix_ms"] for line in lines]

    assert Counter(map(message, lines)) == most
    assert times == sorted(times)


def test_more_producers_than_are_read_at_a_time(tmp_path: Path) -> None:
    """TRACE-68: Fifty and more producers leave nothing behind in the folder for temporary files."""
    for producer in range(FAN_IN + 20):
        write(
            tmp_path,
            str(producer),
            [row(n, 20 * n + producer, str(producer), worker=str(producer)) for n in range(3)],
        )
    spill = tmp_path / "spill"
    spill.mkdir()
    rows = merge_traces(tmp_path, on_problem=print, temporary_folder=spill)
    first = next(rows)
    during = list(spill.iterdir())
    rest = list(rows)

    assert first.source.producer_id == "0"
    assert len(rest) == 3 * (FAN_IN + 20) - 1
    assert during != []
    assert list(spill.iterdir()) == []


def run(*arguments: str | Path) -> Result:
    """Run ``forwardpass trace merge``."""
    return CliRunner().invoke(
        trace, ["merge", *map(str, arguments)], standalone_mode=False, catch_exceptions=False
    )


def test_the_command_prints_rows_or_writes_a_file(tmp_path: Path) -> None:
    """TRACE-68: Lines on stdout, or a new gzip file that every reader takes; words on stderr."""
    write(tmp_path, "1", [row(0, 0), row(1, 20)])
    write(tmp_path, "2", [row(1, 21, "2"), row(2, 40, "2")])
    printed = run(tmp_path)
    written = run(tmp_path, "-o", tmp_path / "all.jsonl.gz", "--since", str(BEGIN + 10))

    assert printed.stdout.encode() == b"\n".join([row(0, 0), row(1, 20), row(2, 40, "2"), b""])
    assert printed.stderr == "3 rows; 1 row of the same messages left out\n"
    assert (printed.return_value, written.stdout) == (Exit.DONE, "")
    assert written.stderr == "2 rows; 1 row of the same messages left out\n"
    assert gzip.decompress((tmp_path / "all.jsonl.gz").read_bytes()).splitlines() == [
        row(1, 20), row(2, 40, "2"),
    ]  # fmt: skip


def test_damage_is_told_and_what_is_there_stays(tmp_path: Path) -> None:
    """TRACE-66, TRACE-68: Exit code 4 for bytes that could not be used; a file that exists is not touched."""
    path = write(tmp_path, "1", [row(0, 0)])
    path.write_bytes(path.read_bytes() + b"garbage")
    target = tmp_path / "all.jsonl.gz"
    target.write_bytes(b"mine")
    result = run(path)

    assert result.return_value == Exit.PARTIAL
    assert "no gzip member" in result.stderr
    with pytest.raises(TracePathError, match="is there already"):
        run(path, "-o", target)
    assert target.read_bytes() == b"mine"


def collected(counter: int, at: int, publisher: int, sequence: int, *, worker: str = "w") -> bytes:
    """Return the row that a collector makes of a message."""
    document = json.loads(row(counter, at, str(publisher), worker=worker))
    document["event"]["message_id"] = {"publisher_id": publisher, "sequence": sequence}
    return json.dumps(document, separators=(",", ":")).encode()


def test_a_message_that_two_collectors_wrote_is_one(tmp_path: Path) -> None:
    """COLLECT-05: However far apart, the second row of a message is left out, in merges of any size."""
    for number in range(FAN_IN + 8):
        rows = [collected(each, 20 * each, 7, each) for each in range(number, number + 2)]
        write(tmp_path, f"c{number}", [*rows, collected(0, 10 * SAME_MS, 7, 0)])
    counts = MergeCounts()
    lines = merged(tmp_path, counts=counts)
    sequences = [json.loads(each)["event"]["message_id"]["sequence"] for each in lines]

    assert Counter(sequences) == Counter(range(FAN_IN + 9))
    assert counts.rows + counts.duplicates == 3 * (FAN_IN + 8)


def test_messages_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    """COLLECT-05: Two messages with the same content are two, whichever collectors wrote them."""
    write(tmp_path, "a", [collected(0, 0, 1, 0)])
    write(tmp_path, "b", [collected(0, 5, 2, 0)])

    assert len(merged(tmp_path)) == 2


def test_a_collected_row_and_a_recorded_one_are_the_same_message(tmp_path: Path) -> None:
    """COLLECT-05, TRACE-68: What an engine's own trace has as well is there once."""
    write(tmp_path, "1", [row(number, 20 * number) for number in range(10)])
    write(tmp_path, "a", [collected(number, 20 * number + 3, 9, number) for number in range(10)])

    assert len(merged(tmp_path)) == 10

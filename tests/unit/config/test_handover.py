"""What one process tells those it starts, through their environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwardpass.config.handover import (
    RecorderMark,
    draw_id,
    parse_mark,
    process_start,
    said_with,
    was_said,
)
from forwardpass.wire.keys import MAX_PRODUCER_ID

MARK = RecorderMark(4711, 99, 20380, 2, 3, "123")


def proc_with(folder: Path, pid: int, state: str, started: int) -> Path:
    """Return a folder like /proc with one process, whose name is made to confuse."""
    (folder / str(pid)).mkdir(parents=True)
    fields = [state, *["0"] * 18, str(started), "0"]
    (folder / str(pid) / "stat").write_text(f"{pid} (a) S (b) {' '.join(fields)}\n")
    return folder


@pytest.mark.parametrize("worker_id", ["123", "", "host:1"])
def test_a_mark_survives_its_variable(worker_id: str) -> None:
    """The text of a mark gives the same mark, whatever the worker id holds."""
    mark = RecorderMark(1, 2, 20380, 0, 4, worker_id)

    assert parse_mark(mark.text) == mark


@pytest.mark.parametrize("text", [None, "", "1:2:3", "a:2:3:4:5:6", "1:2:3:4:5"])
def test_other_texts_are_no_marks(text: str | None) -> None:
    """What is no mark means that nobody records, and stops nothing."""
    assert parse_mark(text) is None


@pytest.mark.parametrize(
    ("base_port", "ranks", "covered"),
    [
        (20380, range(2, 5), True),
        (20380, range(3, 4), True),
        (20380, range(1, 3), False),
        (20380, range(4, 6), False),
        (20381, range(2, 5), False),
    ],
)
def test_a_mark_covers_its_own_streams(base_port: int, ranks: range, covered: bool) -> None:
    """ENG-45: A recorder stands for its own ranks at its own base port, and for no other engine's."""
    assert MARK.covers(base_port, ranks) is covered


@pytest.mark.parametrize(
    ("pid", "state", "started", "alive"),
    [(4711, "S", 99, True), (4711, "S", 100, False), (4711, "Z", 99, False), (4712, "S", 99, False)],
)
def test_a_stale_mark_does_not_count(tmp_path: Path, pid: int, state: str, started: int, alive: bool) -> None:
    """ENG-45: A mark counts while that very process runs: not a later one of its number, nor a zombie."""
    assert MARK.is_alive(proc_with(tmp_path, pid, state, started)) is alive


def test_what_the_kernel_does_not_say_is_no_start(tmp_path: Path) -> None:
    """A file of another form means that the process is not known."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (x) S 1 2")

    assert process_start(7, tmp_path) is None


def test_what_was_said_is_remembered_beside_the_rest() -> None:
    """Each text is remembered by itself, in any number."""
    said = said_with("b", said_with("a", None))

    assert (was_said("a", said), was_said("b", said), was_said("c", said)) == (True, True, False)
    assert not was_said("a", None)


def test_ids_fit_into_53_bits() -> None:
    """D-29: A drawn id is a decimal number from 1 to 2**53 - 1, and another one each time."""
    ids = {draw_id() for _ in range(100)}

    assert len(ids) == 100
    assert all(0 < int(one) <= MAX_PRODUCER_ID for one in ids)

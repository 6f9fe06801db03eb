"""Knows that nothing planted at a name that can be foreseen is written through, into or over (LOSS-14)."""

from __future__ import annotations

import os
import random
from pathlib import Path

from forwardpass.errors import TracePathError
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.sink import TraceSink
from torture.rows import PRODUCER, SOURCE, counters_in, payload, read, settings
from torture.run import Run

__all__ = ["check_planted"]

THROUGH = (
    "LOSS-14: a link, folder, pipe or file at a segment's or probe's name is neither followed nor changed"
)
ON = "LOSS-14: recording goes on beside it, at a name that is free"
LAST = "LOSS-14: where the last number is taken the trace is off, with one error, and nothing is written"


def check_planted(run: Run) -> None:
    """Plant things at names that the product will use, before and while it works."""
    rounds = run.times(12, 500)
    for number in range(rounds):
        _plant_and_record(run, number)
    _last_number(run)
    run.facts["folders with planted names"] = f"{rounds:,}"


def _plant(dice: random.Random, path: Path, outside: Path) -> None:
    kind = dice.randrange(6)
    if kind == 0:
        path.symlink_to(outside / "target")
    elif kind == 1:
        path.symlink_to(outside / "missing")
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        os.link(outside / "target", path)
    else:
        path.write_text("keep")


def _plant_and_record(run: Run, number: int) -> None:
    folder, outside, dice = run.sub(f"planted{number}"), run.sub(f"outside{number}"), run.dice
    (outside / "target").write_text("keep")
    for index in range(dice.randint(1, 5)):
        _plant(dice, folder / f".fpm.write-probe-{os.getpid()}-{index}", outside)
    for index in range(dice.randint(0, 5)):
        _plant(dice, folder / f"fpm.77.{index:06d}.jsonl.gz", outside)
    planted = {path: _look(path) for path in folder.iterdir()}

    def race(path: str) -> SegmentFile:
        """Somebody is quicker by a moment, now and then."""
        if dice.random() < 0.4 and not os.path.lexists(path):
            _plant(dice, Path(path), outside)
            planted[Path(path)] = _look(Path(path))
        return SegmentFile(path)

    # More than is ever planted, because planted files count as segments and would be pruned as such.
    sink = TraceSink(settings(folder, roll_bytes=3_000, max_segments=1000), PRODUCER, create_file=race)
    sink.start()
    sink.offer_many(SOURCE, [payload(n) for n in range(40)])
    sink.close(30.0)
    changed = [path.name for path, was in planted.items() if _look(path) != was]
    target = (outside / "target").read_bytes() == b"keep" and not (outside / "missing").exists()
    run.note(THROUGH, not changed and target, f"{changed}, target kept: {target}")
    own = [path for path in folder.glob("fpm.77.*.jsonl.gz") if path not in planted]
    run.note(ON, sink.counts().written == 40 and _rows_of(own) == list(range(40)), sink.counts())


def _look(path: Path) -> tuple[int, int, str]:
    stat = path.lstat()
    text = os.readlink(path) if path.is_symlink() else (path.read_text("latin-1") if path.is_file() else "")
    return stat.st_ino, stat.st_mode, text


def _rows_of(paths: list[Path]) -> list[int]:
    return read(sorted(paths)).counters.get(0, []) if paths else []


def _last_number(run: Run) -> None:
    folder = run.sub("last")
    (folder / f"fpm.77.{2**64 - 1}.jsonl.gz").write_text("")
    sink = TraceSink(settings(folder), PRODUCER)
    try:
        sink.start()
    except TracePathError:
        off = True
    else:
        off = False
    sink.offer(SOURCE, payload(0))
    sink.close(30.0)
    run.note(LAST, off and len(list(folder.iterdir())) == 1, counters_in(folder))

"""The folder through which a launcher, the server's processes and the ranks of a benchmark talk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from forwardpass.bench.handover import Handover, Order, Outcome, RankProgress, Verdict
from forwardpass.bench.runlog import RunLog
from forwardpass.config.handover import BENCH_FOLDER
from forwardpass.engines.vllm.bench_line import LauncherLine
from forwardpass.errors import BenchError


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return 0


def test_a_process_without_the_variable_measures_nothing(tmp_path: Path) -> None:
    """BVLLM-40: Only who was started by a launcher of ours looks for a folder."""
    found = Handover.of({BENCH_FOLDER: str(tmp_path)})

    assert Handover.of({}) is None
    assert Handover.of({BENCH_FOLDER: ""}) is None
    assert found is not None
    assert found.folder == tmp_path


def test_an_order_holds_until_the_end(tmp_path: Path) -> None:
    """BVLLM-40: Who comes after the end finds nothing to do; a folder without an order is an error."""
    handover = Handover(tmp_path)
    with pytest.raises(BenchError, match="has no order"):
        handover.order()
    handover.give(Order({"mode": "agg"}))

    assert handover.order() == Order({"mode": "agg"})
    handover.conclude(Outcome(Verdict.PARTIAL, serving=True, points=3), b"{}")
    assert handover.order() is None
    assert handover.outcome() == Outcome(Verdict.PARTIAL, serving=True, points=3)
    assert handover.served() == b"{}"


def test_one_of_many_leads(tmp_path: Path) -> None:
    """BVLLM-42: However many ask at once, one is told that it leads."""
    handover, answers = Handover(tmp_path), []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        answers.append(handover.lead())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == [False] * 7 + [True]
    assert handover.led


def test_progress_is_what_ranks_said_last(tmp_path: Path) -> None:
    """Each rank has a place of its own; what else lies there is passed over, and no folder is no error."""
    handover = Handover(tmp_path)
    handover.report(0, RankProgress(1, 9))
    handover.report(0, RankProgress(2, 9, "a point"))
    handover.report(11, RankProgress(1, 9))
    (tmp_path / "progress.3.tmp").write_text("half")
    Handover(tmp_path / "gone").report(0, RankProgress(1, 9))

    assert handover.progress() == {0: RankProgress(2, 9, "a point"), 11: RankProgress(1, 9)}


def test_a_rank_begins_when_somebody_waits(tmp_path: Path) -> None:
    """BVLLM-42: Until a server leads it does not begin; on a node without a server it does at once."""
    handover, log, clock = Handover(tmp_path), RunLog(), Clock()
    line = LauncherLine(handover, log, clock, await_server=True)

    assert LauncherLine(handover, log, clock, await_server=False).awaited()
    assert not line.awaited()
    handover.lead()
    assert line.awaited()


def test_a_rank_looks_up_now_and_then(tmp_path: Path) -> None:
    """BVLLM-46: It hears that it is to end at its next look, which is a fifth of a second away."""
    handover, clock = Handover(tmp_path), Clock()
    line = LauncherLine(handover, RunLog(), clock, await_server=False)

    assert not line.exchange()
    handover.ask_to_stop()
    assert not line.exchange()
    clock.now += 0.25
    assert line.exchange()
    assert handover.progress() == {0: RankProgress(0, 0)}

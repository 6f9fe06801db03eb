"""What a benchmark's place in a scheduler does when the benchmark ends by its own rules, with and without a
launcher.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_shapes import Output

from forwardpass.bench.handover import Handover
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.session import Delegate, Ticket
from forwardpass.clock import SystemClock
from forwardpass.engines.vllm.bench_hook import BenchHook
from forwardpass.engines.vllm.bench_line import LauncherLine
from forwardpass.errors import BenchError, EngineError
from forwardpass.wire.schema import QueuedRequestMetrics

EMPTY = Output({})


class Failing:
    """A session that fails where it is told to, as a real one does: it is inactive from then on."""

    def __init__(self, where: str, error: Exception) -> None:
        self.active, self.timing = True, False
        self._where, self._error = where, error
        self.outputs: list[Ticket] = []

    def on_schedule(self) -> Delegate:
        self._fail("schedule")
        return Delegate()

    def on_scheduled(self, summary: Any) -> Ticket:
        self._fail("scheduled")
        return Ticket(0.0, None)

    def on_output(self, ticket: Ticket, *rest: Any) -> None:
        self.outputs.append(ticket)

    def _fail(self, here: str) -> None:
        if here == self._where:
            self.active = False
            raise self._error


def hook(session: Failing, folder: Path | None, ends: list[str]) -> BenchHook:
    """Return a hook; with a ``folder`` it has a launcher."""
    line = None
    if folder is not None:
        line = LauncherLine(Handover(folder), RunLog(), SystemClock(), await_server=False)
    return BenchHook(
        None,
        session,  # type: ignore[arg-type]
        SystemClock(),
        worker_id="7",
        dp_rank=0,
        waiting=QueuedRequestMetrics,
        on_end=lambda: ends.append("end"),
        line=line,
    )


@pytest.mark.parametrize("where", ["schedule", "scheduled"])
def test_an_error_of_the_benchmark_is_left_to_the_launcher(where: str, tmp_path: Path) -> None:
    """BVLLM-22: The engine goes on with what it was about to run, which is no sample of anybody's."""
    ends: list[str] = []
    session = Failing(where, BenchError("it was too hot"))
    bench = hook(session, tmp_path, ends)

    output = bench.schedule(lambda: EMPTY)

    assert output is EMPTY
    assert ends == ["end"]
    assert not bench.active
    if where == "scheduled":  # it was the benchmark's, so its output comes back here
        assert bench.scheduled(output)
        bench.update(output, SimpleNamespace(cudagraph_stats=None), lambda: None)
        assert [ticket.current for ticket in session.outputs] == [None]
    assert not bench.scheduled(output)


@pytest.mark.parametrize("where", ["schedule", "scheduled"])
def test_without_a_launcher_it_ends_the_engine(where: str) -> None:
    """BVLLM-22: After the file was written."""
    ends: list[str] = []

    with pytest.raises(BenchError, match="too hot"):
        hook(Failing(where, BenchError("it was too hot")), None, ends).schedule(lambda: EMPTY)

    assert ends == ["end"]


def test_an_error_of_the_engine_ends_it_in_any_case(tmp_path: Path) -> None:
    """BVLLM-22: What is not the benchmark's own is not survived."""
    with pytest.raises(EngineError, match="blocks"):
        hook(Failing("schedule", EngineError("blocks are gone")), tmp_path, []).schedule(lambda: EMPTY)

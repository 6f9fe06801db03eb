"""When a sink writes the lines of its ledger while nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_files import PRODUCER, payload, trace_settings

from forwardpass.testing.clock import ManualClock
from forwardpass.trace.ledger_book import CALM_SECONDS
from forwardpass.trace.record import TraceSource
from forwardpass.trace.sink import TraceSink

SOURCE = TraceSource("dynamo", "backend", PRODUCER)
TICK_SECONDS = 0.2
MINUTES_OF_TICKS = 600  # two of them
ROWS_A_TICK = 3


class CalmRecorder:
    """A sink whose thread is this one: each turn rows may come, a tick's time passes, and none is lost."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self._folder = folder
        self._task = TraceSink(trace_settings(folder), PRODUCER, clock=self.clock)._task
        self._task.open()
        self._sent = 0

    def turn(self, rows: int) -> None:
        """Do what the pump's thread does, ``TICK_SECONDS`` later."""
        self.clock.advance(TICK_SECONDS)
        self._task.tick(self.clock.monotonic(), rows)
        if rows:
            counters = range(self._sent, self._sent + rows)
            self._task.take([(SOURCE, self.clock.unix_ms(), payload(counter)) for counter in counters])
            self._sent += rows

    def close(self) -> None:
        """End the recording."""
        self._task.close(self.clock.monotonic())

    def lines(self) -> list[dict[str, Any]]:
        """Return the ledger's lines so far."""
        (path,) = self._folder.glob("*.ledger")
        return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[CalmRecorder]:
    """A recorder that has just begun."""
    recorder = CalmRecorder(tmp_path)
    yield recorder
    recorder.close()


def lengths(lines: list[dict[str, Any]]) -> list[float]:
    """Return how many seconds each line covers."""
    return [(line["to_unix_ms"] - line["from_unix_ms"]) / 1000 for line in lines]


def test_an_all_clear_comes_every_half_minute_in_which_rows_are_written(recorder: CalmRecorder) -> None:
    """LEDGER-02: a calm recorder writes a line with its first flush and then one for each 30 seconds."""
    for _ in range(MINUTES_OF_TICKS):
        recorder.turn(ROWS_A_TICK)
    first, *calm = recorder.lines()

    assert lengths([first])[0] < CALM_SECONDS / 10
    assert lengths(calm) == pytest.approx([CALM_SECONDS] * 3, abs=2 * TICK_SECONDS)
    assert [line["streams"][0].get("missing", 0) for line in calm] == [0, 0, 0]
    assert [line["from_unix_ms"] for line in calm] == [line["to_unix_ms"] for line in (first, *calm)][:-1]


def test_lines_account_for_every_row_that_was_written(recorder: CalmRecorder) -> None:
    """LEDGER-02, LEDGER-03: the lines of a calm recording, its last one too, hold each written row once."""
    for _ in range(MINUTES_OF_TICKS):
        recorder.turn(ROWS_A_TICK)
    recorder.close()
    lines = recorder.lines()

    assert sum(line["streams"][0]["written"] for line in lines) == MINUTES_OF_TICKS * ROWS_A_TICK
    assert [line.get("closed", False) for line in lines] == [False] * (len(lines) - 1) + [True]


def test_a_silence_has_no_line(recorder: CalmRecorder) -> None:
    """LEDGER-02: where no row is written no line is, and the rows after a long silence have one at once."""
    recorder.turn(ROWS_A_TICK)
    for _ in range(MINUTES_OF_TICKS):
        recorder.turn(0)
    silent = len(recorder.lines())
    recorder.turn(ROWS_A_TICK)
    for _ in range(round(2 / TICK_SECONDS)):
        recorder.turn(0)

    assert (silent, len(recorder.lines())) == (1, 2)
    assert lengths(recorder.lines())[1] > MINUTES_OF_TICKS * TICK_SECONDS

"""How the progress of a benchmark is shown where there is no terminal."""

from __future__ import annotations

import pytest

from forwardpass.cli.bench_progress import BenchProgress


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def unix_ms(self) -> int:
        return 0


def test_a_line_now_and_then_for_the_slowest_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """Every ten seconds; the slowest of all ranks counts, whatever their numbers, and one not heard of is at
    0.
    """
    clock = Clock()
    with BenchProgress(2, lines=True, clock=clock) as bar:
        bar.take(3, 0, 0)
        bar.take(3, 4, 1000)
        bar.take(4, 3, 1000, "decode, batch 2")
        clock.now += 11
        bar.take(4, 3, 1000, "decode, batch 2")

    assert capsys.readouterr().err.splitlines() == [
        "self-benchmark: 0 of 1,000 points",
        "self-benchmark: 3 of 1,000 points, decode, batch 2",
    ]


@pytest.mark.parametrize(("quiet", "lines"), [(True, True), (False, False)])
def test_quiet_is_quiet(quiet: bool, lines: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said where nothing was asked for."""
    with BenchProgress(1, quiet=quiet, lines=lines) as bar:
        bar.take(0, 1, 2)

    assert capsys.readouterr().err == ""

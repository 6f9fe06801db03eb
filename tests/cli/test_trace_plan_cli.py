"""``forwardpass trace plan``: what a trace will take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forwardpass.cli.trace import trace
from forwardpass.config.variables import TABLE
from forwardpass.errors import ConfigError
from forwardpass.testing.traces import gzip_member, trace_line

CLEAN = dict.fromkeys((variable.name for variable in TABLE), None)


def plan(*arguments: str | Path, **environment: str) -> dict[str, Any]:
    """Return the command's JSON."""
    result = CliRunner().invoke(
        trace,
        ["plan", "--json", *map(str, arguments)],
        env={**CLEAN, **environment},
        standalone_mode=False,
        catch_exceptions=False,
    )
    if result.exception:
        raise result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_one_rank_at_the_default_interval() -> None:
    """One rank that always does something writes 17,280 rows a day in sampled mode; of 600 bytes, 10.4 MB."""
    found = plan("--row-bytes", "600")

    assert found["each"]["rows_per_second"] * 86_400 == pytest.approx(17_280)
    assert found["text_bytes_per_day"] == pytest.approx(10.368e6)


def test_full_mode_at_ten_passes_a_second() -> None:
    """The same row ten times a second is 518 MB a day."""
    assert plan("--mode", "full", "--rate", "10", "--row-bytes", "600")["text_bytes_per_day"] == (
        pytest.approx(518.4e6)
    )


def test_a_rank_that_passes_seldom_is_sampled_seldom() -> None:
    """Sampled mode never writes more than there is."""
    assert plan("--rate", "0.01", "--ranks", "4")["each"]["rows_per_second"] == pytest.approx(0.04)


def test_the_segments_that_keep_a_day() -> None:
    """The formula's 1 + seconds * rows * bytes / segment, for every producer; the variables' limits count."""
    found = plan(
        "--mode", "full", "--rate", "50", "--ranks", "8", "--keep", "1d", "--producers", "3", "--ratio", "10",
        DYN_FPM_JSONL_GZ_ROLL_BYTES="1000000",
    )  # fmt: skip

    assert found["segments_to_keep"] == 1 + 24_538  # 86,400 * 400 * 710 / 1e6 = 24,537.6
    assert found["file_bytes_to_keep"] == pytest.approx(3 * found["segments_to_keep"] * 1e5)
    assert found["kept_file_bytes"] == pytest.approx(3 * 4 * 1e5)


def test_a_recorded_trace_is_measured(tmp_path: Path) -> None:
    """Ranks, rate, row and ratio are those of the trace; what is given beside it counts more."""
    rows = [trace_line(number, dp_rank=rank) for number in range(500) for rank in (0, 1)]
    member = gzip_member(rows)
    (tmp_path / "fpm.4192.000000.jsonl.gz").write_bytes(member)
    text = sum(len(row) + 1 for row in rows)
    measured = plan(tmp_path, "--mode", "full")["each"]
    half = plan(tmp_path, "--mode", "full", "--ranks", "1")["each"]

    assert measured["rows_per_second"] == pytest.approx(
        1000 / (500 * 0.02)
    )  # from the start of the first pass
    assert measured["mean_row_bytes"] == pytest.approx(text / 1000)
    assert measured["compression_ratio"] == pytest.approx(text / len(member))
    assert half["rows_per_second"] == pytest.approx(measured["rows_per_second"] / 2)


def test_a_sample_has_no_rate(tmp_path: Path) -> None:
    """It cannot be measured, and the error says what can."""
    rows = [trace_line(number, capture_mode="sampled") for number in range(9)]
    (tmp_path / "fpm.4192.000000.jsonl.gz").write_bytes(gzip_member(rows))

    with pytest.raises(ConfigError, match="a trace of full mode"):
        plan(tmp_path)


def test_full_mode_needs_a_rate() -> None:
    """Nobody knows how many passes an engine does; the error says what to give."""
    with pytest.raises(ConfigError, match="passes a second of one rank"):
        plan("--mode", "full")


def test_the_table_says_what_to_set() -> None:
    """For people: the numbers of a producer, of all, and the variable with its value."""
    result = CliRunner().invoke(
        trace, ["plan", "--mode", "full", "--rate", "50", "--keep", "1d", "--producers", "2"], env=CLEAN
    )

    assert "50  710 B   15.0" in result.stdout
    assert "all 2: 6.13 GB of text a day" in result.stdout
    assert "(DYN_FPM_MAX_SEGMENTS=13)" in result.stdout

"""``forwardpass trace``: list, print, sum up and verify, as a user runs it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forwardpass.cli.main import Exit
from forwardpass.cli.trace import trace
from forwardpass.config.variables import TABLE
from forwardpass.errors import TracePathError
from forwardpass.testing.traces import decode_pass, gzip_member, prefill_pass, trace_line
from forwardpass.wire.schema import ScheduledRequestMetrics

CLEAN = dict.fromkeys((variable.name for variable in TABLE), None)


def run(*arguments: str | Path, **environment: str) -> Result:
    """Run ``forwardpass trace`` with none of our variables set but those given."""
    return CliRunner().invoke(
        trace,
        [str(argument) for argument in arguments],
        env={**CLEAN, **environment},
        standalone_mode=False,
        catch_exceptions=False,
    )


def command(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the same in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if name not in CLEAN}
    return subprocess.run(
        [sys.executable, "-m", "forwardpass", "trace", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**clean, **environment},
        check=False,
    )


EPOCH_MS = 1_796_042_065_000  # of counter 0
ROWS = [
    trace_line(0, ScheduledRequestMetrics(), wall_time=0.0),
    trace_line(1, prefill_pass(2, 300), wall_time=0.5),
    *(trace_line(number, decode_pass(8), wall_time=0.02) for number in range(2, 6)),
    trace_line(0, decode_pass(8), wall_time=0.04, dp_rank=1, observed_at_unix_ms=1_796_042_065_050),
]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A trace of two segments; counters 6 to 8 of rank 0 are missing between them."""
    (tmp_path / "fpm.4192.000000.jsonl.gz").write_bytes(gzip_member(ROWS[:3]) + gzip_member(ROWS[3:]))
    (tmp_path / "fpm.4192.000001.jsonl.gz").write_bytes(gzip_member([trace_line(9), trace_line(10)]))
    return tmp_path / "fpm"


@pytest.fixture
def damaged(prefix: Path) -> Path:
    """The same with the first segment's second member corrupt."""
    path = prefix.parent / "fpm.4192.000000.jsonl.gz"
    content = bytearray(path.read_bytes())
    content[-20] ^= 0xFF
    path.write_bytes(content)
    return prefix


def test_ls_lists_the_files(prefix: Path) -> None:
    """Name, producer, size and times of each file in order, and a total."""
    result = run("ls", prefix)
    lines = result.stdout.splitlines()

    assert (result.return_value or 0, result.stderr) == (Exit.DONE, "")
    assert [line.split()[0].rsplit("/")[-1] for line in lines[1:3]] == [
        "fpm.4192.000000.jsonl.gz",
        "fpm.4192.000001.jsonl.gz",
    ]
    assert "2026-11-30T12:34:25.000Z" in lines[1]
    assert lines[3].startswith("2 files, ")
    assert "rows" not in lines[0]


def test_ls_json_counts_on_request(prefix: Path) -> None:
    """Rows and members are ``null`` unless asked for: only reading everything tells."""
    plain = json.loads(run("ls", prefix, "--json").stdout)
    counted = json.loads(run("ls", prefix, "--json", "--count").stdout)

    assert [(f["producer"], f["index"], f["format"], f["rows"]) for f in plain] == [
        ("4192", 0, "gzip", None),
        ("4192", 1, "gzip", None),
    ]
    assert [(f["rows"], f["members"], f["intact"]) for f in counted] == [(7, 2, True), (2, 1, True)]
    assert [f["first_observed_unix_ms"] for f in plain] == [f["first_observed_unix_ms"] for f in counted]
    assert [f["last_observed_unix_ms"] for f in plain] == [f["last_observed_unix_ms"] for f in counted]
    assert plain[0]["size"] == (prefix.parent / "fpm.4192.000000.jsonl.gz").stat().st_size


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--since", str(EPOCH_MS + 9 * 20)], [1]),
        (["--until", str(EPOCH_MS + 9 * 20)], [0]),
        (["--since", str(EPOCH_MS), "--until", str(EPOCH_MS + 10_000)], [0, 1]),
        (["--since", str(EPOCH_MS + 10_000)], []),
    ],
)
def test_ls_finds_the_files_of_a_time(prefix: Path, options: list[str], expected: list[int]) -> None:
    """A file is listed if rows of it were observed in that time, or if nobody can tell."""
    (prefix.parent / "fpm.4193.000007.jsonl.gz").write_bytes(b"\x1f\x8b")
    found = json.loads(run("ls", prefix, "--json", *options).stdout)

    assert [each["index"] for each in found] == [*expected, 7]


def test_cat_prints_the_rows_as_written(prefix: Path) -> None:
    """The output is byte for byte what ``zcat`` gives."""
    expected = b"".join(gzip.decompress(path.read_bytes()) for path in sorted(prefix.parent.iterdir()))

    assert run("cat", prefix).stdout_bytes == expected
    assert run("cat", prefix.parent).stdout_bytes == expected
    assert command("cat", prefix).stdout.encode() == expected


@pytest.mark.parametrize(
    ("options", "counters"),
    [
        (["--limit", "2"], [0, 1]),
        (["--rank", "1"], [0]),
        (["--rank", "0", "--limit", "1"], [0]),
        (["--worker", "4192", "--limit", "9"], [0, 1, 2, 3, 4, 5, 0, 9, 10]),
        (["--worker", "other"], []),
        (["--since", "1796042065100"], [5, 9, 10]),
        (["--until", "2026-11-30T12:34:25.040"], [0, 1]),
        (["--since", "2026-11-30T13:34:25.040+01:00", "--until", "2026-11-30T12:34:25.060Z"], [2, 0]),
    ],
)
def test_cat_filters(prefix: Path, options: list[str], counters: list[int]) -> None:
    """Rows are chosen by worker, rank and observed time; a time without a zone is UTC."""
    lines = run("cat", prefix, *options).stdout.splitlines()

    assert [json.loads(line)["event"]["fpm"]["counter_id"] for line in lines] == counters


def test_cat_compact_is_a_table(prefix: Path) -> None:
    """One line a row under a header, with the kind of pass."""
    lines = run("cat", prefix, "--compact", "--rank", "0").stdout.splitlines()

    assert len(lines) == 9
    assert "kind" in lines[0]
    assert [line.split()[4] for line in lines[1:4]] == ["heartbeat", "prefill", "decode"]


def test_cat_of_damage_is_partial(damaged: Path) -> None:
    """What is sound is printed; what is not is said on stderr, and the exit code is 4."""
    result = run("cat", damaged)

    assert result.return_value == Exit.PARTIAL
    assert len(result.stdout.splitlines()) == 5
    assert "fpm.4192.000000.jsonl.gz" in result.stderr
    assert result.stderr.count("\n") == 1


def test_stats_says_what_a_trace_holds(prefix: Path) -> None:
    """The page has passes by kind, tokens, queue, gaps, ranks, files, and what it takes in the long run."""
    result = run("stats", prefix)

    assert (result.return_value, result.stderr) == (Exit.DONE, "")
    for words in (
        "8 passes",
        "1 heartbeat of 2 ranks",
        "prefill",
        "decode",
        "300 prefill",
        "queue",
        "3 messages missing in 1 gap",
    ):
        assert words in result.stdout
    assert "2 files" in result.stdout
    assert "time kept" in result.stdout


def test_stats_json_has_every_number(prefix: Path) -> None:
    """The document has the summary, the capacity (D-30) and the files."""
    document = json.loads(
        run("stats", prefix, "--json", "--roll-bytes", "100000", "--max-segments", "3").stdout
    )
    summary, (capacity,) = document["summary"], document["capacity"]

    assert (summary["rows"], summary["passes"], summary["heartbeats"], summary["missing"]) == (9, 8, 1, 3)
    assert [(k["kind"], k["passes"], k["p99_seconds"]) for k in summary["kinds"]] == [
        ("prefill", 1, 0.5),
        ("decode", 7, 0.04),
    ]
    assert [(s["dp_rank"], s["rows"]) for s in summary["streams"]] == [(0, 8), (1, 1)]
    assert (capacity["roll_bytes"], capacity["max_segments"]) == (100_000, 3)
    seconds = 100_000 / (capacity["rows_per_second"] * capacity["mean_row_bytes"])
    assert capacity["kept_seconds_at_most"] == pytest.approx(3 * seconds)
    assert capacity["mean_row_bytes"] == pytest.approx(summary["row_bytes"] / 9)
    assert [file["rows"] for file in document["files"]] == [7, 2]


def test_stats_takes_limits_from_the_environment(prefix: Path) -> None:
    """The writer's own variables are the default of what the numbers reckon with."""
    document = json.loads(
        run("stats", prefix, "--json", DYN_FPM_JSONL_GZ_ROLL_BYTES="5000", DYN_FPM_MAX_SEGMENTS="2").stdout
    )

    assert (document["capacity"][0]["roll_bytes"], document["capacity"][0]["max_segments"]) == (5000, 2)


def test_stats_of_a_sampled_trace_warns(tmp_path: Path) -> None:
    """Percentiles of a sample are shown as what they are."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(trace_line(n, capture_mode="sampled") for n in (0, 50, 100)))
    result = run("stats", path)

    assert "not valid as a p99" in result.stdout
    assert "98 messages left out by sampling" in result.stdout
    assert json.loads(run("stats", path, "--json").stdout)["summary"]["sampled"] is True


def test_stats_of_an_empty_file_is_no_error(tmp_path: Path) -> None:
    """A trace that holds nothing yet says so."""
    (tmp_path / "a.jsonl").touch()
    result = run("stats", tmp_path)

    assert result.return_value == Exit.DONE
    assert "no rows" in result.stdout
    assert json.loads(run("stats", tmp_path, "--json").stdout)["capacity"] == []


def test_verify_of_a_sound_trace(prefix: Path) -> None:
    """Exit code 0, and how many rows are safe."""
    result = run("verify", prefix)

    assert (result.return_value, result.stderr) == (Exit.DONE, "")
    assert result.stdout.splitlines()[-1] == "intact: 9 rows are safe"


def test_verify_of_damage(damaged: Path) -> None:
    """Exit code 1, which file, which bytes, how many rows are safe."""
    result = run("verify", damaged)
    document = json.loads(run("verify", damaged, "--json").stdout)
    first, second = document["files"]

    assert result.return_value == Exit.FINDING
    assert result.stdout.splitlines()[-1] == "damaged: 1 of 2 files; 5 rows are safe"
    assert (document["intact"], document["rows"]) == (False, 5)
    assert [part["damage"] for part in first["ranges"]] == [None, "corrupt_member"]
    assert f"(bytes {first['ranges'][1]['start']} to {first['size']})" in result.stdout
    assert (second["rows"], second["problem_counts"]) == (2, {})


def test_verify_counts_unverified_rows_apart(prefix: Path) -> None:
    """Rows of a torn tail are counted but not called safe, and printed only on request."""
    path = prefix.parent / "fpm.4192.000001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-2])
    result = run("verify", prefix)

    assert result.return_value == Exit.FINDING
    assert "7 rows are safe; 2 more" in result.stdout.splitlines()[-1]
    assert run("cat", prefix).stdout.count("\n") == 7
    assert run("cat", prefix, "--unverified").stdout.count("\n") == 9
    assert json.loads(run("stats", prefix, "--unverified", "--json").stdout)["summary"]["rows"] == 9


@pytest.mark.parametrize("name", ["ls", "cat", "stats", "verify"])
def test_missing_trace_exits_with_three(tmp_path: Path, name: str) -> None:
    """One line on stderr names the path; nothing is on stdout."""
    done = command(name, tmp_path / "missing")

    assert (done.returncode, done.stdout) == (Exit.INPUT, "")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "missing") in done.stderr


def test_configured_trace_is_the_default(prefix: Path) -> None:
    """Without a path the trace is where the writer's variable says."""
    result = run("verify", DYN_FPM_OUTPUT_PATH=f"{prefix}.jsonl.gz")

    assert result.stdout.splitlines()[-1] == "intact: 9 rows are safe"


def test_configured_trace_that_is_not_there(tmp_path: Path) -> None:
    """The error says which setting to look at."""
    with pytest.raises(TracePathError) as caught:
        run("ls", DYN_FPM_OUTPUT_PATH=str(tmp_path / "none"))
    assert caught.value.path == str(tmp_path / "none")
    assert "DYN_FPM_OUTPUT_PATH" in str(caught.value)


def test_invalid_setting_exits_with_two(prefix: Path) -> None:
    """A segment size that no writer would take is wrong use, not a number to reckon with."""
    done = command("stats", prefix, DYN_FPM_JSONL_GZ_ROLL_BYTES="-5")

    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "DYN_FPM_JSONL_GZ_ROLL_BYTES" in done.stderr


def test_wrong_time_exits_with_two(prefix: Path) -> None:
    """A time that is none is refused with what is accepted."""
    done = command("cat", prefix, "--since", "yesterday")

    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "2026-11-30T12:25:00Z" in done.stderr


@pytest.mark.parametrize("name", ["cat", "stats", "verify"])
def test_reader_that_leaves_early_is_no_error(tmp_path: Path, name: str) -> None:
    """``| head`` ends the command quietly."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(trace_line(n, worker_id="w" * 200) for n in range(4000)) + b"\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "forwardpass", "trace", name, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if name == "cat":
        assert process.stdout.read(10) == b'{"timestam'
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()

    assert (process.wait(timeout=60), errors) == (Exit.DONE, b"")


def test_piped_output_has_no_colour(prefix: Path) -> None:
    """No escape sequence reaches a pipe, whatever the environment asks for."""
    for arguments in (("ls",), ("cat", "--compact"), ("stats",), ("verify",)):
        done = command(*arguments, prefix, FORCE_COLOR="1", TERM="xterm-256color")

        assert done.returncode == Exit.DONE
        assert "\x1b" not in done.stdout + done.stderr


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in ids and file names are shown as question marks."""
    path = tmp_path / "evil\x1b[31m.jsonl"
    path.write_bytes(
        trace_line(0, worker_id="w\x1b[2J", producer_id="p\x1b]0;x") + b"\n" + trace_line(1) + b"\nbad\n"
    )
    for name in ("ls", "stats", "verify"):
        result = run(name, path)

        assert "\x1b" not in result.stdout + result.stderr


def test_repair_writes_what_is_sure(damaged: Path, tmp_path: Path) -> None:
    """TRACE-66: New files with the old names, which every reader takes; a table and a verdict in words."""
    result = run("repair", damaged, "--output", tmp_path / "sound")

    assert "fpm.4192.000000.jsonl.gz  repaired     3" in result.stdout
    assert "fpm.4192.000001.jsonl.gz  copied       2" in result.stdout
    assert "5 rows in new files; 1 file had damage" in result.stderr
    assert run("verify", tmp_path / "sound").return_value == Exit.DONE
    assert run("verify", damaged).return_value == Exit.FINDING


def test_repair_as_json_says_what_was_lost(damaged: Path, tmp_path: Path) -> None:
    """The old files' reports, problems included, and where the rows are now."""
    found = json.loads(run("repair", damaged, "-o", tmp_path / "sound", "--json").stdout)

    assert found["rows"] == 5
    assert found["files"][0]["target"] == str(tmp_path / "sound" / "fpm.4192.000000.jsonl.gz")
    assert found["files"][0]["source"]["problem_counts"] == {"corrupt_member": 1}


def test_repair_says_what_it_left_out(tmp_path: Path) -> None:
    """TRACE-62: Torn rows are mentioned with the option that takes them; a file without a sure row gives no
    new one.
    """
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip_member(ROWS)[:-4])
    result = run("repair", tmp_path / "torn.jsonl.gz", "-o", tmp_path / "sound")

    assert "nothing left" in result.stdout
    assert "7 rows of torn members left out (--unverified takes them)" in result.stderr
    assert list((tmp_path / "sound").iterdir()) == []


def test_cat_follows_a_trace(tmp_path: Path) -> None:
    """TRACE-67: Rows that come later are shown, also of a segment that begins later, until the limit."""
    arguments = ["trace", "cat", "-f", "--limit", "4", str(tmp_path / "fpm")]
    with subprocess.Popen(
        [sys.executable, "-m", "forwardpass", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        (tmp_path / "fpm.1.000000.jsonl.gz").write_bytes(gzip_member(ROWS[:2]))
        first = [process.stdout.readline() for _ in range(2)]
        (tmp_path / "fpm.1.000001.jsonl.gz").write_bytes(gzip_member(ROWS[2:6]))
        rest = process.stdout.read()

    assert process.returncode == Exit.DONE
    assert "".join(first) + rest == b"\n".join([*ROWS[:4], b""]).decode()


def test_stats_of_some_rows(prefix: Path) -> None:
    """One rank, or one stretch of time: its passes are summed up alone, without what the files take."""
    one_rank = run("stats", prefix, "--rank", "1").stdout
    whole = json.loads(run("stats", prefix, "--json").stdout)
    late = json.loads(run("stats", prefix, "--json", "--since", "1796042065150").stdout)
    none = run("stats", prefix, "--worker", "nobody")

    assert one_rank.startswith("1 pass and 0 heartbeats of 1 rank")
    assert "disk a day" not in one_rank
    assert len(whole["capacity"]) == 1
    assert (late["summary"]["rows"], late["capacity"]) == (2, [])
    assert none.stderr == "none of the 9 rows is what was asked for\n"

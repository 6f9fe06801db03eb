"""``forwardpass record`` beside a real publisher in another process."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from engine_process import Engine, engine_at, finish, run, start, trace_rows, wait_for_rows

from forwardpass.cli.main import Exit
from forwardpass.testing.ports import free_port


def counters(folder: Path, rank: int = 0) -> list[int]:
    """Return the recorded counters of a rank."""
    return [row["fpm"]["counter_id"] for row in trace_rows(folder) if row["fpm"]["dp_rank"] == rank]


def test_records_two_ranks_and_sums_them_up(tmp_path: Path) -> None:
    """Every pass of both ranks is in the files; the summary is on stdout, words are on stderr."""
    base = free_port(3)
    with engine_at(base, ranks=2):
        code, out, err = run(
            "record", "--ranks", "2", "--seconds", "2", "--output", str(tmp_path / "run"),
            DYN_FORWARDPASS_METRIC_PORT=str(base),
        )  # fmt: skip
    first, second = counters(tmp_path, 0), counters(tmp_path, 1)

    assert code == Exit.DONE
    assert len(first) > 20
    assert first == list(range(first[0], first[0] + len(first)))
    assert second == list(range(second[0], second[0] + len(second)))
    assert {row["capture_mode"] for row in trace_rows(tmp_path)} == {"full"}
    assert {row["fpm"]["worker_id"] for row in trace_rows(tmp_path)} == {"4192"}
    assert "decode" in out
    assert f"tcp://127.0.0.1:{base + 1}" in err
    assert "no event plane" in err
    assert "\x1b" not in out + err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Stopped in full flight, record writes everything it received, without a gap, and ends with status 0."""
    base = free_port(2)
    with engine_at(base, per_second=1000):
        process = start(["record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "run"), "--json"])
        wait_for_rows(tmp_path, 300)
        process.send_signal(number)
        code, out, _ = finish(process)
    result = json.loads(out)
    recorded = counters(tmp_path)

    assert code == Exit.DONE
    assert result["relays"][0]["received"] == result["trace"]["written"] == len(recorded)
    assert recorded == list(range(recorded[0], recorded[0] + len(recorded)))
    assert result["trace"]["dropped"] == {}
    assert [Path(name).name for name in result["files"]] == [path.name for path in tmp_path.glob("*.gz")]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """While the first signal drains a second one kills, and what was flushed stays readable."""
    base = free_port(2)
    with engine_at(base, per_second=500):
        process = start(["record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "run")])
        wait_for_rows(tmp_path, 100)
        for _ in range(40):  # a live engine is drained for half a second after the first
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        code, _, _ = finish(process)

    assert code == -signal.SIGINT
    assert len(trace_rows(tmp_path)) >= 100


def test_the_engine_may_come_later_and_come_back(tmp_path: Path) -> None:
    """Started before the engine it says what is missing; it joins the engine, also after a restart."""
    base = free_port(2)
    process = start(["record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "run"), "--json"])
    assert process.stderr is not None
    missing = next(line for line in process.stderr if "nothing from" in line)
    with engine_at(base):
        wait_for_rows(tmp_path, 50)
    with engine_at(base):
        wait_for_rows(tmp_path, len(trace_rows(tmp_path)) + 50)
        process.send_signal(signal.SIGTERM)
        code, out, err = finish(process)
    relay = json.loads(out)["relays"][0]

    assert code == Exit.DONE
    assert f"nothing from tcp://127.0.0.1:{base} yet" in missing
    assert "forwardpass doctor" in missing
    assert "receiving now" in err
    assert (relay["restarts"], relay["reconnects"]) == (1, 1)


def test_nothing_arrives(tmp_path: Path) -> None:
    """Without a publisher the status is 1, the reason is looked for elsewhere, and no file is left."""
    code, out, err = run(
        "record", f"tcp://127.0.0.1:{free_port(2)}", "--seconds", "0.5", "--output", str(tmp_path / "run")
    )

    assert code == Exit.FINDING
    assert out == ""
    assert "nothing arrived" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (["--mode", "sometimes"], {}, "--mode='sometimes'"),
        (["--roll-bytes", "1_000"], {}, "--roll-bytes='1_000'"),
        (["--endpoint", "a.b"], {}, "--endpoint='a.b'"),
        (["--plane", "carrier-pigeon:coop"], {}, "carrier-pigeon:coop"),
        (["tcp://*:20380"], {}, "tcp://*:20380"),
        (["--ranks", "2", "tcp://h:1", "tcp://h:2"], {}, "--ranks"),
        (["--ranks", "0"], {}, "--ranks"),
        ([], {"DYN_FPM_MODE": "bogus"}, "DYN_FPM_MODE='bogus'"),
        ([], {"DYN_FORWARDPASS_METRIC_PORT": "80"}, "DYN_FORWARDPASS_METRIC_PORT='80'"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], variables: dict[str, str], named: str) -> None:
    """A setting that is not accepted is status 2 and named as it was given; nothing is recorded."""
    code, out, err = run(
        "record", "--output", str(tmp_path / "run"), "--seconds", "1", *arguments, **variables
    )

    assert code == Exit.USAGE
    assert named in err
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """Where no file can be made the status is 3 and one line says why."""
    (tmp_path / "file").write_text("")
    code, _, err = run("record", "--output", str(tmp_path / "file" / "run"), "--seconds", "30")

    assert code == Exit.INPUT
    assert str(tmp_path / "file") in err
    assert "Traceback" not in err


def test_with_a_plane_a_missing_trace_is_no_reason_to_stop(tmp_path: Path) -> None:
    """With an event plane the streams are relayed even where nothing can be written."""
    (tmp_path / "file").write_text("")
    base = free_port(2)
    with engine_at(base):
        code, out, err = run(
            "record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "file" / "run"),
            "--plane", "memory:here", "--seconds", "2", "--json",
        )  # fmt: skip
    result = json.loads(out)

    assert code == Exit.DONE
    assert (result["capture_mode"], result["trace"], result["files"]) == (None, None, [])
    assert result["endpoint"] == "dynamo.backend.generate"
    assert result["relays"][0]["plane"]["delivered"] == result["relays"][0]["received"] > 0
    assert "event plane memory:here" in err


def test_variables_and_flags(tmp_path: Path) -> None:
    """The mode variable is respected, flags win, the endpoint is in the rows, the id in the file's name."""
    base = free_port(2)
    with engine_at(base):
        code, out, _ = run(
            "record", "--output", str(tmp_path / "run"), "--seconds", "2", "--json",
            "--sample-interval-ms", "200", "--endpoint", "a.b.c", "--producer-id", "fixed",
            DYN_FORWARDPASS_METRIC_PORT=str(base), DYN_FPM_MODE="sampled",
            FORWARDPASS_PRODUCER_ID="other", DYN_FPM_SAMPLE_INTERVAL_MS="60000",
        )  # fmt: skip
    rows = trace_rows(tmp_path)

    assert code == Exit.DONE
    assert json.loads(out)["capture_mode"] == "sampled"
    assert 4 <= len(rows) <= 14
    assert rows[0]["source"] == {"namespace": "a", "component": "b", "producer_id": "fixed"}
    assert [path.name for path in tmp_path.glob("*.gz")] == ["run.fixed.000000.jsonl.gz"]


def test_a_fixed_producer_goes_on_at_the_next_index(tmp_path: Path) -> None:
    """With a fixed producer id a second recording writes the next segment and touches the first no more."""
    base = free_port(2)
    arguments = ["record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "run"), "--producer-id", "p"]
    with engine_at(base):
        first = run(*arguments, "--seconds", "1")
        kept = (tmp_path / "run.p.000000.jsonl.gz").read_bytes()
        second = run(*arguments, "--seconds", "1")

    assert (first[0], second[0]) == (Exit.DONE, Exit.DONE)
    assert sorted(path.name for path in tmp_path.glob("*.gz")) == [
        "run.p.000000.jsonl.gz",
        "run.p.000001.jsonl.gz",
    ]
    assert (tmp_path / "run.p.000000.jsonl.gz").read_bytes() == kept


def test_quiet(tmp_path: Path) -> None:
    """--quiet says nothing on stderr while it runs; the summary is data and stays."""
    base = free_port(2)
    with engine_at(base):
        code, out, err = run(
            "record",
            f"tcp://127.0.0.1:{base}",
            "--output",
            str(tmp_path / "run"),
            "--seconds",
            "1",
            "--quiet",
        )

    assert code == Exit.DONE
    assert err == ""
    assert "decode" in out


def test_a_killed_recorder_leaves_readable_files(tmp_path: Path) -> None:
    """After SIGKILL the files hold complete rows up to about the last second."""
    base = free_port(2)
    with engine_at(base, per_second=500):
        process = start(["record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "run")])
        wait_for_rows(tmp_path, 500)
        os.kill(process.pid, signal.SIGKILL)
        finish(process)
    recorded = counters(tmp_path)

    assert recorded == list(range(recorded[0], recorded[0] + len(recorded)))


def test_an_engine_that_ends_is_recorded_to_its_end(tmp_path: Path) -> None:
    """What an engine sent before it ended, and record before it was stopped could not receive, is written."""
    base = free_port(2)
    engine = Engine(base, per_second=1000)
    process = start(["record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "run")])
    wait_for_rows(tmp_path, 100)
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.6)
    published, _ = engine.process.communicate("stop\n", timeout=30)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    code, _, _ = finish(process)
    recorded = counters(tmp_path)

    assert code == Exit.DONE
    assert recorded == list(range(recorded[0], json.loads(published)[0]))


def test_help_and_examples() -> None:
    """The help has every option with its variable, the exit codes, and examples."""
    code, out, _ = run("record", "--help")

    assert code == Exit.DONE
    for word in ("--ranks", "DYN_FPM_OUTPUT_PATH", "FORWARDPASS_PLANE", "Exit code", "Examples"):
        assert word in out

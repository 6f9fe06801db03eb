"""``forwardpass bench run``: ranks of the simulated engine, from the command line to files that are valid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forwardpass.testing.ports import free_port

FEW = [
    *("--prefill-max-new-token-samples", "3", "--prefill-max-kv-read-token-samples", "2"),
    *("--decode-max-kv-read-token-samples", "3", "--decode-max-batch-size-samples", "3"),
    *("--prefix-max-batch-size-samples", "2"),
]
COMMAND = [sys.executable, "-m", "forwardpass", "bench"]


def environment(**more: str) -> dict[str, str]:
    """Return a clean environment with ports of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
    return kept | {"DYN_FORWARDPASS_METRIC_PORT": str(free_port(6))} | more


def bench(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(**more),
        check=False,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Measure two ranks."""
    path = tmp_path_factory.mktemp("run") / "bench.json"
    done = bench("run", "--dp", "2", *FEW, "--benchmark-output-path", str(path), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return path, found


def test_what_was_written_is_valid(whole: tuple[Path, dict[str, Any]]) -> None:
    """The rank files, the merged file and the sidecar of a run pass ``bench validate``, a strict reader's
    rules too.
    """
    _, found = whole
    files = [*found["rank_files"], found["merged"], found["worker_probe"]]
    assert [Path(name).name for name in files] == [
        *("bench.json", "bench_dp1.json", "bench_merged.json", "bench_merged_worker_probe.json")
    ]
    assert (found["status"], found["skipped"], found["errors"]) == ("complete", 0, [])

    done = bench("validate", *files)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_run_can_be_planned_from_what_it_wrote(whole: tuple[Path, dict[str, Any]]) -> None:
    """``bench plan --like`` gives the digest of the grid that was run."""
    path, _ = whole
    done = bench("plan", "--like", str(path), "--json")
    artifact = json.loads(path.read_text())

    assert artifact["grid_digest"] in done.stdout


def test_the_same_seed_gives_the_same_times(tmp_path: Path) -> None:
    """Two runs with one seed measure the same times, and another seed others; prompts are the same in all
    three.
    """
    rows = []
    for number, seed in enumerate(("3", "3", "4")):
        path = tmp_path / f"{number}.json"
        done = bench(
            *("run", "--benchmark-mode", "decode", *FEW, "--seed", seed, "--quiet"),
            *("--benchmark-output-path", str(path)),
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        rows.append([row["fpms"][0] for row in json.loads(path.read_text())["results"]])
    walls = [[fpm["wall_time"] for fpm in run] for run in rows]
    hashes = [[fpm["benchmark_measurement"]["prompts"]["sha256"] for fpm in run] for run in rows]

    assert walls[0] == walls[1] != walls[2]
    assert hashes[0] == hashes[1] == hashes[2]


def test_time_that_is_up_gives_a_partial_run(tmp_path: Path) -> None:
    """A limit of a fraction of a second leaves the first points: status partial, exit code 1, and merged all
    the same.
    """
    path = tmp_path / "bench.json"
    done = bench("run", "--benchmark-timeout", "0.5", "--benchmark-output-path", str(path), "--json")
    merged = json.loads((tmp_path / "bench_merged.json").read_text())

    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == merged["status"] == "partial"
    assert (merged["stop_reason"], merged["usable"], merged["valid"]) == ("timeout", True, False)
    assert bench("validate", str(path)).returncode == 0


def test_a_point_that_does_not_fit_fails_the_run(tmp_path: Path) -> None:
    """A points file beyond the engine ends the run with the entry and both numbers; the file says failed."""
    points = tmp_path / "points.json"
    points.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "prefill": [],
                "decode": [{"batch_size": 65, "total_kv_read_tokens": 650}],
            }
        )
    )
    path = tmp_path / "bench.json"
    done = bench(
        *("run", "--benchmark-points-file", str(points), "--benchmark-output-path", str(path), "--quiet")
    )
    artifact = json.loads(path.read_text())

    assert done.returncode == 4
    assert "rank 0: decode[0]" in done.stderr
    assert "max_num_running_reqs: needs 65, has 64" in done.stderr
    assert artifact["status"] == "failed"
    assert "decode[0]" in artifact["error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dp", "0"], "--dp='0': expected a whole number from 1 to 64"),
        (["--benchmark-mode", "fast"], "--benchmark-mode='fast': expected"),
        (["--benchmark-timeout", "0"], "--benchmark-timeout='0': expected"),
        (["--decode-max-batch-size-samples", "1"], "--decode-max-batch-size-samples='1': expected"),
        (["--benchmark-points-file", "/nonexistent.json"], "--benchmark-points-file /nonexistent.json"),
    ],
)
def test_wrong_settings_are_refused(arguments: list[str], words: str) -> None:
    """A setting that is not accepted is one line that names it, and nothing is started."""
    done = bench("run", *arguments)

    assert done.returncode in (2, 3)
    assert done.stdout == ""
    assert words in done.stderr


def test_ctrl_c_ends_every_rank(tmp_path: Path) -> None:
    """An interrupted run ends with 130 within seconds; its ranks' files say why, and none of its processes is
    left.
    """
    path = tmp_path / "bench.json"
    process = subprocess.Popen(
        [*COMMAND, "run", "--dp", "2", "--benchmark-output-path", str(path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    deadline = time.monotonic() + 60
    while not workers_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    started = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert started
    assert json.loads(stdout)["status"] == "failed"
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def workers_of(pid: int) -> list[int]:
    """Return the processes that ``pid`` has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found

"""The commands about the files of a self-benchmark, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from forwardpass.testing.artifacts import made_run

GOLDEN = Path(__file__).parents[1] / "golden"
MOE = GOLDEN / "vllm-cpu-moe-dp2-bench-agg"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [sys.executable, "-m", "forwardpass", "bench", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def written(folder: Path, documents: list[dict[str, Any]]) -> list[Path]:
    """Write rank files as a run would name them."""
    paths = [folder / ("res.json" if not rank else f"res_dp{rank}.json") for rank in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return paths


def test_the_references_files_are_sound() -> None:
    """ART-11: All files of a run of the reference, gzip too, are read together, and nothing is wrong."""
    defaults = GOLDEN / "vllm-cpu-bench-defaultgrid"
    done = run("validate", "--strict", *MOE.glob("benchmark*.json"), *defaults.glob("benchmark*.gz"))

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "nothing is wrong"
    assert "rank file, rank 1, complete, 19 points, without a protocol" in done.stdout
    assert "no post-run worker evidence" in done.stderr


def test_everything_that_is_wrong_is_listed(tmp_path: Path) -> None:
    """ART-12: Code 1, one line for each problem with level, file, place, values, rule and clause."""
    documents = made_run()
    documents[1]["run_id"] = documents[0]["run_id"]
    documents[1]["grid_digest"] = "0" * 64
    documents[0]["config"]["timeout"] = "900"
    done = run("validate", *written(tmp_path, documents))
    lines = done.stdout.splitlines()

    assert done.returncode == 1
    assert lines[-1] == "2 problems"
    assert any(line.endswith("[rank-agreement, MERGE-09]") and "(rank 0, 1)" in line for line in lines)
    assert any(
        line.startswith("format: ") and '$.config.timeout (rank 0): found "900"' in line for line in lines
    )


def test_strict_rules_are_asked_on_request(tmp_path: Path) -> None:
    """EVID-13: What only a strict reader refuses is found with --strict alone."""
    (document,) = made_run(ranks=1)
    document["warmup_evidence"]["records"][0]["completed_points_before"] = 1
    (path,) = written(tmp_path, [document])
    strict = run("validate", "--strict", "--json", path)

    assert run("validate", path).returncode == 0
    assert strict.returncode == 1
    found = json.loads(strict.stdout)
    assert {problem["level"] for problem in found["problems"]} == {"consumer"}
    assert found["files"][0]["kind"] == "rank"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """ART-01: Code 3; a file that is not there, one that is no JSON and one of another kind are named, and
    the others are checked all the same.
    """
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "other.json").write_text('{"schema_version": 3, "artifact_type": "\\u001b[31mrank"}')
    done = run(
        "validate",
        tmp_path / "none.json",
        tmp_path / "bad.json",
        tmp_path / "other.json",
        MOE / "benchmark_results.json",
    )

    assert done.returncode == 3
    assert "rank file, rank 0" in done.stdout
    assert len(done.stderr.splitlines()) == 3
    assert "version '3', expected artifact_type 'rank' or 'merged' in version 2" in done.stderr
    assert "\x1b" not in done.stderr


def test_ranks_are_merged(tmp_path: Path) -> None:
    """MERGE-14, MERGE-16, ART-02: The merged file has the name that a launcher would give, is sound and comes
    out the same a second time, in another order.
    """
    paths = written(tmp_path, made_run())
    done = run("merge", *paths)
    merged = tmp_path / "res_merged.json"
    first = merged.read_bytes()
    again = run("merge", "--json", *reversed(paths))

    assert done.returncode == again.returncode == 0
    assert f"rank 0, 1 merged into {merged}" in done.stdout
    assert json.loads(again.stdout)["ranks"] == [0, 1]
    assert merged.read_bytes() == first
    assert run("validate", "--strict", merged).returncode == 0


def test_ranks_that_do_not_merge_leave_everything(tmp_path: Path) -> None:
    """MERGE-16, MERGE-17: Code 1, all problems or just the first of Dynamo's, nothing written or removed."""
    documents = made_run()
    documents[1]["coverage"]["expected_points"] = 9
    documents[1]["results"].pop()
    paths = written(tmp_path, documents)
    (tmp_path / "res_merged_worker_probe.json").write_text("{}")
    before = sorted(tmp_path.iterdir())
    done = run("merge", *paths)
    first = json.loads(run("merge", "--reference", "--json", *paths).stdout)

    assert done.returncode == 1
    assert len(done.stdout.splitlines()) > 2
    assert "nothing was written" in done.stdout.splitlines()[-1]
    assert len(first["problems"]) == 1
    assert first["merged"] is None
    assert sorted(tmp_path.iterdir()) == before


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    """MERGE-16: An output that is there and no merged file is refused, code 3."""
    paths = written(tmp_path, made_run())
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    done = run("merge", *paths, "--output", precious)

    assert done.returncode == 3
    assert "is no merged file" in done.stderr
    assert precious.read_text() == "mine"


def test_a_sidecar_of_another_run_is_a_finding(tmp_path: Path) -> None:
    """PROBE-09: A merged file beside another run's sidecar is not judged by it: that is a finding."""
    paths = written(tmp_path, made_run())
    assert run("merge", *paths).returncode == 0
    sidecar = {
        "schema": "dynamo.fpm.benchmark_worker_probe",
        "schema_version": 1,
        "run_id": "f" * 32,
        "merged_output_path": "x",
        "rank_files": [],
        "merged": {
            "resolved": None,
            "resolved_scope": None,
            "resolution": "probe_failed: TimeoutError",
            "worker_probe": {
                "schema_version": 1,
                "scope": "post_collection_collective_rpc",
                "responses": [],
                "coverage": {
                    "scope": "artifact_workers",
                    "expected_dp_ranks": [0, 1],
                    "expected_workers_per_dp": 2,
                    "observed_workers": [],
                    "missing_dp_ranks": [0, 1],
                    "complete": False,
                },
                "disagreements": {},
                "error": "probe_failed: TimeoutError",
            },
        },
        "ranks": {},
    }
    path = tmp_path / "res_merged_worker_probe.json"
    path.write_text(json.dumps(sidecar))
    done = run("validate", tmp_path / "res_merged.json", path)
    del sidecar["ranks"]
    path.write_text(json.dumps(sidecar))
    broken = run("validate", path)

    assert done.returncode == 1
    assert "[probe-pair, PROBE-09]" in done.stdout
    assert "what the workers replied" in done.stdout
    assert broken.returncode == 1
    assert "$.ranks: found nothing, expected an object [probe-format, PROBE-09]" in broken.stdout

"""``forwardpass bench plan``: grids without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
LIMITS = {
    "layout": {
        "groups": [{"block_size": 16}],
        "block_size": 16,
        "hash_block_size": 16,
        "graph": {
            "mode": "FULL_AND_PIECEWISE",
            "prefill_mode": "PIECEWISE",
            "decode_mode": "FULL",
            "capture_sizes": [1, 2, 4, 8],
        },
    },
    "capacity": {
        "max_model_len": 256,
        "max_num_scheduled_tokens": 64,
        "max_num_running_reqs": 9,
        "usable_blocks_without_watermark": 63,
        "usable_blocks_with_watermark": 63,
    },
}


def plan(*arguments: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end and check its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "bench", "plan", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == code, done.stderr
    return done


def document(*arguments: str, code: int = 0, **env: str) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    found: dict[str, Any] = json.loads(plan(*arguments, "--json", code=code, **env).stdout)
    return found


@pytest.fixture
def limits(tmp_path: Path) -> str:
    """Write the limits of a small engine with graphs."""
    path = tmp_path / "limits.json"
    path.write_text(json.dumps(LIMITS))
    return str(path)


def keys(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the coordinates of all points but replicas, in order."""
    return [
        tuple(
            point[name]
            for name in ("point_type", "batch_size", "total_prefill_tokens", "total_kv_read_tokens")
        )
        for point in found["points"]
        if point["sample_reasons"] != ["eager_warmup"]
    ]


def test_the_page_has_tables_pictures_and_marks(limits: str) -> None:
    """GRID-10, GRID-30: Each captured size stands out, and where graphs end is said."""
    page = plan("--limits", limits, "--explain").stdout

    assert "5         FULL 8    3" in page
    assert "= FULL 8" in page
    assert "= PIECEWISE 8" in page
    assert "no graph from here on" in page
    assert "usable_blocks: needs 64, has 63" in page
    assert "max_num_running_reqs: needs 10, has 9" in page
    assert max(map(len, page.split("why the grid ends")[0].splitlines()[1:])) <= 110


def test_the_worked_ladder_of_decode(limits: str) -> None:
    """GRID-13, GRID-31: Nine requests on 63 blocks have the specification's context lengths; with `--list`
    there is a line for each point, replicas first.
    """
    found = document("--limits", limits, "--benchmark-mode", "decode")
    lines = plan("--limits", limits, "--benchmark-mode", "decode", "--list").stdout.splitlines()

    assert [key[3] for key in keys(found) if key[1] == 9] == [18, 32, 64, 128, 256, 512, 999]
    assert found["expected_points"] + found["replicas"] == len(found["points"])
    assert sum("eager_warmup" in line for line in lines) == found["replicas"] == 1
    assert sum(" decode " in line for line in lines) == len(found["points"])


@pytest.mark.parametrize(
    "folder", ["vllm-cpu-bench-agg", "vllm-cpu-bench-points", "vllm-cpu-moe-dp2-bench-agg"]
)
def test_an_artifact_is_planned_again(folder: str) -> None:
    """GRID-33: The reference's artifacts give the digest that stands in them, explicit points too."""
    path = str(GOLDEN / folder / "benchmark_results_merged.json")
    found = document("--like", path)

    assert found["grid_digest"] == found["artifact_grid_digest"]
    assert found["explicit"] == ("points" in folder)
    assert "the artifact's" in plan("--like", path).stdout


def test_options_change_what_an_artifact_says() -> None:
    """BCONF-01: What is given beats the artifact; what is not comes from it, whatever the variables say."""
    path = str(GOLDEN / "vllm-cpu-bench-agg" / "benchmark_results.json")
    found = document("--like", path, "--benchmark-mode", "prefill", DYN_PREFILL_MAX_NEW_TOKEN_SAMPLES="x")
    page = plan("--like", path, "--benchmark-max-batch-size", "4").stdout

    assert {point["point_type"] for point in found["points"]} == {"prefill"}
    assert found["expected_points"] == 10
    assert "; the artifact's is 0c0c86a0" in page


def test_variables_say_what_options_do_not(limits: str) -> None:
    """BCONF-01, BCONF-05: A variable counts where no option was given, under its deprecated name too."""
    found = document(
        "--limits", limits, DYN_BENCHMARK_MODE="decode", DYN_BENCHMARK_DECODE_BATCH_GRANULARITY="2"
    )
    failed = plan("--limits", limits, code=2, DYN_BENCHMARK_MODE="all")

    assert {key[1] for key in keys(found)} == {1, 9}
    assert failed.stderr.startswith("forwardpass: DYN_BENCHMARK_MODE='all': expected")


def test_a_points_file_gives_the_same_points(limits: str, tmp_path: Path) -> None:
    """GRID-04: What `--points` writes is planned to the same points; a file that is there is not touched."""
    path = tmp_path / "points.json"
    first = document("--limits", limits, "--points", str(path))
    again = document("--limits", limits, "--benchmark-points-file", str(path))
    text = path.read_text()
    plan("--limits", limits, "--points", str(path), code=3)

    assert keys(again) == keys(first)
    assert (first["explicit"], again["explicit"]) == (False, True)
    assert path.read_text() == text
    assert sorted(one.name for one in tmp_path.iterdir()) == ["limits.json", "points.json"]


def test_points_that_do_not_fit_or_are_uneven(limits: str, tmp_path: Path) -> None:
    """GRID-04, GRID-05: One that does not fit is named as it stands in the file; uneven ones are counted."""
    path = tmp_path / "points.json"
    uneven = {"batch_size": 2, "total_prefill_tokens": 9, "total_kv_read_tokens": 0, "rows": [[4, 0], [5, 0]]}
    decode = {"batch_size": 10, "total_kv_read_tokens": 20}
    path.write_text(json.dumps({"schema_version": 3, "prefill": [uneven], "decode": []}))
    arguments = ["--limits", limits, "--benchmark-points-file", str(path)]

    assert document(*arguments)["dropped_imbalanced"] == 1
    assert "left out: 1 point whose requests differ" in plan(*arguments).stdout
    assert document(*arguments, "--benchmark-collect-imbalanced")["expected_points"] == 1
    assert document(*arguments, DYN_FPM_BENCH_COLLECT_IMBALANCED="1")["expected_points"] == 1
    path.write_text(json.dumps({"schema_version": 3, "prefill": [], "decode": [decode]}))
    failed = plan(*arguments, code=3).stderr
    assert failed.count("\n") == 1
    assert "decode[0] (10 requests with 20 tokens of context) does not fit" in failed
    assert "max_num_running_reqs: needs 10, has 9" in failed


def test_a_phase_without_a_point_is_a_finding(tmp_path: Path) -> None:
    """GRID-34: The exit code says so, and `--explain` why."""
    path = tmp_path / "limits.json"
    path.write_text(json.dumps({**LIMITS, "capacity": {**LIMITS["capacity"], "max_model_len": 2}}))
    done = plan("--limits", str(path), "--explain", code=1)

    assert "no point of decode fits" in done.stderr
    assert "max_model_len: needs 4, has 2" in done.stdout


def test_the_cost_of_the_mock_and_of_any_engine(limits: str) -> None:
    """GRID-01: Passes are counted; their seconds are the mock's, the option's, or unknown."""
    mock = document("--benchmark-mode", "decode")["cost"]
    given = document("--limits", limits, "--seconds-per-pass", "0.5")["cost"]

    assert mock["seconds"] > mock["passes"] * 0.005
    assert given["seconds"] == given["passes"] * 0.5
    assert document("--limits", limits)["cost"]["seconds"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Input data was truncated"),
        (json.dumps({**LIMITS, "more": 1}), "unknown field `more`"),
        (json.dumps({"layout": LIMITS["layout"]}), "missing required field `capacity`"),
        ('{"\\u001b[31m": 1}', "?[31m"),
    ],
)
def test_a_file_of_limits_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    """GRID-20: One line names the option, the file and the field; nothing in it drives the terminal."""
    path = tmp_path / "limits.json"
    path.write_text(text)
    failed = plan("--limits", str(path), code=3)

    assert failed.stderr.startswith(f"forwardpass: --limits {path}: ")
    assert words in failed.stderr
    assert "\x1b" not in failed.stderr
    assert failed.stdout == ""


def test_a_strangers_artifact_does_not_drive_the_terminal(tmp_path: Path) -> None:
    """GRID-33: The digest and the name of an artifact are shown, not obeyed."""
    artifact = json.loads((GOLDEN / "vllm-cpu-bench-agg" / "benchmark_results.json").read_text())
    path = tmp_path / "a\x1b[31m.json"
    path.write_text(json.dumps({**artifact, "grid_digest": "\x1b[31m" * 99}))
    page = plan("--like", str(path)).stdout

    assert "\x1b" not in page
    assert "?[31m" in page


def test_the_mocks_plan_is_what_its_run_measures(tmp_path: Path) -> None:
    """GRID-33: `bench run --engine mock` has the grid that was planned for it, and takes about as long as
    was reckoned, in its own time; the warm-up comes on top.
    """
    path = tmp_path / "b.json"
    few = ["--prefill-max-new-token-samples", "3", "--prefill-max-kv-read-token-samples", "2",
           "--decode-max-kv-read-token-samples", "3", "--decode-max-batch-size-samples", "3"]  # fmt: skip
    planned = document("--engine", "mock", *few)
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "bench", "run", "--engine", "mock", *few,
         "--benchmark-output-path", str(path), "--quiet"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = json.loads(path.read_text())

    assert planned["grid_digest"] == ran["grid_digest"]
    assert document("--like", str(path))["grid_digest"] == ran["grid_digest"]
    elapsed = ran["timing"]["benchmark_elapsed_seconds"]
    assert 0.7 * elapsed < planned["cost"]["seconds"] < 1.1 * elapsed

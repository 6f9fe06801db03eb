"""NVIDIA Dynamo's own loader, merge and planner on the files of our runs.

These run where Dynamo is installed: ``make test-reference``. Its 1.6.1 does not know evidence of
measurements, engine identities and worker probes: it carries the first as it finds it, and has none of the
others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reference_loader import extract, has_loader, load

from forwardpass.testing.ports import free_port

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not has_loader(), reason="Dynamo is not installed"),
]
FEW = [
    *("--prefill-max-new-token-samples", "3", "--prefill-max-kv-read-token-samples", "2"),
    *("--decode-max-kv-read-token-samples", "3", "--decode-max-batch-size-samples", "3"),
    *("--prefix-max-batch-size-samples", "2"),
]
NEWER = {"engine", "rank_warmup_evidence", "warmup_evidence", "worker_probe_path"}
"""What 1.6.1 does not merge: it copies the first rank's, and knows no sidecar."""


def run(base: Path, *arguments: str, ranks: int, code: int = 0) -> dict[str, Any] | None:
    """Measure simulated ranks; return our merged document, if there is one. Its place is then free."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "forwardpass", "bench", "run", *FEW, "--dp", str(ranks), "--quiet"),
            *("--benchmark-output-path", str(base), *arguments),
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
        | {"DYN_FORWARDPASS_METRIC_PORT": str(free_port(6))},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    merged = base.with_name(f"{base.stem}_merged.json")
    if not merged.exists():
        return None
    document: dict[str, Any] = json.loads(merged.read_text())
    merged.unlink()
    return document


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what we, and what the reference, make of the files of four ranks."""
    base = tmp_path_factory.mktemp("whole") / "bench.json"
    ours = run(base, ranks=4)
    assert ours is not None
    theirs = load(base, 4)
    assert json.loads(base.with_name("bench_merged.json").read_text()) == theirs
    return ours, theirs


def test_four_ranks_are_taken_and_merged_alike(whole: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """ART-01, MERGE-14: The reference's launcher takes the four files of a run, and merges them into our
    document but for what it does not know; evidence of each pass arrives as we wrote it.
    """
    ours, theirs = whole
    different = {name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)}

    assert theirs["status"] == "complete"
    assert theirs["coverage"]["completed_points"] == len(theirs["results"]) == 4 * 19
    assert different == NEWER
    assert all("benchmark_measurement" in row["fpms"][0] for row in theirs["results"])


def test_the_planner_takes_every_pass(whole: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """ART-01: From the document that we serve its planner decodes every row of its phase, with our
    numbers.
    """
    ours, _ = whole
    for kind in ("prefill", "decode", ""):
        rows = [row for row in ours["results"] if kind in ("", row["point"]["point_type"])]
        passes = extract(ours, kind)

        assert rows
        assert [one.wall_time for one in passes] == [row["fpms"][0]["wall_time"] for row in rows]
        assert [one.scheduled_requests.sum_decode_kv_tokens for one in passes] == [
            row["fpms"][0]["scheduled_requests"]["sum_decode_kv_tokens"] for row in rows
        ]


def test_a_run_whose_time_was_up_is_taken(tmp_path: Path) -> None:
    """ART-01, MERGE-14: A partial run is partial for the reference too, with the same points."""
    base = tmp_path / "bench.json"
    ours = run(base, "--benchmark-timeout", "0.05", ranks=2, code=1)
    theirs = load(base, 2)

    assert ours is not None
    assert (theirs["status"], theirs["stop_reason"]) == ("partial", "timeout")
    assert theirs["coverage"] == ours["coverage"]
    assert theirs["iteration_groups"] == ours["iteration_groups"]


@pytest.mark.parametrize(("fault", "code"), [("wrong-shape=1@2", 1), ("chunked-prefill=0@2", 4)])
def test_what_we_do_not_merge_is_refused(tmp_path: Path, fault: str, code: int) -> None:
    """ART-11, MERGE-14: Runs with a skipped point, and those that failed, are refused by both."""
    base = tmp_path / "bench.json"
    assert run(base, "--fault", fault, ranks=2, code=code) is None

    with pytest.raises(RuntimeError, match="incomplete"):
        load(base, 2)

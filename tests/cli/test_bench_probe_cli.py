"""``forwardpass bench probe``: from replies on a command line to a verdict and a sidecar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forwardpass.artifact.merge import merge_ranks
from forwardpass.artifact.names import sidecar_path
from forwardpass.artifact.run import PathSource
from forwardpass.artifact.sidecar import Sidecar, read_sidecar, sidecar_beside
from forwardpass.testing.artifacts import made_run

COMMAND = [sys.executable, "-m", "forwardpass", "bench"]


def probe(path: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command on a merged file to its end."""
    return subprocess.run(
        [*COMMAND, "probe", str(path), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("DYN_")},
    )


def reply(rank: int, **changes: Any) -> dict[str, Any]:
    """Return what the one worker of a rank says."""
    return {
        "dp_rank": rank,
        "worker_rank": 0,
        "tp_rank": 0,
        "pp_rank": 0,
        "pcp_rank": 0,
        "attention_backends": {"layer.0": "FLASH"},
        "capture_errors": {},
        "mla_prefill_backend": None,
        "cudagraph_mode_resolved": "FULL",
        "cudagraph_capture_sizes_resolved": [1, 2],
        **changes,
    }


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """Write the files of a run of two ranks with one worker each, and merge them."""
    paths = [tmp_path / "results.json", tmp_path / "results_dp1.json"]
    for path, document in zip(paths, made_run(ranks=2), strict=True):
        document["engine"]["parallel"]["tensor_parallel_size"] = 1
        path.write_text(json.dumps(document))
    merge = merge_ranks([PathSource(path) for path in paths])
    merge.write()
    return merge.output


def written(path: Path) -> Sidecar:
    """Return the sidecar beside a merged file, which has to be of the same run."""
    found = sidecar_beside(sidecar_path(path), json.loads(path.read_text()))
    assert isinstance(found, Sidecar)
    return found


def test_all_agree(merged: Path, tmp_path: Path) -> None:
    """PROBE-07, PROBE-09: Replies of every worker that agree are exit code 0, a verdict and a valid sidecar;
    the merged file keeps its bytes.
    """
    before = merged.read_bytes()
    replies = tmp_path / "replies.json"
    replies.write_text(json.dumps([reply(0), reply(1)]))
    done = probe(merged, "--replies", str(replies), "--json")
    found = json.loads(done.stdout)
    sidecar = written(merged)
    validated = subprocess.run(
        [*COMMAND, "validate", "--strict", str(merged), found["sidecar"]], check=False, capture_output=True
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert (found["resolution"], found["sidecar"]) == ("worker_probe", str(sidecar_path(merged)))
    assert found["probe"] == json.loads(sidecar_path(merged).read_text())
    assert sidecar.merged.worker_probe.coverage.complete
    assert {rank: view.resolution for rank, view in sidecar.ranks.items()} == {
        "0": "worker_probe", "1": "worker_probe"
    }  # fmt: skip
    assert merged.read_bytes() == before
    assert validated.returncode == 0, validated.stdout


@pytest.mark.parametrize(
    ("replies", "resolution", "words"),
    [
        ([reply(0)], "worker_probe_partial", "1 of 2 workers, none of rank 1"),
        (reply(0), "worker_probe_partial", "rank 0: worker_probe: 1 of 1 workers"),
        (
            [reply(0), reply(1, attention_backends={"layer.0": "TRITON"})],
            "worker_probe_mixed",
            'workers differ in attention_backends: {"layer.0": ["FLASH", "TRITON"]}',
        ),
        (
            [reply(0), reply(0), reply(1)],
            "worker_probe_partial",
            "reply 1: 2 replies of worker 0 of DP rank 0",
        ),
        ([reply(7)], "worker_probe_unobserved", "0 of 2 workers"),
        (
            [reply(0), {**reply(1), "tp_rank": -1}],
            "worker_probe_partial",
            "reply 1: tp_rank is no whole number",
        ),
        ([], "probe_failed: no worker replied", "0 of 2 workers"),
        (["x"], "probe_failed: every reply has issues", "reply 0: expected an object, found a str"),
    ],
)
def test_what_is_not_complete_is_a_finding(merged: Path, replies: Any, resolution: str, words: str) -> None:
    """PROBE-02, PROBE-05 to PROBE-07: Missing, differing, double and improper replies each have their verdict
    and a line that says what is wrong, and exit code 1; the sidecar is written all the same.
    """
    done = probe(merged, "--replies", "-", given=json.dumps(replies))

    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"{resolution}: ")
    assert words in done.stdout
    assert written(merged).merged.resolution == resolution


def test_a_reply_that_is_no_json_is_kept(merged: Path) -> None:
    """PROBE-01: NaN in a reply is kept as text with an issue, and costs the other replies nothing."""
    given = f'[{{"dp_rank": NaN}}, {json.dumps(reply(1))}]'
    done = probe(merged, "--replies", "-", given=given)
    first, second = written(merged).merged.worker_probe.responses

    assert done.returncode == 1
    assert first.response == {"unserializable_type": "dict", "repr": "{'dp_rank': nan}"}
    assert (first.issues, second.issues) == (["not a JSON value"], [])


@pytest.mark.parametrize(
    ("arguments", "resolution"),
    [
        (("--failed", "TimeoutError"), "probe_failed: TimeoutError"),
        (
            ("--skipped", "a class of the user's own (my.Ext)"),
            "probe_skipped: a class of the user's own (my.Ext)",
        ),
    ],
)
def test_a_call_that_was_not_answered(merged: Path, arguments: tuple[str, str], resolution: str) -> None:
    """PROBE-07: A failure and a skip are the verdict of all views, with no reply."""
    done = probe(merged, *arguments)
    sidecar = written(merged)

    assert done.returncode == 1
    assert {sidecar.merged.resolution, *(view.resolution for view in sidecar.ranks.values())} == {resolution}
    assert sidecar.merged.worker_probe.error == resolution
    assert sidecar.merged.worker_probe.responses == []


def test_the_ranks_of_the_simulated_engine_are_asked(merged: Path) -> None:
    """PROBE-09: ``--engine mock`` asks a process of each rank, and all of them reply."""
    done = probe(merged, "--engine", "mock")
    sidecar = written(merged)

    assert done.returncode == 0, done.stderr
    assert [one.response["dp_rank"] for one in sidecar.merged.worker_probe.responses] == [0, 1]
    assert sidecar.merged.attention
    assert sidecar.merged.attention.backend_resolved == "SIMULATED"


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.parametrize(
    "arguments", [("--replies", "nonexistent.json"), ("--replies", "-"), ("--failed", "x")]
)
def test_a_stale_sidecar_never_survives(merged: Path, arguments: tuple[str, str], damage: bool) -> None:
    """PROBE-11: A sidecar of another run, or one that cannot be read, is gone afterwards, whatever comes of
    the evaluation: replies that are not there, no JSON, a verdict.
    """
    stale = sidecar_path(merged)
    probe(merged, "--failed", "of an earlier run")
    document = json.loads(stale.read_text())
    stale.write_text("{" if damage else json.dumps({**document, "run_id": "0" * 32}))
    done = probe(merged, *arguments, given="{")

    assert done.returncode == (1 if "--failed" in arguments else 3)
    assert stale.exists() == ("--failed" in arguments)
    if stale.exists():
        assert written(merged).merged.resolution == "probe_failed: x"


def test_replies_that_cannot_be_read_cost_nothing_of_this_run(merged: Path) -> None:
    """PROBE-11: A mistyped file name leaves the sidecar of the same run as it was, and is exit code 3."""
    probe(merged, "--failed", "first")
    before = sidecar_path(merged).read_bytes()
    done = probe(merged, "--replies", "nonexistent.json")

    assert done.returncode == 3
    assert "nonexistent.json: cannot be read" in done.stderr
    assert sidecar_path(merged).read_bytes() == before


def test_without_an_engine_there_is_nothing_to_resolve(merged: Path) -> None:
    """PROBE-09, PROBE-11: No engine block, no sidecar, and an earlier one is removed; exit code 1 and a line
    that says so.
    """
    probe(merged, "--failed", "first")
    document = json.loads(merged.read_text())
    del document["engine"], document["worker_probe_path"]
    merged.write_text(json.dumps(document))
    done = probe(merged, "--engine", "mock", "--json")

    assert done.returncode == 1
    assert json.loads(done.stdout)["sidecar"] is None
    assert "no engine block" in done.stderr
    assert not sidecar_path(merged).exists()


def test_only_a_sound_merged_file_is_taken(merged: Path, tmp_path: Path) -> None:
    """PROBE-09: A rank's file is exit code 3; a merged file that no merge would give lists its problems, exit
    code 1; nothing is written for either.
    """
    rank = probe(tmp_path / "results.json", "--failed", "x")
    assert rank.returncode == 3
    assert "expected a merged file" in rank.stderr

    document = json.loads(merged.read_text())
    document["dp"]["source_ranks"] = [0, 0]
    merged.write_text(json.dumps(document))
    done = probe(merged, "--failed", "x")
    assert done.returncode == 1
    assert "$.dp.source_ranks" in done.stdout
    assert list(tmp_path.glob("*probe*")) == []


def test_a_sidecar_is_whole_or_not_there(merged: Path) -> None:
    """PROBE-09: Where its name is taken by something else nothing is written, and the line names the path."""
    sidecar_path(merged).symlink_to(merged)
    done = probe(merged, "--failed", "x")

    assert done.returncode == 3
    assert "is a symbolic link" in done.stderr
    assert json.loads(merged.read_text())["artifact_type"] == "merged"


def test_a_run_keeps_what_its_ranks_said(tmp_path: Path) -> None:
    """PROBE-09: After ``bench run`` the sidecar has what each rank's own process said at its end."""
    path = tmp_path / "bench.json"
    few = ["--decode-max-batch-size-samples", "2", "--decode-max-kv-read-token-samples", "2"]
    done = subprocess.run(
        [*COMMAND, "run", "--benchmark-mode", "decode", *few, "--benchmark-output-path", str(path), "--json"],
        check=False,
        capture_output=True,
        timeout=60,
    )
    sidecar = read_sidecar(Path(json.loads(done.stdout)["worker_probe"]))

    assert sidecar.merged.resolution == "worker_probe"
    assert [one.response["dp_rank"] for one in sidecar.merged.worker_probe.responses] == [0]

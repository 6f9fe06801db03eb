"""A real vLLM engine on the CPU measures itself through its own scheduler, then serves as if it had not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stream_subscriber import Subscriber

from forwardpass.artifact.validate import validate
from forwardpass.testing.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "bench_inprocess.py"
LIMIT_SECONDS = 350
SMALL = {
    "prefill_max_new_token_samples": 3,
    "prefill_max_kv_read_token_samples": 3,
    "decode_max_kv_read_token_samples": 3,
    "decode_max_batch_size_samples": 4,
    "prefix_max_batch_size_samples": 2,
}
MEASURED = ["plain", "async", "seeds"]
TOO_LONG = {"batch_size": 1, "total_prefill_tokens": 4000, "total_kv_read_tokens": 0}


class Run:
    """What the cases said, the files that they left, and one case's stream."""

    def __init__(self, said: dict[str, dict[str, Any]], folder: Path, stream: Subscriber) -> None:
        self.said = said
        self.folder = folder
        self.stream = stream

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def document(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.file(name).read_bytes())
        return found


@pytest.fixture(scope="module")
def run(
    vllm: object,
    tiny_model: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Measure one engine after the other in one process."""
    folder, port = tmp_path_factory.mktemp("bench"), free_port()

    def case(name: str, mode: str = "agg", **more: Any) -> dict[str, Any]:
        benchmark = {"mode": mode, "output_path": str(folder / f"{name}.json"), **SMALL}
        usual = {"DYN_BENCH_PREFILL_REAL_SEED": "off", "DYN_BENCH_GIANT_KV_THRESHOLD": "1000000"}
        return {
            "name": name,
            "benchmark": benchmark | more.pop("benchmark", {}),
            "env": usual | more.pop("env", {}),
            **more,
        }

    points = {"schema_version": 1, "prefill": [TOO_LONG], "decode": []}
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    cases = [
        case("plain", env={"DYN_FORWARDPASS_METRIC_PORT": str(port), "DYN_FPM_WORKER_ID": "4711"}),
        {"name": "driver", "env": {"DYN_FORWARDPASS_METRIC_PORT": ""}},
        case("async", **{"async": True}),
        {"name": "async driver", "async": True},
        case(
            "seeds",
            env={"DYN_BENCH_PREFILL_REAL_SEED": "on", "DYN_BENCH_GIANT_KV_THRESHOLD": "100"},
            options={"cudagraph_metrics": True},
        ),
        case("timeout", benchmark={"timeout": 0.001}),
        case("infeasible", benchmark={"points": points}),
        case("stopped", stop_after=30),
        case("drafts", options={"speculative_config": drafts}),
    ]
    (folder / "infeasible.json").write_text("of an earlier run")
    stream = Subscriber(port)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), tiny_model, *map(json.dumps, cases)],
        env=vllm_environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    stream.stop()
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    said = {each["name"]: each for each in map(json.loads, lines)}
    assert list(said) == [each["name"] for each in cases], done.stderr[-3000:]
    return Run(said, folder, stream)


@pytest.mark.parametrize("name", ["driver", "async driver"])
def test_the_verbs_on_an_engine_that_computes(run: Run, name: str) -> None:
    """RUN-60, BVLLM-10, BVLLM-12: Every promise of a driver is kept on a real engine, one or two steps in
    flight.
    """
    assert run.said[name]["failed"] == {}
    assert run.said[name]["checks"] == 9


@pytest.mark.parametrize("name", MEASURED)
def test_a_whole_run_is_valid_to_a_strict_reader(run: Run, name: str) -> None:
    """ART-01, BVLLM-01: All points of the grid were measured, and nothing is wrong with the file."""
    found = validate([run.file(name)], strict=True)

    assert [problem.text() for problem in found.problems] == []
    document = run.document(name)
    assert (document["status"], document["valid"]) == ("complete", True)
    assert document["coverage"]["completed_points"] == document["coverage"]["expected_points"] >= 20
    assert {row["point"]["point_type"] for row in document["results"]} == {"prefill", "decode"}


@pytest.mark.parametrize("name", MEASURED)
def test_each_pass_is_timed_at_its_own_coordinate(run: Run, name: str) -> None:
    """RUN-20, RUN-30, PIT-07: A prefill has one sample from its schedule on; a decode an admission that reads
    a token less for each request, then steady steps from output to output.
    """
    for row in run.document(name)["results"]:
        point, (fpm,) = row["point"], row["fpms"]
        raw = fpm["benchmark_measurement"]["raw_fpms"]
        bases = [each["benchmark_sample"]["timing"]["basis"] for each in raw]
        assert all(each["wall_time"] > 0 for each in raw)
        if point["point_type"] == "prefill":
            assert bases == ["schedule_to_output"]
            continue
        read = [each["scheduled_requests"]["sum_decode_kv_tokens"] for each in raw]
        assert bases == ["schedule_to_output"] + ["inter_output"] * (len(raw) - 1)
        batch, total = point["batch_size"], point["total_kv_read_tokens"]
        assert read == [total + batch * (step - 1) for step in range(len(raw))]


def test_large_points_repeat_their_steady_step(run: Run) -> None:
    """RUN-21: From the threshold on a decode has three steady steps, where the model's length allows."""
    lengths = {len(samples(row)) for row in run.document("seeds")["results"] if is_large_decode(row)}

    assert 4 in lengths


def samples(row: dict[str, Any]) -> list[Any]:
    return list(row["fpms"][0]["benchmark_measurement"]["raw_fpms"])


def is_large_decode(row: dict[str, Any]) -> bool:
    return row["point"]["point_type"] == "decode" and row["point"]["total_kv_read_tokens"] >= 100


def test_prefixes_are_computed_for_real_where_that_was_asked_for(run: Run) -> None:
    """RUN-12, RUN-50: Seeds and shapes are in the ledger as completed warm-ups; otherwise prefixes are made
    up.
    """
    kinds = {name: [each["kind"] for each in ledger(run, name)] for name in MEASURED}

    assert {"global", "real_prefix_seed", "real_prefix_shape"} <= set(kinds["seeds"])
    assert not any(kind.startswith("real") for kind in kinds["plain"] + kinds["async"])
    assert {each["status"] for name in MEASURED for each in ledger(run, name)} == {"completed"}


def ledger(run: Run, name: str) -> list[dict[str, Any]]:
    return list(run.document(name)["warmup_evidence"]["records"])


def test_dispatch_is_what_the_model_runner_says(run: Run) -> None:
    """BVLLM-31, EVID-15: With graph statistics an eager pass was observed as such; without them nothing is
    known.
    """
    observed = dispatches(run, "seeds")

    assert {each["runtime_mode"] for each in observed} == {"NONE"}
    assert all(each["num_paddings"] == 0 < each["num_unpadded_tokens"] for each in observed)
    assert {each["status"] for each in dispatches(run, "plain")} == {"unavailable"}
    assert {each["runtime_mode"] for each in dispatches(run, "plain")} == {None}


def dispatches(run: Run, name: str) -> list[dict[str, Any]]:
    rows = run.document(name)["results"]
    return [sample["benchmark_sample"]["cudagraph"] for row in rows for sample in samples(row)]


def test_the_engine_is_described(run: Run) -> None:
    """BVLLM-30: The file says which engine was measured, as far as it is configured."""
    engine = run.document("async")["engine"]

    assert "capture_error" not in engine
    assert engine["scheduler"] == {
        "max_num_batched_tokens": 128,
        "max_num_seqs": 8,
        "async_scheduling": True,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
    }
    assert engine["model"]["architectures"] == ["Qwen3ForCausalLM"]
    assert [group["type"] for group in engine["kv_cache"]["groups"]] == ["FullAttentionSpec"]
    assert engine["versions"]["vllm"] == sys.modules["vllm"].__version__
    assert engine["parallel"]["tensor_parallel_size"] == 1


@pytest.mark.parametrize("name", [*MEASURED, "timeout"])
def test_what_is_served_afterwards_is_unchanged(run: Run, name: str) -> None:
    """BVLLM-13, BVLLM-21, RUN-02: The first requests find nothing cached, get their tokens, and the benchmark
    is gone.
    """
    said = run.said[name]

    assert said["cached"] == [0, 0, 0]
    assert said["generated"] == [5, 5, 5]
    assert not said["left"]
    assert said["async"] == (name == "async")


def test_the_stream_is_silent_until_the_benchmark_has_ended(run: Run) -> None:
    """BVLLM-14, BVLLM-20: No pass of the benchmark is published; those that serve are numbered from 0."""
    messages = [metrics for _, metrics in run.stream.messages]
    scheduled = [metrics.scheduled_requests for metrics in run.stream.passes]

    assert [metrics.counter_id for metrics in messages] == list(range(len(messages)))
    assert sum(each.sum_prefill_tokens for each in scheduled) == 300
    assert sum(each.num_decode_requests for each in scheduled) == 3 * 4
    assert {metrics.worker_id for metrics in messages} == {"4711"}
    assert run.stream.refused == []


def test_a_timeout_keeps_what_was_measured(run: Run) -> None:
    """RUN-46: At least one point is measured; the file is partial and usable, and the engine serves."""
    document = run.document("timeout")

    assert (document["status"], document["stop_reason"]) == ("partial", "timeout")
    assert document["usable"]
    assert 1 <= document["coverage"]["completed_points"] < document["coverage"]["expected_points"]
    assert validate([run.file("timeout")], strict=True).total == 0


def test_what_cannot_be_measured_ends_the_engine_with_its_reason(run: Run) -> None:
    """BVLLM-03, BVLLM-22, RUN-43, PIT-41: An infeasible point is named with the limit and both numbers; the
    file of an earlier run has given way to one that says that this run failed.
    """
    error = run.said["infeasible"]["error"]

    assert "prefill[0]" in error
    assert "max_num_scheduled_tokens: needs 4000, has 128" in error
    document = run.document("infeasible")
    assert (document["status"], document["usable"]) == ("failed", False)
    assert "needs 4000, has 128" in document["error"]


def test_decodes_with_drafts_are_refused(run: Run) -> None:
    """BVLLM-02: Speculative decoding cannot be measured with decodes; the engine does not start, nothing is
    written.
    """
    assert "speculative decoding" in run.said["drafts"]["error"]
    assert not run.file("drafts").exists()


def test_an_engine_that_is_shut_down_says_so(run: Run) -> None:
    """BVLLM-23: The file of a run that was cut off has what was measured, and says that it failed."""
    document = run.document("stopped")

    assert run.said["stopped"] == {"name": "stopped", "steps": 30}
    assert (document["status"], document["usable"]) == ("failed", False)
    assert "shut down" in document["error"]
    assert document["coverage"]["completed_points"] == len(document["results"]) > 0

"""What the engine is handed, what it makes of it, and the names of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.artifact.names import merged_path, rank_path, sidecar_path
from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.engine_config import (
    SAMPLE_KEYS,
    SchedulerFacts,
    check_scheduler,
    effective_config,
    from_engine,
    to_engine,
)
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.manifest import points_from
from forwardpass.bench.output_paths import LoadBalancing, launch_output_path, managed_ranks
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, ManifestError

GOLDEN = Path(__file__).parents[2] / "golden"
POINTS = points_from(
    {
        "schema_version": 3,
        "prefill": [
            {"batch_size": 2, "total_prefill_tokens": 9, "total_kv_read_tokens": 0, "rows": [[4, 0], [5, 0]]},
            {
                "batch_size": 2,
                "total_prefill_tokens": 9,
                "total_kv_read_tokens": 0,
                "partition": {"axis": "new", "high_count": 1, "fraction": 0.25},
            },
        ],
        "decode": [],
    }
)
ALWAYS = {
    "mode", "randomize_kda_state", "hybrid_live_state", "warmup_iterations", "output_path", "timeout",
    "max_batch_size", "collect_imbalanced", "worker_extension_installed",
}  # fmt: skip
configs = st.builds(
    BenchConfig,
    mode=st.sampled_from(BenchMode),
    points=st.none(),
    samples=st.builds(
        SampleLimits,
        prefill_new_tokens=st.integers(2, 99),
        prefill_kv_reads=st.integers(2, 99),
        prefill_batches=st.integers(1, 99),
        decode_kv_reads=st.integers(2, 99),
        decode_batches=st.integers(2, 99),
    ),
    warmup_iterations=st.integers(0, 99),
    output_path=st.just("/x/y.json"),
    timeout_seconds=st.integers(1, 9999) | st.just(0.5),
    max_batch_size=st.none() | st.integers(1, 99),
    collect_imbalanced=st.booleans(),
    randomize_kda_state=st.booleans(),
    hybrid_live_state=st.booleans(),
    worker_extension_installed=st.booleans(),
    user_worker_extension_cls=st.none() | st.just("a.b.C"),
    cudagraph_metrics_auto_enabled=st.booleans(),
)


@given(configs, st.booleans())
def test_settings_survive_the_hand_over(config: BenchConfig, explicit: bool) -> None:
    """BCONF-20, BCONF-21, BCONF-22: As JSON there and back they are the same, with no key but those that are
    promised.
    """
    if explicit:
        config = msgspec.structs.replace(config, points=POINTS, samples=SampleLimits())
    handed = to_engine(config)
    optional = {"user_worker_extension_cls"} if config.user_worker_extension_cls else set()
    optional |= {"cudagraph_metrics_auto_enabled"} if config.cudagraph_metrics_auto_enabled else set()

    assert set(handed) == ALWAYS | optional | ({"points"} if explicit else set(SAMPLE_KEYS))
    assert from_engine(json.loads(json.dumps(handed))) == config


def test_points_are_handed_over_without_nulls() -> None:
    """BCONF-20: An entry has the keys that its file gave it."""
    handed = to_engine(BenchConfig(BenchMode.AGG, points=POINTS))["points"]

    assert [set(entry) - {"batch_size", "total_prefill_tokens", "total_kv_read_tokens"} for entry in
            handed["prefill"]] == [{"rows"}, {"partition"}]  # fmt: skip
    assert json.loads(json.dumps(handed)) == handed


def test_texts_are_numbers_and_truths() -> None:
    """BCONF-22, PIT-45: Numbers as text, truths by their words, unknown keys ignored, null and absent the
    default.
    """
    found = from_engine(
        {
            "mode": "decode",
            "timeout": "60",
            "warmup_iterations": " 3 ",
            "max_batch_size": None,
            "collect_imbalanced": "false",
            "randomize_kda_state": "Yes",
            "decode_max_batch_size_samples": "7",
            "of_tomorrow": [1],
        }
    )

    assert (found.timeout_seconds, found.warmup_iterations, found.max_batch_size) == (60, 3, None)
    assert (found.collect_imbalanced, found.randomize_kda_state, found.hybrid_live_state) == (
        False,
        True,
        False,
    )
    assert found.samples == SampleLimits(decode_batches=7)
    assert from_engine({"mode": "agg", "timeout": 120.0}).timeout_seconds == 120


BAD: list[tuple[str, Any]] = [
    ("mode", None),
    ("mode", "all"),
    ("mode", 3),
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", float("nan")),
    ("timeout", True),
    ("timeout", [1]),
    ("warmup_iterations", -1),
    ("warmup_iterations", 1.5),
    ("warmup_iterations", "x"),
    ("max_batch_size", 0),
    ("collect_imbalanced", "flase"),
    ("collect_imbalanced", 1),
    ("collect_imbalanced", {}),
    ("output_path", 7),
    *((key, least - 1) for key, (_, least) in SAMPLE_KEYS.items()),
]


@pytest.mark.parametrize(("key", "value"), BAD)
def test_the_engine_refuses_what_is_no_value(key: str, value: Any) -> None:
    """BCONF-03, BCONF-22, PIT-45: The key, what was found and what is accepted; whoever handed it over."""
    with pytest.raises(ConfigError) as caught:
        from_engine({"mode": "agg", key: value})

    assert caught.value.variable == f"benchmark config {key}"
    assert caught.value.value is value
    assert caught.value.accepted


def test_points_are_checked_again_in_the_engine() -> None:
    """BCONF-04, BCONF-22: A document of points from elsewhere has to follow the rules of a points file."""
    with pytest.raises(ManifestError):
        from_engine({"mode": "agg", "points": {"schema_version": 9, "prefill": [], "decode": []}})


@pytest.mark.parametrize(
    ("mode", "facts", "key"),
    [
        ("agg", SchedulerFacts(speculative_decoding=True), "mode"),
        ("decode", SchedulerFacts(pipeline_parallel_size=2), "mode"),
        ("prefill", SchedulerFacts(speculative_decoding=True, pipeline_parallel_size=2), None),
        ("agg", SchedulerFacts(), None),
    ],
)
def test_the_engine_refuses_to_decode_where_it_cannot(
    mode: str, facts: SchedulerFacts, key: str | None
) -> None:
    """BCONF-23: Speculative decoding and pipeline stages exclude decode points, and only those."""
    config = BenchConfig(BenchMode(mode))
    if key is None:
        check_scheduler(config, facts)
        return
    with pytest.raises(ConfigError) as caught:
        check_scheduler(config, facts)

    assert caught.value.variable == f"benchmark config {key}"


def test_the_engine_refuses_both_states_together() -> None:
    """BCONF-06, BCONF-23: Whoever handed both over."""
    config = BenchConfig(BenchMode.DECODE, randomize_kda_state=True, hybrid_live_state=True)
    with pytest.raises(ConfigError) as caught:
        check_scheduler(config, SchedulerFacts(random_kda_worker=True))

    assert caught.value.variable == "benchmark config hybrid_live_state"


def test_random_states_need_their_workers() -> None:
    """BCONF-23: Without the worker class that fills recurrent states the engine refuses."""
    config = BenchConfig(BenchMode.DECODE, randomize_kda_state=True)

    check_scheduler(config, SchedulerFacts(random_kda_worker=True))
    with pytest.raises(ConfigError):
        check_scheduler(config, SchedulerFacts())


@pytest.mark.parametrize("folder", ["vllm-cpu-bench-agg", "vllm-cpu-bench-points", "vllm-cpu-bench-timeout"])
def test_the_artifacts_config_is_the_references(folder: str) -> None:
    """BCONF-24: From the reference's own `config` come the same keys and values in the same order."""
    theirs = json.loads((GOLDEN / folder / "benchmark_results.json").read_text())["config"]
    ours = effective_config(from_engine(theirs), theirs["output_path"])

    assert list(ours.items()) == list(theirs.items())


def test_names_of_files() -> None:
    """BCONF-30, PIT-02: Ranks, merged files and what workers answered, also where a folder has a dot."""
    base = Path("/a.b/results.json")
    merged = Path("/a.b/results_merged.json")

    assert [rank_path(base, 0), rank_path(base, 3)] == [base, Path("/a.b/results_dp3.json")]
    assert merged_path(base) == merged
    assert sidecar_path(merged) == Path("/a.b/results_merged_worker_probe.json")
    assert merged_path(Path("results"), 4) == Path("results_dp4_merged")


@pytest.mark.parametrize(
    ("path", "worker", "expected"),
    [
        ("/tmp/benchmark_results.json", "7587891234567890", "/tmp/benchmark_results_34567890.json"),
        ("/tmp/benchmark_results.json", "../../x", "/tmp/benchmark_results_______x.json"),
        ("/tmp/benchmark_results.json", "", None),
        ("/tmp/mine.json", "123", None),
    ],
)
def test_the_default_path_is_made_a_launchs_own(path: str, worker: str, expected: str | None) -> None:
    """BCONF-31: Only the default gets the end of the worker's id, and an id leads to no other folder."""
    assert launch_output_path(path, worker) == expected


def test_which_ranks_a_launcher_waits_for() -> None:
    """BCONF-32, PIT-44: One, those of the node, or all."""

    def ranks(balancing: LoadBalancing) -> list[int]:
        return list(managed_ranks(balancing, first_rank=4, local_size=2, size=8))

    assert ranks(LoadBalancing.EXTERNAL) == [4]
    assert ranks(LoadBalancing.HYBRID) == [4, 5]
    assert list(managed_ranks(LoadBalancing.INTERNAL, first_rank=0, local_size=2, size=8)) == list(range(8))


def environment(**texts: str) -> BenchEnvironment:
    return BenchEnvironment.load(Sources(texts))


def test_the_environments_defaults() -> None:
    """BCONF-10, BCONF-11, BCONF-12: Nothing given, and blank texts, are the defaults."""
    names = ["DYN_BENCH_PREFILL_REAL_SEED", "DYN_BENCH_KV_WARMUP", "DYN_FPM_BENCH_COLLECT_IMBALANCED",
             "DYN_BENCH_PREFILL_CONTENT", "DYN_BENCH_KV_WARMUP_DATASET", "DYN_FPM_GC_POLICY"]  # fmt: skip
    found = environment()

    assert environment(**dict.fromkeys(names, " ")) == found
    assert (found.content_seed, found.prefill_content, found.pool_tag) == ("0", "random", "")
    assert (found.prefill_real_seed, found.kv_warmup, found.collect_imbalanced) == (False, True, None)
    assert (found.giant_kv_threshold, found.giant_kv_repeats) == (1_000_000, 3)
    assert found.dataset.sha256 is not None
    assert found.dataset.sha256.startswith("35f0e213")
    assert found.dataset.cache_dir == "/tmp/fpm_datasets"
    assert (found.freeze_garbage, found.freeze_interval_seconds) == (False, 60)


@pytest.mark.parametrize(
    "name", ["DYN_BENCH_PREFILL_REAL_SEED", "DYN_BENCH_KV_WARMUP", "DYN_FPM_BENCH_COLLECT_IMBALANCED"]
)
def test_a_truth_that_is_none_is_an_error(name: str) -> None:
    """BCONF-10, PIT-45: A typing mistake never reads as off, or as on."""
    field = {"DYN_BENCH_PREFILL_REAL_SEED": "prefill_real_seed", "DYN_BENCH_KV_WARMUP": "kv_warmup"}
    for text, value in (("TRUE", True), ("on", True), ("off", False), ("No", False)):
        assert getattr(environment(**{name: text}), field.get(name, "collect_imbalanced")) is value
    with pytest.raises(ConfigError) as caught:
        environment(**{name: "fasle"})

    assert caught.value.variable == name


def test_a_seed_is_text() -> None:
    """BCONF-10: Any text is a seed, blanks and all; bytes that are none would fit no artifact."""
    assert environment(DYN_BENCH_CONTENT_SEED=" \u00e4 ").content_seed == " \u00e4 "
    with pytest.raises(ConfigError) as caught:
        environment(DYN_BENCH_CONTENT_SEED="\udcff")

    assert caught.value.variable == "DYN_BENCH_CONTENT_SEED"


def test_what_prompts_are_made_of(caplog: pytest.LogCaptureFixture) -> None:
    """BCONF-11: Two words choose real text; anything else is random, and said to be if it is not known."""
    kinds = [environment(DYN_BENCH_PREFILL_CONTENT=text).prefill_content
             for text in ("sharegpt", "sharegpt_chain", "random", "ShareGPT")]  # fmt: skip

    assert kinds == ["sharegpt", "sharegpt_chain", "random", "random"]
    assert len(caplog.messages) == 1


def test_where_conversations_come_from() -> None:
    """BCONF-12: The known digest is that of the default file alone; the cache lies beside Hugging Face's."""
    digest = "A" * 64
    own = environment(DYN_BENCH_KV_WARMUP_DATASET="/data/x.json", HF_HOME="/cache/huggingface/").dataset

    assert (own.sha256, own.cache_dir) == (None, "/cache/fpm_datasets")
    assert environment(DYN_BENCH_KV_WARMUP_SHA256=digest).dataset.sha256 == "a" * 64
    assert environment(DYN_BENCH_KV_WARMUP_CACHE_DIR="/c", HF_HOME="/h/x").dataset.cache_dir == "/c"
    with pytest.raises(ConfigError):
        environment(DYN_BENCH_KV_WARMUP_SHA256="abc")


@pytest.mark.parametrize(("text", "collected"), [("1", True), ("off", False), ("", True)])
def test_the_environment_overrides_options(text: str, collected: bool) -> None:
    """BCONF-13: Uneven points are collected, or not, as the override says, whatever the option does."""
    config = BenchConfig(BenchMode.AGG, collect_imbalanced=True)
    found = environment(DYN_FPM_BENCH_COLLECT_IMBALANCED=text).applied_to(config)

    assert found.collect_imbalanced is collected
    assert found.output_path == config.output_path
    assert (
        environment(DYN_FPM_BENCHMARK_OUTPUT_PATH="/x/y.json").applied_to(config).output_path == "/x/y.json"
    )


@pytest.mark.parametrize(("text", "seconds"), [("0.2", 1), ("5", 5), ("soon", 60), ("-1", 60)])
def test_an_interval_that_is_none_is_the_default(text: str, seconds: float) -> None:
    """BCONF-14: The policy works with any text of the interval; repeats below 1 are 1."""
    found = environment(
        DYN_FPM_GC_POLICY="freeze", DYN_FPM_GC_FREEZE_INTERVAL_S=text, DYN_BENCH_GIANT_KV_REPEATS="0"
    )

    assert (found.freeze_garbage, found.freeze_interval_seconds) == (True, seconds)
    assert found.giant_kv_repeats == 1

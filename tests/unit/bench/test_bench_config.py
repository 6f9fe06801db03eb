"""How options and variables become the settings of a self-benchmark, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.bench.config import BenchConfig, BenchMode, LaunchFacts, check_launch, load_bench_config
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.points import Phase
from forwardpass.config import bench_variables as v
from forwardpass.config.settings import Sources
from forwardpass.config.variables import TABLE
from forwardpass.errors import ConfigError, ManifestError

MODE = {"DYN_BENCHMARK_MODE": "agg"}
POINTS = {"schema_version": 1, "prefill": [], "decode": [{"batch_size": 2, "total_kv_read_tokens": 64}]}


def loaded(env: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None) -> BenchConfig:
    """Return the settings that variables and flags give beside the mode."""
    found = load_bench_config(Sources({**MODE, **(env or {})}, flags))
    assert found is not None
    return found


def refused(env: Mapping[str, str], flags: Mapping[str, str] | None = None) -> ConfigError:
    """Return the error that they give."""
    with pytest.raises(ConfigError) as caught:
        load_bench_config(Sources(env, flags))
    return caught.value


def outcome(sources: Sources) -> tuple[BenchConfig | None, str | None]:
    """Return the settings, or the name that is refused."""
    try:
        return load_bench_config(sources), None
    except ConfigError as error:
        return None, error.variable


def points_file(folder: Path) -> str:
    path = folder / "points.json"
    path.write_text(json.dumps(POINTS))
    return str(path)


def test_the_defaults_are_the_references() -> None:
    """BCONF-01, BCONF-03: With nothing but a mode every setting has the reference's default."""
    assert loaded() == BenchConfig(
        BenchMode.AGG,
        samples=SampleLimits(64, 16, 3, 128, 128),
        warmup_iterations=5,
        output_path="/tmp/benchmark_results.json",
        timeout_seconds=900,
    )
    assert BenchMode.AGG.phases == (Phase.PREFILL, Phase.DECODE)
    assert (BenchMode.PREFILL.phases, BenchMode.DECODE.phases) == ((Phase.PREFILL,), (Phase.DECODE,))


def test_every_variable_stands_in_the_table() -> None:
    """BCONF-01: The table of all variables has those of the self-benchmark; an option is named as its
    variable is.
    """
    assert set(v.BENCH_TABLE) <= set(TABLE)
    assert len({row.name for row in TABLE}) == len(TABLE)
    assert v.OPTIONS["DYN_BENCHMARK_MODE"] == "--benchmark-mode"
    assert v.OPTIONS["DYN_PREFILL_MAX_NEW_TOKEN_SAMPLES"] == "--prefill-max-new-token-samples"
    assert v.OPTIONS["DYN_BENCHMARK_DECODE_LENGTH_GRANULARITY"] == "--benchmark-decode-length-granularity"


def test_an_option_beats_its_variable() -> None:
    """BCONF-01: What a flag says counts, and where it is silent the variable does."""
    env = {"DYN_BENCHMARK_WARMUP_ITERATIONS": "7", "DYN_BENCHMARK_TIMEOUT": "60"}
    found = loaded(env, {"DYN_BENCHMARK_WARMUP_ITERATIONS": "0"})

    assert (found.warmup_iterations, found.timeout_seconds) == (0, 60)


@pytest.mark.parametrize("env", [{}, {"DYN_BENCHMARK_MODE": ""}, {"DYN_BENCHMARK_TIMEOUT": "x"}])
def test_without_a_mode_there_is_no_benchmark(env: dict[str, str]) -> None:
    """BCONF-02: Then nothing else is looked at."""
    assert load_bench_config(Sources(env)) is None


def test_a_points_file_needs_a_mode() -> None:
    """BCONF-02: A points file alone is refused under the name that it was given by."""
    name = "DYN_BENCHMARK_POINTS_FILE"

    assert refused({name: "p.json"}).variable == name
    found = refused({}, {name: "p.json"})
    assert (found.variable, found.value) == ("--benchmark-points-file", "p.json")
    assert "--benchmark-mode" in found.accepted


BAD = [
    ("DYN_BENCHMARK_MODE", "both"),
    ("DYN_BENCHMARK_MODE", "AGG"),
    ("DYN_PREFILL_MAX_NEW_TOKEN_SAMPLES", "1"),
    ("DYN_PREFILL_MAX_KV_READ_TOKEN_SAMPLES", "1"),
    ("DYN_DECODE_MAX_KV_READ_TOKEN_SAMPLES", "1"),
    ("DYN_DECODE_MAX_BATCH_SIZE_SAMPLES", "1"),
    ("DYN_PREFIX_MAX_BATCH_SIZE_SAMPLES", "0"),
    ("DYN_BENCHMARK_WARMUP_ITERATIONS", "-1"),
    ("DYN_BENCHMARK_OUTPUT_PATH", "/tmp/"),
    ("DYN_BENCHMARK_TIMEOUT", "0"),
    ("DYN_BENCHMARK_TIMEOUT", "nan"),
    ("DYN_BENCHMARK_MAX_BATCH_SIZE", "0"),
    ("DYN_BENCHMARK_COLLECT_IMBALANCED", "flase"),
    ("DYN_BENCHMARK_RANDOMIZE_KDA_STATE", "2"),
    ("DYN_BENCHMARK_HYBRID_LIVE_STATE", "y"),
    ("DYN_BENCHMARK_PREFILL_GRANULARITY", "0"),
    ("DYN_BENCHMARK_DECODE_BATCH_GRANULARITY", "1025"),
]


@pytest.mark.parametrize(("name", "text"), BAD)
def test_a_wrong_value_is_refused_under_the_name_it_was_given_by(name: str, text: str) -> None:
    """BCONF-01, BCONF-03, BCONF-05: A variable is named as a variable, a flag as a flag; with the text."""
    by_variable = refused({**MODE, name: text})
    by_flag = refused(MODE, {name: text})

    assert (by_variable.variable, by_variable.value) == (name, text)
    assert (by_flag.variable, by_flag.value) == (v.OPTIONS[name], text)
    assert by_flag.accepted


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("DYN_PREFIX_MAX_BATCH_SIZE_SAMPLES", "1", "prefill_batches", 1),
        ("DYN_DECODE_MAX_BATCH_SIZE_SAMPLES", "2", "decode_batches", 2),
        ("DYN_DECODE_MAX_KV_READ_TOKEN_SAMPLES", "2", "decode_kv_reads", 2),
        ("DYN_PREFILL_MAX_NEW_TOKEN_SAMPLES", "2", "prefill_new_tokens", 2),
        ("DYN_PREFILL_MAX_KV_READ_TOKEN_SAMPLES", "2", "prefill_kv_reads", 2),
    ],
)
def test_the_least_limits_are_accepted(name: str, text: str, field: str, value: int) -> None:
    """BCONF-03: The least value of each limit reaches its own field, and no other."""
    found = loaded({name: text}).samples

    assert getattr(found, field) == value
    others = [one for one in found.__struct_fields__ if one != field]
    assert [getattr(found, one) for one in others] == [getattr(SampleLimits(), one) for one in others]


def test_a_timeout_may_be_a_part_of_a_second() -> None:
    """BCONF-03: A whole number stays one, as the artifact shows it."""
    assert loaded({"DYN_BENCHMARK_TIMEOUT": "0.5"}).timeout_seconds == 0.5
    assert isinstance(loaded({"DYN_BENCHMARK_TIMEOUT": "120"}).timeout_seconds, int)


def test_points_make_limits_of_samples_idle(tmp_path: Path) -> None:
    """BCONF-04: Beside a points file the limits are not even looked at; other options are."""
    idle = {"DYN_PREFILL_MAX_NEW_TOKEN_SAMPLES": "x", "DYN_BENCHMARK_PREFILL_GRANULARITY": "9999"}
    env = {"DYN_BENCHMARK_POINTS_FILE": points_file(tmp_path), **idle}
    found = loaded(env)

    assert found.points is not None
    assert [entry.batch_size for entry in found.points.decode] == [2]
    assert found.samples == SampleLimits()
    assert refused({**MODE, **env, "DYN_BENCHMARK_TIMEOUT": "0"}).variable == "DYN_BENCHMARK_TIMEOUT"


def test_a_points_file_that_is_wrong_is_refused(tmp_path: Path) -> None:
    """BCONF-04: A file that is not there, or wrong, is named with its path."""
    with pytest.raises(ManifestError) as caught:
        loaded({"DYN_BENCHMARK_POINTS_FILE": str(tmp_path / "none.json")})

    assert caught.value.path == str(tmp_path / "none.json")


ALIASES = [
    ("PREFILL", "prefill_new_tokens", 2),
    ("PREFILL_KV_READ", "prefill_kv_reads", 2),
    ("PREFILL_BATCH", "prefill_batches", 1),
    ("DECODE_LENGTH", "decode_kv_reads", 2),
    ("DECODE_BATCH", "decode_batches", 2),
]


@pytest.mark.parametrize(("name", "field", "of_one"), ALIASES)
def test_a_deprecated_name_stands_for_its_limit(
    name: str, field: str, of_one: int, caplog: pytest.LogCaptureFixture
) -> None:
    """BCONF-05: It is warned about, and 1 becomes 2 where the limit cannot be 1."""
    alias = f"DYN_BENCHMARK_{name}_GRANULARITY"
    with caplog.at_level(logging.WARNING):
        assert getattr(loaded({alias: "1"}).samples, field) == of_one
        assert getattr(loaded({}, {alias: "7"}).samples, field) == 7

    assert [
        alias.removeprefix("DYN_BENCHMARK_").lower().replace("_", "-") in text for text in caplog.messages
    ]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(("name", "field", "_"), ALIASES)
def test_a_deprecated_name_beside_its_replacement_is_refused(name: str, field: str, _: int) -> None:
    """BCONF-05: Also if the replacement was given with its default, by a variable or by a flag."""
    alias = f"DYN_BENCHMARK_{name}_GRANULARITY"
    replacement = next(new for old, new in v.ALIASES if old.name == alias)
    default = str(replacement.default)

    assert refused({**MODE, alias: "7", replacement.name: default}).variable == alias
    found = refused({**MODE, replacement.name: default}, {alias: "7"})
    assert (found.variable, found.value) == (v.OPTIONS[alias], 7)
    assert v.OPTIONS[replacement.name] in found.accepted
    assert refused({**MODE, alias: "7"}, {replacement.name: "9"}).variable == alias


def test_states_need_a_mode_that_decodes() -> None:
    """BCONF-06: Random and live recurrent states are of decode requests, and exclude each other."""
    random, live = "DYN_BENCHMARK_RANDOMIZE_KDA_STATE", "DYN_BENCHMARK_HYBRID_LIVE_STATE"
    prefill = {"DYN_BENCHMARK_MODE": "prefill"}

    assert refused({**prefill, random: "on"}).variable == random
    assert refused({random: "on"}).variable == random
    assert refused({}, {live: "on"}).variable == "--benchmark-hybrid-live-state"
    assert refused(prefill, {live: "true"}).variable == "--benchmark-hybrid-live-state"
    assert refused({**MODE, random: "1", live: "1"}).variable == live
    assert loaded({random: "1"}).randomize_kda_state
    assert load_bench_config(Sources({"DYN_BENCHMARK_MODE": "decode", live: "1"})).hybrid_live_state  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("facts", "random", "wrong"),
    [
        (LaunchFacts(default_worker_class=False), True, "DYN_BENCHMARK_RANDOMIZE_KDA_STATE"),
        (LaunchFacts(gpu_memory_service=True), True, "DYN_BENCHMARK_RANDOMIZE_KDA_STATE"),
        (LaunchFacts(default_worker_class=False, gpu_memory_service=True), False, None),
        (LaunchFacts(data_parallel_size=2, is_moe=False), False, "--data-parallel-size"),
        (LaunchFacts(data_parallel_size=2), False, None),
        (LaunchFacts(is_moe=False), True, None),
    ],
)
def test_what_the_launcher_knows_is_checked_there(
    facts: LaunchFacts, random: bool, wrong: str | None
) -> None:
    """BCONF-06, BCONF-07, PIT-32: An engine that could not be measured is refused before it is started."""
    sources = Sources({**MODE, **({"DYN_BENCHMARK_RANDOMIZE_KDA_STATE": "on"} if random else {})})
    config = load_bench_config(sources)
    assert config is not None
    if wrong is None:
        check_launch(config, sources, facts)
        return
    with pytest.raises(ConfigError) as caught:
        check_launch(config, sources, facts)

    assert caught.value.variable == wrong


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ({"scheduler_cls": "a.b.Scheduler"}, "--scheduler-cls"),
        ({"scheduler_cls": "a.b.Scheduler", "scheduler_is_derived": True}, None),
        ({"scheduler_cls": "a.b.MyOurScheduler"}, None),
        ({"foreign_worker_extension": "a.b.C"}, "DYN_FPM_GC_POLICY"),
        ({}, None),
    ],
)
def test_classes_of_the_users_own(facts: dict[str, Any], wrong: str | None) -> None:
    """BCONF-08, BCONF-09: A scheduler that is not ours cannot run the benchmark, and workers without our
    extension cannot freeze their garbage collectors.
    """
    sources = Sources({**MODE, "DYN_FPM_GC_POLICY": "freeze"})
    config = load_bench_config(sources)
    assert config is not None
    known = LaunchFacts(our_scheduler="OurScheduler", **facts)
    if wrong is None:
        check_launch(config, sources, known)
        return
    with pytest.raises(ConfigError) as caught:
        check_launch(config, sources, known)

    assert caught.value.variable == wrong
    assert next(iter(facts.values())) in str(caught.value)


def test_an_extension_of_the_users_own_needs_no_policy() -> None:
    """BCONF-09: Without the policy any worker extension may be there."""
    config = loaded()

    check_launch(config, Sources(MODE), LaunchFacts(foreign_worker_extension="a.b.C"))


@given(
    st.dictionaries(
        st.sampled_from([row.name for row in v.BENCH_TABLE if row is not v.POINTS_FILE]),
        st.sampled_from(["", "0", "1", "2", "64", "on", "off", "agg", "prefill", "decode", "/x/y.json", "x"]),
    ),
    st.booleans(),
)
def test_any_options_give_settings_or_one_error(texts: dict[str, str], as_flags: bool) -> None:
    """BCONF-01, BCONF-02: Whatever is combined, there are settings within all rules, none, or an error that
    names an option or variable that was given.
    """
    sources = Sources({}, texts) if as_flags else Sources(texts)
    found, wrong = outcome(sources)
    if wrong is not None:
        assert wrong in {v.OPTIONS.get(name) if as_flags else name for name in texts}
        return

    assert (found is None) == (not texts.get("DYN_BENCHMARK_MODE"))
    if found is not None:
        assert min(found.samples.prefill_new_tokens, found.samples.decode_batches) >= 2
        assert found.timeout_seconds > 0
        assert not (found.randomize_kda_state and found.hybrid_live_state)
        assert found.mode is not BenchMode.PREFILL or not (
            found.randomize_kda_state or found.hybrid_live_state
        )

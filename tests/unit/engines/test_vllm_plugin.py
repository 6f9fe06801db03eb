"""What the plugin decides, on plain objects: for whom, with which role, ranks, id and scheduler."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from forwardpass.config.settings import RelaySettings, Sources, TraceSettings
from forwardpass.engines.vllm.built import BuiltEngine, read_built
from forwardpass.engines.vllm.inject import Wish, plan_engine, read_wish, worker_id_for
from forwardpass.engines.vllm.launch import SCHEDULER
from forwardpass.engines.vllm.topology import LocalRanks
from forwardpass.engines.vllm.wrap import METHOD, wrap_method
from forwardpass.errors import ConfigError

ON = {"DYN_FPM_TRACE": "1"}
PORT = {"DYN_FORWARDPASS_METRIC_PORT": "21000"}


def built(
    *,
    runner: str = "generate",
    convert: str = "none",
    architectures: tuple[str, ...] = ("Qwen3ForCausalLM",),
    kv_role: str | None = None,
    ec_role: str | None = None,
    mm_encoder_only: bool | None = None,
    scheduler: Any = None,
    parallel: tuple[int, int, int] = (1, 0, 1),
) -> SimpleNamespace:
    """Return what ``VllmConfig`` has of what the plugin reads. ``parallel`` is (size, rank, local size)."""
    size, rank, local = parallel
    multimodal = None if mm_encoder_only is None else SimpleNamespace(mm_encoder_only=mm_encoder_only)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            runner_type=runner,
            convert_type=convert,
            architectures=list(architectures),
            multimodal_config=multimodal,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=size, data_parallel_rank=rank, data_parallel_size_local=local
        ),
        kv_transfer_config=None if kv_role is None else SimpleNamespace(kv_role=kv_role),
        ec_transfer_config=None if ec_role is None else SimpleNamespace(ec_role=ec_role),
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
    )


class Foreign:
    """A scheduler class of somebody else's."""


def ours(name: str = "ForwardPassScheduler") -> type:
    """Return a class that is ours by its path; no vLLM is needed to look at it."""
    return type(name, (), {"__module__": "forwardpass.engines.vllm.scheduler"})


class Derived(ours()):  # type: ignore[misc]  # the base is made above
    """A user's class over ours."""


def engine(role: str = "aggregated", **config: Any) -> BuiltEngine:
    found = read_built(built(**config), headless=role == "headless")
    assert found.role.name == role
    return found


@pytest.mark.parametrize(
    ("role", "config"),
    [
        ("aggregated", {}),
        ("aggregated", {"kv_role": "kv_both"}),
        ("aggregated", {"mm_encoder_only": False}),
        ("aggregated", {"architectures": ("BertModel",)}),
        ("prefill", {"kv_role": "kv_producer"}),
        ("decode", {"kv_role": "kv_consumer"}),
        ("embedding", {"runner": "pooling", "convert": "embed"}),
        ("embedding", {"runner": "pooling", "architectures": ("BertModel",)}),
        ("classify", {"runner": "pooling", "convert": "classify"}),
        ("pooling", {"runner": "pooling"}),
        ("multimodal encode", {"mm_encoder_only": True}),
        ("multimodal encode", {"ec_role": "ec_producer"}),
        ("aggregated", {"ec_role": "ec_consumer"}),
        ("headless", {}),
    ],
)
def test_the_role_is_what_vllm_decided(role: str, config: dict[str, Any]) -> None:
    """ENG-30, ENG-42: The built configuration tells the role; a model's name alone no longer does."""
    assert engine(role, **config).role.name == role


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ((1, 0, 1), LocalRanks(1, 0, 1)),
        ((4, 0, 4), LocalRanks(4, 0, 4)),
        ((4, 2, 2), LocalRanks(4, 2, 2)),
        ((4, 3, 1), LocalRanks(4, 3, 1)),
        ((4, 0, 0), LocalRanks(4, 0, 0)),
    ],
    ids=["one", "internal", "hybrid", "external", "none here"],
)
def test_ranks_are_those_that_this_process_starts(
    parallel: tuple[int, int, int], expected: LocalRanks
) -> None:
    """ENG-34, D-18: The first global rank and the local number, as vLLM resolved them."""
    assert engine(parallel=parallel).ranks == expected


def test_a_port_or_a_trace_injects_and_only_a_trace_records() -> None:
    """ENG-31: A port alone generates and records nothing; a trace does both, at the port if one is set."""
    off = plan_engine(engine(), Wish())
    port = plan_engine(engine(), Wish(explicit_port=21000))
    trace = plan_engine(engine(), Wish(trace=True))
    both = plan_engine(engine(), Wish(trace=True, explicit_port=21000))

    assert (off.generate, off.inject, off.record) == (False, False, False)
    assert (port.generate, port.inject, port.record, port.activation.base_port) == (True, True, False, 21000)
    assert (trace.generate, trace.inject, trace.record, trace.activation.base_port) == (
        True, True, True, 20380,
    )  # fmt: skip
    assert (both.record, both.activation.base_port) == (True, 21000)
    assert plan_engine(engine(), Wish(explicit_port=21000, plane=True)).record


@pytest.mark.parametrize("role", ["embedding", "headless"])
def test_a_role_that_cannot_be_recorded_is_left_alone_and_named(role: str) -> None:
    """ENG-32, D-17: One warning; with a port it generates, and says that nothing reads it."""
    config = {"runner": "pooling", "convert": "embed"} if role == "embedding" else {}
    trace = plan_engine(engine(role, **config), Wish(trace=True))
    port = plan_engine(engine(role, **config), Wish(explicit_port=21000))

    assert (trace.inject, trace.record) == (False, False)
    assert (port.inject, port.record) == (True, False)
    assert [len(plan.warnings) for plan in (trace, port)] == [1, 1]
    assert all(repr(role) in plan.warnings[0] for plan in (trace, port))


@pytest.mark.parametrize(
    "scheduler", ["mine.Scheduler", Foreign, "dynamo.vllm.instrumented_scheduler.InstrumentedScheduler"]
)
def test_a_foreign_scheduler_is_kept_and_not_recorded(scheduler: Any) -> None:
    """ENG-43: Somebody else's class stays, with a warning, and may have a recorder of its own."""
    plan = plan_engine(engine(scheduler=scheduler), Wish(trace=True, explicit_port=21000))

    assert (plan.generate, plan.inject, plan.record) == (False, False, False)
    assert len(plan.warnings) == 1


def test_a_scheduler_of_vllms_own_is_not_called_an_option() -> None:
    """ENG-43: vLLM picks one itself for some models; then nobody gave an option that could be removed."""
    scheduler = "vllm.v1.core.sched.diffusion_scheduler.DiffusionScheduler"
    plan = plan_engine(engine(scheduler=scheduler), Wish(trace=True))

    assert (plan.generate, plan.inject, plan.record) == (False, False, False)
    (warning,) = plan.warnings
    assert scheduler in warning
    assert "--scheduler-cls" not in warning


@pytest.mark.parametrize("scheduler", [SCHEDULER, ours(), Derived])
def test_our_class_given_by_hand_is_recorded(scheduler: Any) -> None:
    """ENG-43: Given by path or as a class, itself or as a base, ours is no foreign one."""
    plan = plan_engine(engine(scheduler=scheduler), Wish(trace=True))

    assert (plan.generate, plan.inject, plan.record, plan.warnings) == (True, False, True, ())


def test_without_a_local_engine_nothing_is_recorded() -> None:
    """ENG-34: A node that only serves the API has no stream to read."""
    assert not plan_engine(engine(parallel=(4, 0, 0)), Wish(trace=True)).record


def test_settings_are_read_as_a_unit() -> None:
    """What is asked for, and with which settings the trace is to be written."""
    wish = read_wish(Sources({**ON, "DYN_FPM_MODE": "full", "FORWARDPASS_PLANE": "memory:x"}))
    trace, relay = wish.settings

    assert (wish.trace, wish.explicit_port, wish.plane, wish.warning) == (True, None, True, None)
    assert isinstance(trace, TraceSettings)
    assert trace.mode == "full"
    assert relay == RelaySettings(plane_url="memory:x")


@pytest.mark.parametrize(
    ("environment", "trace", "port", "named"),
    [
        ({**ON, "DYN_FPM_MODE": "some"}, False, None, "DYN_FPM_MODE"),
        ({**ON, "DYN_FPM_MODE": "some", **PORT}, False, 21000, "DYN_FPM_MODE"),
        ({"DYN_FPM_TRACE": "some", **PORT}, False, 21000, None),
        ({**ON, "FORWARDPASS_PUBLISH_QUEUE": "0"}, False, None, "FORWARDPASS_PUBLISH_QUEUE"),
        ({**ON, "DYN_FORWARDPASS_METRIC_PORT": "80"}, False, None, "DYN_FORWARDPASS_METRIC_PORT"),
    ],
)  # fmt: skip
def test_an_invalid_setting_turns_off_its_feature(
    environment: dict[str, str], trace: bool, port: int | None, named: str | None
) -> None:
    """ENG-41: Trace or stream as a unit, with one warning; a port makes the trace variable's value none."""
    wish = read_wish(Sources(environment))

    assert (wish.trace, wish.explicit_port) == (trace, port)
    assert wish.warning is None if named is None else named in str(wish.warning)


def test_an_invalid_stream_is_an_error_where_the_operator_is_strict() -> None:
    """ENG-41, D-13: With ``FORWARDPASS_STRICT`` the engine does not start."""
    with pytest.raises(ConfigError) as raised:
        read_wish(Sources({**ON, "FORWARDPASS_PUBLISH_QUEUE": "0", "FORWARDPASS_STRICT": "1"}))

    assert raised.value.variable == "FORWARDPASS_PUBLISH_QUEUE"


def test_a_worker_id_that_is_set_is_respected() -> None:
    """ENG-44, D-29: The operator's id stays; another engine's id is not taken over."""
    assert worker_id_for("7", (), None) == "7"
    assert worker_id_for("7", (), "8") == "7"
    assert worker_id_for("7", ("7",), "8") == "8"
    assert worker_id_for("7", ("7",), None) != "7"
    assert worker_id_for("", (), None)


def engine_args() -> type:
    """Return a class with the method that vLLM has."""

    class EngineArgs:
        def create_engine_config(self, usage_context: Any = None, headless: bool = False) -> Any:
            """Create the config."""
            if usage_context == "bad":
                raise ValueError("vLLM refuses it")
            return SimpleNamespace(made_by=self, usage_context=usage_context, headless=headless)

    return EngineArgs


def test_the_wrap_keeps_signature_result_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    """ENG-40: vLLM's method runs as it was; what it returns or raises passes; ours is logged only."""
    owner = engine_args()
    before = inspect.signature(vars(owner)[METHOD])
    assert wrap_method(owner)
    args = owner()

    config = args.create_engine_config("here", headless=True)  # not a config that we can read

    assert (config.made_by, config.usage_context, config.headless) == (args, "here", True)
    assert inspect.signature(vars(owner)[METHOD]) == before
    assert vars(owner)[METHOD].__doc__ == "Create the config."
    assert "served without them" in caplog.text
    with pytest.raises(ValueError, match="vLLM refuses it"):
        args.create_engine_config("bad")


def test_a_second_load_wraps_nothing_more() -> None:
    """ENG-40: vLLM may load plugins as often as it likes."""
    owner = engine_args()
    assert wrap_method(owner)
    once = vars(owner)[METHOD]

    assert wrap_method(owner)
    assert vars(owner)[METHOD] is once


@pytest.mark.parametrize("method", [None, len, lambda self, usage_context: None])
def test_an_unknown_method_is_left_alone(method: Any) -> None:
    """ENG-40: Where vLLM is not as we know it nothing is wrapped."""
    owner = type("EngineArgs", (), {} if method is None else {METHOD: method})
    before = dict(vars(owner))

    assert not wrap_method(owner)
    assert dict(vars(owner)) == before

"""Who puts the scheduler in place: the launcher where vLLM loads no plugin of ours, else the plugin alone."""

from __future__ import annotations

import pytest

from forwardpass.engines.roles import Backend, find_role
from forwardpass.engines.vllm.built import BuiltEngine
from forwardpass.engines.vllm.inject import Wish, plan_engine
from forwardpass.engines.vllm.launch import SCHEDULER, Asked, InstalledVllm, plan_launch
from forwardpass.engines.vllm.offered import plugin_facts
from forwardpass.engines.vllm.topology import LocalRanks

OWN = "vllm.v1.core.sched.diffusion_scheduler.DiffusionScheduler"


@pytest.mark.parametrize("plugin", [False, True])
def test_the_launcher_names_our_class_where_no_plugin_does(plugin: bool) -> None:
    """ENG-43: Only the plugin sees whether vLLM has a scheduler of its own for a model. All else is alike."""
    asked = Asked(trace=True, worker_id="7")
    launch = plan_launch(InstalledVllm("vllm", "0.32.0"), "py", ["m"], asked, {}, plugin=plugin)

    assert (f"--scheduler-cls={SCHEDULER}" in launch.command) is not plugin
    assert launch.activation.generate
    assert launch.environment["DYN_FORWARDPASS_METRIC_PORT"] == "20380"
    assert launch.streams == ((0, "tcp://127.0.0.1:20380"),)


@pytest.mark.parametrize(
    ("version", "environment", "loads"),
    [
        ("0.32.0", {}, True),
        (None, {"VLLM_PLUGINS": "lora,forwardpass"}, True),
        ("0.32.0", {"VLLM_PLUGINS": ""}, False),
        ("0.27.1", {}, False),
    ],
)
def test_what_decides_is_what_vllm_goes_by(
    version: str | None, environment: dict[str, str], loads: bool
) -> None:
    """ENG-40: The entry point, vLLM's list of plugins, and the versions that were read."""
    assert plugin_facts(version, environment).loads is loads


def test_a_choice_of_vllms_own_is_told_also_under_a_launcher() -> None:
    """ENG-32, ENG-43: No launcher can know of it, so the plugin says it; the rest the launcher has said."""
    engine = BuiltEngine(find_role(Backend.VLLM, "aggregated"), LocalRanks(1, 0, 1), scheduler=OWN)
    own = plan_engine(engine, Wish(trace=True))
    operators = plan_engine(
        BuiltEngine(engine.role, engine.ranks, scheduler="mine.Scheduler"), Wish(trace=True)
    )

    assert own.unforeseen == own.warnings
    assert OWN in own.unforeseen[0]
    assert (len(operators.warnings), operators.unforeseen) == (1, ())

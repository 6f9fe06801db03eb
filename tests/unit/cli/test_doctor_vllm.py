"""What ``doctor`` says about the plugin that vLLM loads."""

from __future__ import annotations

import pytest

from forwardpass.cli.doctor_checks import Status
from forwardpass.cli.doctor_streams import World, check_arrival
from forwardpass.cli.doctor_vllm import PluginFacts, check_plugin


def test_without_vllm_there_is_nothing_to_say() -> None:
    """Where no vLLM is installed no plugin is missed."""
    assert check_plugin(None) == []


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0+cpu", "0.33.1", None, "a source tree"])
def test_a_supported_vllm_loads_it(version: str | None) -> None:
    """With nothing in the way one variable is enough."""
    (check,) = check_plugin(PluginFacts(version, entry_point=True))

    assert check.status is Status.OK
    assert "DYN_FPM_TRACE=1" in check.found


@pytest.mark.parametrize("allowlist", ["", "lora", "lora,forwardpass2"])
def test_an_allowlist_without_us_is_named(allowlist: str) -> None:
    """ENG-40: ``VLLM_PLUGINS`` names every plugin that is loaded, and an empty one names none."""
    facts = PluginFacts("0.32.0", entry_point=True, allowlist=allowlist)
    (check,) = check_plugin(facts)

    assert not facts.loads
    assert check.status is Status.WARN
    assert "VLLM_PLUGINS" in check.next_step


@pytest.mark.parametrize(
    "facts",
    [PluginFacts("0.27.9", entry_point=True), PluginFacts("0.34.0", True), PluginFacts("0.32.0", False)],
)
def test_what_else_is_in_the_way_is_a_warning(facts: PluginFacts) -> None:
    """A vLLM that was not looked into, or an installation without the entry point."""
    (check,) = check_plugin(facts)

    assert not facts.loads
    assert (check.status, bool(check.next_step)) == (Status.WARN, True)


def test_an_allowlist_with_us_is_fine() -> None:
    """Named beside others, the plugin is loaded."""
    assert PluginFacts("0.32.0", entry_point=True, allowlist="lora,forwardpass").loads


@pytest.mark.parametrize("generates", [True, False])
def test_the_one_variable_is_advised_where_it_is_enough(generates: bool) -> None:
    """Where vLLM loads the plugin the shortest way comes first."""
    world = World(20380, 1, frozenset(), {}, {}, 1.0, generates=generates)
    enough = World(20380, 1, frozenset(), {}, {}, 1.0, generates=generates, plugin=True)

    assert check_arrival(world).next_step.startswith("start it with `forwardpass vllm serve MODEL")
    assert check_arrival(enough).next_step.startswith("start it with `DYN_FPM_TRACE=1 vllm serve MODEL`")

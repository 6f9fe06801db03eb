"""Knows what to say of the plugin that vLLM loads, or does not. Pure: facts in, checks out."""

from __future__ import annotations

from forwardpass.cli.doctor_checks import Check, Status
from forwardpass.cli.terminal import printable
from forwardpass.config.variables import FPM_TRACE
from forwardpass.engines.vllm.contract import NEWEST_READ, OLDEST_READ
from forwardpass.engines.vllm.offered import PluginFacts

__all__ = ["PluginFacts", "check_plugin"]


def check_plugin(facts: PluginFacts | None) -> list[Check]:
    """Judge the plugin; ``None`` where no vLLM is installed."""
    if facts is None:
        return []
    name, enough = "vLLM plugin", f"{FPM_TRACE.name}=1 alone"
    if not facts.listed:
        found = f"VLLM_PLUGINS={printable(facts.allowlist or '', 100)!r} does not name forwardpass, so vLLM "
        advice = "add forwardpass to VLLM_PLUGINS, unset it, or start with `forwardpass vllm serve`"
        return [Check(name, Status.WARN, f"{found}does not load it: {enough} does nothing", advice)]
    if not facts.entry_point:
        found = f"this installation does not offer it to vLLM: {enough} does nothing"
        return [Check(name, Status.WARN, found, "install the package with pip, as it is now")]
    if not facts.supported:
        found = f"vLLM {printable(facts.version or '', 40)} is none of {OLDEST_READ} to {NEWEST_READ}"
        return [Check(name, Status.WARN, f"{found}, which were looked into", "try it, and read what it says")]
    return [Check(name, Status.OK, f"vLLM loads it by itself: {enough} records")]

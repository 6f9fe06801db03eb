"""Knows whether the vLLM of this environment loads this package by itself. Pure: facts in, checks out."""

from __future__ import annotations

import re

from msgspec import Struct

from forwardpass.cli.doctor_checks import Check, Status
from forwardpass.cli.terminal import printable
from forwardpass.config.variables import FPM_TRACE
from forwardpass.engines.vllm.compat import NEWEST_READ, OLDEST_READ

__all__ = ["PluginFacts", "check_plugin"]


class PluginFacts(Struct, frozen=True):
    """What decides whether vLLM loads the plugin."""

    version: str | None
    """The installed vLLM's; ``None`` where that is not known."""
    entry_point: bool
    """This installation of the package offers the plugin to vLLM."""
    allowlist: str | None = None
    """``VLLM_PLUGINS``; ``None`` where it is not set."""

    @property
    def supported(self) -> bool:
        """Whether the version is one that was read; one that is not known may be."""
        found = _minor(self.version)
        return found is None or (_minor(OLDEST_READ) or found) <= found <= (_minor(NEWEST_READ) or found)

    @property
    def listed(self) -> bool:
        """Whether vLLM is allowed to load it. An empty list allows nothing."""
        return self.allowlist is None or "forwardpass" in self.allowlist.split(",")

    @property
    def loads(self) -> bool:
        """Whether one variable is enough."""
        return self.entry_point and self.listed and self.supported


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


def _minor(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None

"""Knows whether the vLLM of this environment loads this package by itself, without starting it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping

from msgspec import Struct

from forwardpass.engines.vllm.compat import PLUGIN_GROUP
from forwardpass.engines.vllm.contract import NEWEST_READ, OLDEST_READ

__all__ = ["PluginFacts", "plugin_facts"]


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


def plugin_facts(version: str | None, environment: Mapping[str, str]) -> PluginFacts:
    """Return the facts for a vLLM of ``version`` that is started with ``environment``."""
    offered = importlib.metadata.entry_points(group=PLUGIN_GROUP, name="forwardpass")
    return PluginFacts(version, bool(offered), environment.get("VLLM_PLUGINS"))


def _minor(version: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(match[1]), int(match[2])) if match else None

"""A scheduler of an operator's, derived from ours; given as ``derived_scheduler.Derived``."""

from __future__ import annotations

from forwardpass.engines.vllm.scheduler import ForwardPassScheduler


class Derived(ForwardPassScheduler):
    """Ours, with something of the operator's in it."""

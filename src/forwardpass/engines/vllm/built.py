"""Knows how to read the configuration that vLLM has built for an engine: its role, ranks and scheduler.

The same table of roles as for a command line, but from what vLLM decided instead of what its arguments
seem to ask for: a model is known here, wherever it comes from. The names are in ``contract.py``.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from forwardpass.engines.roles import Role
from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.arguments import ServeArguments
from forwardpass.engines.vllm.launch import SCHEDULER
from forwardpass.engines.vllm.role import ModelFacts, serve_role
from forwardpass.engines.vllm.topology import LocalRanks

__all__ = ["BuiltEngine", "derives_from", "read_built"]

_CONVERTS = ("embed", "classify")


class BuiltEngine(Struct, frozen=True):
    """What a built configuration says."""

    role: Role
    ranks: LocalRanks
    """The ranks whose engines this process starts (decision D-18)."""
    scheduler: str | None = None
    """Dotted path of the scheduler class; ``None`` leaves the choice to the engine core."""
    ours: bool = False
    """That class is ours, or derived from ours."""


def read_built(config: Any, *, headless: bool) -> BuiltEngine:
    """Return what vLLM's ``config`` (a ``VllmConfig``) says. Raises ``AttributeError`` for one that is not
    as we know it.
    """
    model, parallel = config.model_config, config.parallel_config
    kv_transfer, encoder_transfer = config.kv_transfer_config, config.ec_transfer_config
    multimodal = model.multimodal_config
    arguments = ServeArguments(
        runner=str(model.runner_type),
        convert=str(model.convert_type) if model.convert_type in _CONVERTS else None,
        kv_role=kv_transfer.kv_role if kv_transfer is not None else None,
        ec_role=encoder_transfer.ec_role if encoder_transfer is not None else None,
        mm_encoder_only=bool(multimodal is not None and multimodal.mm_encoder_only),
        headless=headless,
    )
    chosen = config.scheduler_config.scheduler_cls
    return BuiltEngine(
        role=serve_role(arguments, ModelFacts(tuple(model.architectures))),
        ranks=LocalRanks(
            int(parallel.data_parallel_size),
            int(parallel.data_parallel_rank),
            int(parallel.data_parallel_size_local),
        ),
        scheduler=None if chosen is None else _name(chosen),
        ours=chosen is not None and derives_from(chosen, SCHEDULER),
    )


def _name(chosen: str | type) -> str:
    return chosen if isinstance(chosen, str) else f"{chosen.__module__}.{chosen.__qualname__}"


def derives_from(chosen: str | type, wanted: str) -> bool:
    """Say whether a class is the one at the dotted path ``wanted``, or derived from it.

    An operator's path is imported for that, as the engine core is going to import it; vLLM's own are not.
    """
    if chosen == wanted:
        return True
    found = compat.class_at(chosen) if isinstance(chosen, str) else chosen
    return found is not None and any(_name(base) == wanted for base in found.__mro__)

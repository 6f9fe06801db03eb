"""Knows that a scheduler of the asynchronous kind must be the plain kind where its engine is synchronous."""

from __future__ import annotations

from typing import Any

__all__ = ["follow_engine"]


def follow_engine(scheduler: Any, asynchronous: type) -> None:
    """Give ``scheduler``, derived from the ``asynchronous`` class, the plain class's methods back where its
    engine schedules synchronously.

    The asynchronous class counts a token that is on its way as known. A synchronous engine that keeps
    several batches in flight (pipeline stages under model runner V1, or asynchronous scheduling turned
    off) would be told to compute the next token of a request whose last one nobody has yet: the model
    would answer nonsense. And a request that read KV which failed to load would keep a token that never
    comes. So the object gets a class whose methods that the asynchronous class overrides are the plain
    class's again; no call costs more. ``tests/engine/test_vllm_scheduler_cases.py`` compares with vLLM's
    own choice of class in each order.
    """
    if scheduler.vllm_config.scheduler_config.async_scheduling:
        return
    ours, plain = type(scheduler), asynchronous.__mro__[1]
    methods = {
        name: getattr(plain, name)
        for name in vars(asynchronous)
        if not name.startswith("__")
        and hasattr(plain, name)
        and getattr(ours, name) is getattr(asynchronous, name)
    }
    scheduler.__class__ = type(ours.__name__, (ours,), {**methods, "__module__": ours.__module__})

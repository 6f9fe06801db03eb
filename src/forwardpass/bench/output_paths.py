"""Knows which path a launch uses and which ranks it waits for; files are named in ``artifact/names.py``."""

from __future__ import annotations

import os.path
from enum import StrEnum

from forwardpass.config.bench_variables import DEFAULT_OUTPUT_PATH
from forwardpass.wire.keys import sanitize_producer_id

__all__ = ["LoadBalancing", "launch_output_path", "managed_ranks"]


class LoadBalancing(StrEnum):
    """Who spreads requests over data-parallel ranks, and so how many of them one launcher starts."""

    INTERNAL = "internal"
    HYBRID = "hybrid"
    EXTERNAL = "external"


def launch_output_path(path: str, worker_id: str) -> str | None:
    """Return the path that one launch should use instead of ``path``, or ``None`` to leave it.

    Only the default gets the end of the worker's id, so that two workers of a machine do not share it. It
    may be told to the engine in the environment alone.
    """
    if path != DEFAULT_OUTPUT_PATH or not worker_id:
        return None
    stem, extension = os.path.splitext(path)
    return f"{stem}_{sanitize_producer_id(worker_id[-8:])}{extension}"


def managed_ranks(balancing: LoadBalancing, *, first_rank: int, local_size: int, size: int) -> range:
    """Return the global ranks of a launcher; ``local_size`` are those of its node, ``size`` all."""
    count = {
        LoadBalancing.EXTERNAL: 1,
        LoadBalancing.HYBRID: local_size,
        LoadBalancing.INTERNAL: size,
    }[balancing]
    return range(first_rank, first_rank + count)

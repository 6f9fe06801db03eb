"""Knows how the files of a self-benchmark are named, and which ranks' files one launcher waits for."""

from __future__ import annotations

import os.path
from enum import StrEnum

from msgspec import Struct

from forwardpass.config.bench_variables import DEFAULT_OUTPUT_PATH
from forwardpass.wire.keys import sanitize_producer_id

__all__ = ["LoadBalancing", "OutputPaths", "launch_output_path", "managed_ranks"]


class OutputPaths(Struct, frozen=True):
    """The files of one launcher."""

    base: str
    """The artifact of rank 0."""
    first_rank: int = 0
    """The first global rank that the launcher manages."""

    def rank(self, dp_rank: int) -> str:
        """Return the path of a rank's artifact."""
        return self.base if dp_rank == 0 else _marked(self.base, f"_dp{dp_rank}")

    @property
    def merged(self) -> str:
        """Return the path of the merged artifact."""
        return _marked(self.base, f"_dp{self.first_rank}_merged" if self.first_rank else "_merged")

    @property
    def worker_probe(self) -> str:
        """Return the path of the file of what the workers answered."""
        return _marked(self.merged, "_worker_probe")


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
    return _marked(path, f"_{sanitize_producer_id(worker_id[-8:])}")


def managed_ranks(balancing: LoadBalancing, *, first_rank: int, local_size: int, size: int) -> range:
    """Return the global ranks of a launcher; ``local_size`` are those of its node, ``size`` all."""
    count = {
        LoadBalancing.EXTERNAL: 1,
        LoadBalancing.HYBRID: local_size,
        LoadBalancing.INTERNAL: size,
    }[balancing]
    return range(first_rank, first_rank + count)


def _marked(path: str, mark: str) -> str:
    stem, extension = os.path.splitext(path)
    return f"{stem}{mark}{extension}"

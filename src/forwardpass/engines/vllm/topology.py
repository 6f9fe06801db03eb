"""Knows which data-parallel ranks of a vLLM command have their engine on this host.

Read in vLLM 0.32.0, ``EngineArgs.create_engine_config`` and ``launchers/dp_supervisor.py``.
"""

from __future__ import annotations

from msgspec import Struct

from forwardpass.engines.vllm.arguments import ServeArguments

__all__ = ["LocalRanks", "local_ranks"]


class LocalRanks(Struct, frozen=True):
    """The global ranks ``first`` … ``first + count - 1``, of ``dp_size`` in all."""

    dp_size: int
    first: int
    count: int

    @property
    def ranks(self) -> range:
        """The global ranks."""
        return range(self.first, self.first + self.count)


def local_ranks(arguments: ServeArguments) -> LocalRanks:
    """Return the ranks that this launch starts itself (decision D-18).

    A rank on another host publishes there; a relay for it here would wait for ever. Settings that
    vLLM refuses give some answer that is never used.
    """
    size = arguments.data_parallel_size
    if arguments.data_parallel_multi_port:
        return _multi_port(arguments)
    if arguments.data_parallel_external_lb or arguments.data_parallel_rank is not None:
        rank = arguments.data_parallel_rank
        return LocalRanks(size, _first_of_node(arguments) if rank is None else rank, 1)
    local = arguments.data_parallel_size_local
    if local is None and arguments.nnodes > 1:
        local = max(_node_processes(arguments) // arguments.ranks_per_engine, 1)
    if local is None:
        return LocalRanks(size, 0, size)
    start = arguments.data_parallel_start_rank
    return LocalRanks(size, _first_of_node(arguments) if start is None else start, local)


def _multi_port(arguments: ServeArguments) -> LocalRanks:
    local = arguments.data_parallel_size_local or 1
    start = arguments.data_parallel_start_rank
    first = arguments.node_rank * local if start is None else start
    return LocalRanks(arguments.data_parallel_size, first, local)


def _node_processes(arguments: ServeArguments) -> int:
    return arguments.data_parallel_size * arguments.ranks_per_engine // arguments.nnodes


def _first_of_node(arguments: ServeArguments) -> int:
    """Return the global rank at which this node's processes start (0 on a single node)."""
    if arguments.nnodes == 1:
        return 0
    return arguments.node_rank * _node_processes(arguments) // arguments.ranks_per_engine

"""Knows which data-parallel ranks of an SGLang command publish on this host.

Read in SGLang 0.5.23: one publisher per data-parallel rank, on attention-tensor-parallel rank 0 of the last
pipeline stage (``managers/scheduler_components/metrics_reporter.py``); which tensor and pipeline ranks a node
has, in ``entrypoints/engine.py``.
"""

from __future__ import annotations

from forwardpass.engines.sglang.arguments import LaunchArguments

__all__ = ["local_ranks"]


def local_ranks(arguments: LaunchArguments) -> tuple[int, ...]:
    """Return the global ranks whose publisher runs on this node, ascending (decision D-18).

    Without attention data parallelism every replica is whole, and all of them are on the node with its
    first tensor rank. With it the ranks divide one tensor-parallel group: on one pipeline stage a node has
    the ``attn_dp_size // nnodes`` ranks from ``node_rank`` times that. Settings that SGLang refuses give
    some answer that is never used.
    """
    nnodes, node_rank, pp_size = arguments.nnodes, arguments.node_rank, arguments.pp_size
    stages, nodes_per_stage = max(pp_size // nnodes, 1), max(nnodes // pp_size, 1)
    first_stage = stages * (node_rank // nodes_per_stage)
    if pp_size - 1 not in range(first_stage, first_stage + stages):
        return ()
    tensors = max(arguments.tp_size // nodes_per_stage, 1)
    first_tensor = tensors * (node_rank % nodes_per_stage)
    group = max(arguments.tp_size // arguments.attn_dp_size, 1)
    attention = [
        tensor // group for tensor in range(first_tensor, first_tensor + tensors) if tensor % group == 0
    ]
    if arguments.attn_dp_size > 1:
        return tuple(rank for rank in attention if rank < arguments.attn_dp_size)
    return tuple(range(arguments.dp_size)) if first_tensor == 0 else ()

"""Knows what the one worker of a simulated rank says when it is asked what runs in it."""

from __future__ import annotations

from typing import Any

from forwardpass.bench.limits import GraphSettings

__all__ = ["worker_reply"]


def worker_reply(graph: GraphSettings, dp_rank: int) -> dict[str, Any]:
    """Return the reply, in the form that a real worker's has."""
    return {
        "dp_rank": dp_rank,
        "worker_rank": 0,
        "tp_rank": 0,
        "pp_rank": 0,
        "pcp_rank": 0,
        "attention_backends": {"layers.0.attention": "SIMULATED"},
        "capture_errors": {},
        "mla_prefill_backend": None,
        "cudagraph_mode_resolved": graph.mode,
        "cudagraph_capture_sizes_resolved": list(graph.capture_sizes),
    }

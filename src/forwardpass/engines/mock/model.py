"""Knows how long a forward pass of the simulated engine takes.

A roofline of one 8-billion-parameter dense transformer (32 layers, hidden size 4096, 8 key-value heads of
128, bfloat16) on one GPU that sustains 450 TFLOP/s and 3.0 TB/s. Each constant is that arithmetic, and
nothing else: no value was fitted. What matters is the shape, which real engines share: a floor for
reading the weights, a slope per prefill token, and a slope per token of context that is read.
"""

from __future__ import annotations

from msgspec import Struct

from forwardpass.errors import ConfigError

__all__ = ["CostModel"]


class CostModel(Struct, frozen=True):
    """Seconds per unit of work. The defaults are the engine described above."""

    weights_seconds: float = 5.3e-3
    """Reading 16 GB of weights once: the floor of every pass."""
    token_seconds: float = 36e-6
    """Matrix products of one token: 16 GFLOP."""
    pair_seconds: float = 1.2e-9
    """Attention of one query token to one context token: 0.52 MFLOP over all layers."""
    kv_token_seconds: float = 44e-9
    """Reading the keys and values of one context token: 131 kB."""
    request_seconds: float = 8e-6
    """Block table and sampling of one request."""
    host_seconds: float = 0.8e-3
    """Scheduling and preparing inputs on the host; in asynchronous order it hides behind the GPU."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0.0 <= getattr(self, name) < 3600.0:
                raise ConfigError(f"CostModel.{name}", getattr(self, name), "seconds from 0 to 3600")
        if not self.weights_seconds:  # a pass without duration would look like a heartbeat
            raise ConfigError("CostModel.weights_seconds", self.weights_seconds, "more than 0 seconds")

    def gpu_seconds(self, *, prefill_tokens: int, pairs: int, decode_requests: int, kv_tokens: int) -> float:
        """Return the seconds the GPU is busy with one pass.

        ``pairs`` counts (query, context) token pairs of the prefills, ``kv_tokens`` the context tokens
        that are read: all of the decodes' and what the prefills do not compute themselves. Products are
        bound by compute or by reading the weights, whichever is slower. An empty pass takes no time.
        """
        tokens = prefill_tokens + decode_requests
        if not tokens:
            return 0.0
        return (
            max(self.weights_seconds, tokens * self.token_seconds)
            + pairs * self.pair_seconds
            + kv_tokens * self.kv_token_seconds
            + decode_requests * self.request_seconds
        )

"""Knows the limits of the simulated engine, and refuses those it could not work with."""

from __future__ import annotations

from msgspec import Struct

from forwardpass.engines.mock.model import CostModel
from forwardpass.errors import ConfigError

__all__ = ["MockConfig"]


class MockConfig(Struct, frozen=True):
    """One rank of the simulated engine. Raises :class:`ConfigError` for limits that contradict each other."""

    max_num_seqs: int = 64
    """Requests that may run at once."""
    max_num_batched_tokens: int = 2048
    """Token budget of one pass; a longer prefill is cut into chunks."""
    max_model_len: int = 8192
    """Longest request, prompt and output together, in tokens."""
    block_tokens: int = 16
    """Tokens per KV block."""
    num_blocks: int = 2048
    """KV blocks of the rank. The default (32,768 tokens) is small, so that bursts bring pressure."""
    prefix_caching: bool = True
    """Whether full blocks are kept and found again by content."""
    drop_last_hit: bool = False
    """Whether the last block of a found prefix is computed again, as a drafter needs it."""
    async_scheduling: bool = False
    """Whether a pass is scheduled before the output of the one before it has arrived (two in flight)."""
    noise: float = 0.02
    """Standard deviation of a pass's duration, relative; 0.0 for none."""
    cost: CostModel = CostModel()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_tokens", "num_blocks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"MockConfig.{name}", getattr(self, name), "a positive integer")
        if not 0.0 <= self.noise <= 0.3:
            raise ConfigError("MockConfig.noise", self.noise, "a number from 0.0 to 0.3")
        capacity = self.num_blocks * self.block_tokens
        if self.max_model_len > capacity:  # one request alone must always fit, or it would wait forever
            accepted = f"at most the {capacity} tokens of the KV blocks"
            raise ConfigError("MockConfig.max_model_len", self.max_model_len, accepted)

"""Knows what an engine can hold: the layout that its ranks share, and the capacity that they negotiate."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from forwardpass.errors import ConfigError

__all__ = ["CapacityEnvelope", "EngineLayout", "GraphMode", "GraphSettings", "KvGroup", "KvKind"]


class GraphMode(StrEnum):
    """How a forward pass is dispatched."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"


class KvKind(StrEnum):
    """What a group's blocks hold."""

    ATTENTION = "attention"
    CROSS_ATTENTION = "cross_attention"
    """Blocks of an encoder: none are taken from the pool that requests share."""
    RECURRENT = "recurrent"
    """The state of a Mamba-like layer in blocks of its own."""
    RECURRENT_ALIGNED = "recurrent_aligned"
    """The same, kept at block boundaries so that prefixes can be cached (mode ``align``)."""


class KvGroup(Struct, frozen=True):
    """One manager of blocks; all groups take theirs from one pool."""

    block_size: int
    """Tokens a block."""
    kind: KvKind = KvKind.ATTENTION
    admission_cap: int | None = None
    """Most blocks that a request holds once it runs, where old ones are recycled (a sliding window)."""
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0
    """Blocks for prefill checkpoints of an aligned recurrent state."""
    manager: str = ""
    """The engine's name for what manages these blocks, such as a dotted path; ranks compare it."""


class GraphSettings(Struct, frozen=True):
    """The engine's CUDA graphs, as they are configured."""

    mode: str = "NONE"
    """The configured mode, which may be a pair such as ``FULL_AND_PIECEWISE``."""
    prefill_mode: GraphMode = GraphMode.NONE
    decode_mode: GraphMode = GraphMode.NONE
    capture_sizes: tuple[int, ...] = ()
    """In tokens; ascending, unique, positive."""

    def prefill_captures(self) -> tuple[int, ...]:
        """Return the sizes that a prefill pass can use."""
        return self.capture_sizes if self.prefill_mode is not GraphMode.NONE else ()

    def decode_captures(self, request_limit: int) -> tuple[int, ...]:
        """Return the sizes that a decode pass of at most ``request_limit`` requests can use."""
        if self.decode_mode is GraphMode.NONE:
            return ()
        return tuple(size for size in self.capture_sizes if size <= request_limit)


class EngineLayout(Struct, frozen=True):
    """What must be the same on every rank for their grids to be the same."""

    groups: tuple[KvGroup, ...]
    block_size: int
    """The scheduler's, in tokens."""
    hash_block_size: int
    """Tokens of the unit in which prefixes are found again."""
    prefix_caching: bool = True
    graph: GraphSettings = GraphSettings()
    lookahead_tokens: int = 0
    """Slots allocated ahead for speculation."""
    long_prefill_threshold: int = 0
    """Tokens beyond which a prompt is chunked beside others; 0: never."""
    adaptive_long_prefill: bool = False
    """Whether that threshold is at least a request's share of the token budget."""
    eagle: bool = False
    """Whether a drafter drops the last hit of a prefix lookup."""
    per_group_lookup: bool = False
    """Whether prefixes are looked up per group, where nothing is dropped."""
    partial_hash_hits: bool = False
    """Whether a part of a block can be found again."""
    cache_block_size: int = 0
    """Tokens of a block as the cache was configured; 0: as the scheduler's."""

    @property
    def managers(self) -> tuple[KvGroup, ...]:
        """Return the groups; an engine without any has one that holds everything."""
        return self.groups or (KvGroup(self.block_size),)

    @property
    def dropped_tokens(self) -> int:
        """Return how many tokens of a found prefix the engine computes again."""
        if not self.eagle or self.per_group_lookup:
            return 0
        return self.hash_block_size if self.partial_hash_hits else self.block_size


class CapacityEnvelope(Struct, frozen=True):
    """What one rank can hold, or all of them; the grid reads limits through nothing else."""

    max_model_len: int
    max_num_scheduled_tokens: int
    max_num_running_reqs: int
    usable_blocks_without_watermark: int
    usable_blocks_with_watermark: int
    grid_invariants_digest: str = ""
    kvwarm_eligible: bool = False

    def usable_blocks(self, batch_size: int) -> int:
        """Return how many blocks ``batch_size`` requests may take; one alone may go below the watermark."""
        return self.usable_blocks_with_watermark if batch_size > 1 else self.usable_blocks_without_watermark

    @classmethod
    def common(cls, ranks: Sequence[CapacityEnvelope]) -> CapacityEnvelope:
        """Return what every one of ``ranks`` (at least one) can hold.

        Raises :class:`ConfigError` if they were not set up alike: their digests differ.
        """
        first = ranks[0]
        for rank, other in enumerate(ranks):
            if other.grid_invariants_digest != first.grid_invariants_digest:
                raise ConfigError(
                    f"grid_invariants_digest of rank {rank}",
                    other.grid_invariants_digest,
                    f"{first.grid_invariants_digest!r}, as rank 0 has: engines and options must be the same",
                )
        return cls(
            max_model_len=min(rank.max_model_len for rank in ranks),
            max_num_scheduled_tokens=min(rank.max_num_scheduled_tokens for rank in ranks),
            max_num_running_reqs=min(rank.max_num_running_reqs for rank in ranks),
            usable_blocks_without_watermark=min(rank.usable_blocks_without_watermark for rank in ranks),
            usable_blocks_with_watermark=min(rank.usable_blocks_with_watermark for rank in ranks),
            grid_invariants_digest=first.grid_invariants_digest,
            kvwarm_eligible=all(rank.kvwarm_eligible for rank in ranks),
        )

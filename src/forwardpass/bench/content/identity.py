"""Knows the texts that decide which tokens a prompt has: salts, and the stream keys that they end up in.

Tokens depend on the content seed, a point's coordinates, the rank and the slot; never on the size or order
of the grid, on ids or on cache salts. The exact texts are the reference's, so that hashes can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum

__all__ = [
    "CONTENT_IDENTITY",
    "ContentKind",
    "chain_cache_salt",
    "chain_key",
    "decode_salts",
    "fake_prefix_salts",
    "fresh_salts",
    "lengths_digest",
    "real_prefix_salts",
    "stream_key",
    "tail_salts",
]

CONTENT_IDENTITY = "coordinate_rank_slot_v1"
"""Name of these rules in artifacts."""


class ContentKind(StrEnum):
    """What synthetic prompts are made of. The values stand in artifacts."""

    RANDOM = "random"
    SHAREGPT = "sharegpt"
    """Windows over one pool of real text."""
    SHAREGPT_CHAIN = "sharegpt_chain"
    """Whole real texts, one after the other."""
    ZEROS = "zeros"
    """Nothing better is possible: the size of the vocabulary is not known."""


def stream_key(seed: str, dp_rank: int, salt: str) -> str:
    """Return the key of the token stream of one prompt."""
    return f"content-v1:{seed}:dp{dp_rank}:{salt}"


def chain_key(seed: str, dp_rank: int, index: int) -> str:
    """Return the key of the order of texts in chain ``index``."""
    return f"content-v1:{seed}:{dp_rank}:{index}"


def chain_cache_salt(dp_rank: int, index: int) -> str:
    """Return the cache salt of the request that holds chain ``index``."""
    return f"__kvwarm_{dp_rank}_{index}"


def lengths_digest(lengths: Sequence[int]) -> str:
    """Return the digest of a batch's lengths. It takes time with the batch: once a batch, not once a slot."""
    return hashlib.sha256(json.dumps(list(lengths), separators=(",", ":")).encode()).hexdigest()


def fresh_salts(lengths: Sequence[int]) -> list[str]:
    """Return the salts of prompts without a prefix, and of the one that warms an engine up."""
    digest = lengths_digest(lengths)
    return [f"prefill:{digest}:slot{slot}" for slot in range(len(lengths))]


def decode_salts(admitted: Sequence[int]) -> list[str]:
    """Return the salts of decode prompts; ``admitted`` are the contexts at which they are admitted."""
    digest = lengths_digest(admitted)
    return [f"decode:{digest}:slot{slot}" for slot in range(len(admitted))]


def fake_prefix_salts(point_key: str, batch_size: int) -> list[str]:
    """Return the salts that the seed of a prefix and the prompt that is measured share."""
    return [f"point:{point_key}:fake_prefix:slot{slot}" for slot in range(batch_size)]


def real_prefix_salts(batch_size: int) -> list[str]:
    """Return the salts of prefixes that are computed for real; they are cache salts as well."""
    return [f"__bench_rsc_bp{batch_size}_slot{slot}" for slot in range(batch_size)]


def tail_salts(point_key: str, batch_size: int, *, measured: bool, replica: bool) -> list[str]:
    """Return the salts of what follows such a prefix: thrown away, or measured."""
    tag = ("rsm" if measured else "rswarm") + ("_eager_warmup" if replica else "")
    return [f"point:{point_key}:{tag}:slot{slot}" for slot in range(batch_size)]

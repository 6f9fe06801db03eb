"""Knows the evidence of what was injected: a hash of every prompt, and one of all of them."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

import msgspec

from forwardpass.bench.digest import canonical_json
from forwardpass.bench.evidence import PromptRequest, RecordedPrompts

__all__ = ["PROMPT_HASH_ENCODING", "prompt_evidence", "prompt_sha256"]

PROMPT_HASH_ENCODING = "uint32_le"
"""Token ids as unsigned 32-bit numbers, the lowest byte first."""


def prompt_evidence(prompts: Sequence[Sequence[int]]) -> RecordedPrompts:
    """Return the evidence of ``prompts``, one for each slot, as they were given to the engine.

    Raises ``OverflowError`` for an id outside 0 … 2**32 - 1.
    """
    hashes = tuple(
        PromptRequest(slot, len(prompt), prompt_sha256(prompt)) for slot, prompt in enumerate(prompts)
    )
    text = canonical_json([msgspec.to_builtins(each) for each in hashes])
    return RecordedPrompts(hashlib.sha256(text.encode()).hexdigest(), hashes)


def prompt_sha256(prompt: Sequence[int]) -> str:
    """Return the digest of one prompt's token ids."""
    ids = array("I", prompt)
    if sys.byteorder == "big":
        ids.byteswap()
    return hashlib.sha256(ids).hexdigest()

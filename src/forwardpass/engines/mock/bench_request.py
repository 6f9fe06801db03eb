"""Knows requests of the simulated engine whose content is real: their blocks are found again by what they
hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from forwardpass.bench.driver import SyntheticRequest
from forwardpass.engines.mock.request import Request

__all__ = ["FOREVER", "ContentRequest", "block_keys"]

FOREVER = 1 << 40
"""Output tokens of a request that ends only when it is aborted."""
_TOKEN_BYTES = 4


class ContentRequest(Request):
    """A request with token ids and a cache salt. Blocks of equal salt and equal tokens are the same."""

    __slots__ = ("keys",)

    def __init__(
        self, uid: int, request: SyntheticRequest, block_tokens: int, output_tokens: int | None = None
    ) -> None:
        super().__init__(uid, len(request.token_ids), output_tokens or request.max_tokens)
        self.keys = block_keys(request.cache_salt or f"request {uid}", request.token_ids, block_tokens)

    def block_key(self, index: int, block_tokens: int) -> int:
        """Return what stands for full block ``index`` and all before it; of what it generates, a key of its
        own.
        """
        return self.keys[index] if index < len(self.keys) else super().block_key(index, block_tokens)


def block_keys(salt: str, token_ids: Sequence[int], block_tokens: int) -> list[int]:
    """Return a key for each full block of ``token_ids``, each with the digest of all before it."""
    keys, digest = [], hashlib.sha256(salt.encode(errors="surrogatepass")).digest()
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        block = token_ids[start : start + block_tokens]
        content = b"".join(token.to_bytes(_TOKEN_BYTES, "little") for token in block)
        digest = hashlib.sha256(digest + content).digest()
        keys.append(int.from_bytes(digest[:16], "big"))
    return keys

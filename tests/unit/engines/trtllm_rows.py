"""Rows of iteration statistics as TensorRT-LLM documents them; none could be captured here."""

from __future__ import annotations

from typing import Any


def row(*, rank: int | None = 0, iteration: int = 1, **changes: Any) -> dict[str, Any]:
    """Return one row; ``changes`` replace keys of the nested statistics, or with ``None`` remove them."""
    nested = {
        "numScheduledRequests": 5,
        "numContextRequests": 2,
        "numGenRequests": 3,
        "numPausedRequests": 1,
        "numCtxTokens": 384,
        "microBatchId": 0,
        "avgNumDecodedTokensPerIter": 1.0,
        "numCtxKvTokens": 128,
        "numGenKvTokens": 9000,
        "numQueuedContextRequests": 4,
        "numQueuedCtxTokens": 2048,
        "numQueuedGenRequests": 6,
        "numQueuedGenKvTokens": 700,
        "numPausedKvTokens": 50,
    } | changes
    return {
        "iter": iteration,
        "timestamp": "12-01-2026 04:00:00.000000",
        "iterLatencyMS": 12.5,
        "hostStepTimeMS": 13.0,
        "attentionDpRank": rank,
        "numActiveRequests": 6,
        "numQueuedRequests": 10,
        "kvCacheStats": {"maxNumBlocks": 100, "freeNumBlocks": 3},
        "inflightBatchingStats": {key: value for key, value in nested.items() if value is not None},
    }

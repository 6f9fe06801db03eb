"""Knows how the evidence of one rank is taken out of a merged document again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

__all__ = ["RankEvidence", "rank_evidence"]


class RankEvidence(Struct):
    """What a merged document has of one rank."""

    results: list[dict[str, Any]]
    """As in the rank's own file: points without ``dp_rank``, by id."""
    warmup_evidence: Any | UnsetType = UNSET
    """Its ledger; ``UNSET`` where the document has none of any rank."""


def rank_evidence(document: Mapping[str, Any], rank: int) -> RankEvidence:
    """Return what a valid merged ``document`` has of ``rank``."""
    rows = []
    for row in document["results"]:
        if row["point"]["dp_rank"] == rank:
            point = {key: value for key, value in row["point"].items() if key != "dp_rank"}
            rows.append({**row, "point": point})
    ledgers = document.get("rank_warmup_evidence", UNSET)
    return RankEvidence(rows, UNSET if ledgers is UNSET else ledgers[str(rank)])

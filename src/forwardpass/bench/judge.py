"""Knows whether what was measured is what the point asked for, on every rank.

Every rank sees the passes of all of them, so that each comes to the same verdict by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.bench.outcome import SkipReason
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.samples import STEADY_SAMPLE
from forwardpass.bench.sync.messages import RankResult
from forwardpass.errors import BenchError

__all__ = ["FAKE_FALLBACK", "GIANT_OFF_BY_BATCH", "Verdict", "judge"]

FAKE_FALLBACK = "kvwarm_fake_fallback"
"""Reason of a decode point whose context was made up although real ones were wanted."""
GIANT_OFF_BY_BATCH = "giant_fake_off_by_batch"
"""Reason of such a point that was measured one token a request short of what was asked."""


class Verdict(Struct, frozen=True):
    """What becomes of a point."""

    point: Point
    """As it is recorded: with the coordinate that was really measured."""
    skip: SkipReason | None = None
    failed_dp_rank: int | None = None
    """The first rank that did not measure it."""


def judge(point: Point, ranks: Sequence[RankResult], giant_threshold: int) -> Verdict:
    """Return what becomes of ``point``.

    ``giant_threshold`` is the number of tokens from which a made-up context may be one token a request short.
    Raises :class:`BenchError` for passes that cannot be this point's: more than one, another id or rank.
    """
    totals: set[int] = set()
    for rank in ranks:
        if not rank.fpms:
            return Verdict(point, SkipReason.NO_FPM, rank.dp_rank)
        measured = _only(point, rank)
        skip = _mismatch(point, measured)
        if skip is SkipReason.DECODE_CONTEXT and _is_giant_one_short(point, measured, giant_threshold):
            skip = None
        if skip is not None:
            return Verdict(point, skip, rank.dp_rank)
        totals.add(measured["scheduled_requests"]["sum_decode_kv_tokens"])
    if point.point_type is not Phase.DECODE or totals == {point.total_kv_read_tokens}:
        return Verdict(point)
    if len(totals) > 1:
        return Verdict(point, SkipReason.GIANT_COORDINATE)
    reasons = (*point.sample_reasons, GIANT_OFF_BY_BATCH)
    return Verdict(msgspec.structs.replace(point, total_kv_read_tokens=totals.pop(), sample_reasons=reasons))


def _only(point: Point, rank: RankResult) -> Mapping[str, Any]:
    if len(rank.fpms) != 1:
        raise BenchError(
            f"point {point.benchmark_id}: rank {rank.dp_rank} ran it as {len(rank.fpms)} passes, not one"
        )
    measured = rank.fpms[0]
    for name, expected in (("counter_id", point.benchmark_id), ("dp_rank", rank.dp_rank)):
        if measured.get(name) != expected:
            raise BenchError(
                f"point {point.benchmark_id}: a pass of rank {rank.dp_rank} has {name} {measured.get(name)}, "
                f"expected {expected}"
            )
    return measured


def _mismatch(point: Point, measured: Mapping[str, Any]) -> SkipReason | None:
    scheduled = measured["scheduled_requests"]
    if point.point_type is Phase.PREFILL:
        pairs = (
            ("num_prefill_requests", point.batch_size, SkipReason.BATCH_SIZE),
            ("num_decode_requests", 0, SkipReason.BATCH_SIZE),
            ("sum_prefill_tokens", point.total_prefill_tokens, SkipReason.PREFILL_TOKENS),
            ("sum_prefill_kv_tokens", point.total_kv_read_tokens, SkipReason.KV_READ),
        )
    else:
        pairs = (
            ("num_decode_requests", point.batch_size, SkipReason.BATCH_SIZE),
            ("num_prefill_requests", 0, SkipReason.BATCH_SIZE),
            ("sum_prefill_tokens", 0, SkipReason.PREFILL_TOKENS),
            ("sum_decode_kv_tokens", point.total_kv_read_tokens, SkipReason.DECODE_CONTEXT),
        )
    return next((reason for name, expected, reason in pairs if scheduled[name] != expected), None)


def _is_giant_one_short(point: Point, measured: Mapping[str, Any], threshold: int) -> bool:
    return (
        FAKE_FALLBACK in point.sample_reasons
        and point.total_kv_read_tokens >= threshold
        and measured.get(STEADY_SAMPLE) is True
        and measured["scheduled_requests"]["sum_decode_kv_tokens"]
        == point.total_kv_read_tokens - point.batch_size
    )

"""Knows how to make arbitrary valid messages for hypothesis (which only this file imports)."""

from __future__ import annotations

from hypothesis import strategies as st

from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["counts", "finite", "metrics", "queued", "scheduled"]

counts = st.integers(min_value=0, max_value=2**63 - 1)
"""A count, a sum or an id, as large as the wire allows."""

finite = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
"""A variance or a wall time."""

scheduled = st.builds(
    ScheduledRequestMetrics,
    num_prefill_requests=counts,
    sum_prefill_tokens=counts,
    var_prefill_length=finite,
    sum_prefill_kv_tokens=counts,
    num_decode_requests=counts,
    sum_decode_kv_tokens=counts,
    var_decode_kv_tokens=finite,
)

queued = st.builds(
    QueuedRequestMetrics,
    num_prefill_requests=counts,
    sum_prefill_tokens=counts,
    var_prefill_length=finite,
    num_decode_requests=counts,
    sum_decode_kv_tokens=counts,
    var_decode_kv_tokens=finite,
)

metrics = st.builds(
    ForwardPassMetrics,
    worker_id=st.text(max_size=40),
    dp_rank=counts,
    counter_id=counts,
    wall_time=finite,
    scheduled_requests=scheduled,
    queued_requests=queued,
)
"""Any message of this version. Fields are independent: the invariants between them need not hold."""

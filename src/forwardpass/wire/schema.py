"""Knows the Forward Pass Metrics schema, version 1.

Field names, order and defaults are those of NVIDIA Dynamo's ``ForwardPassMetrics``: a MessagePack map
with string keys. Evolution rules: new fields get defaults and go last; a field never changes its type
or meaning; readers ignore fields they do not know.

History of ``FPM_VERSION``: 1 (messages from before the field existed decode as 1).
"""

from __future__ import annotations

from msgspec import Struct

__all__ = [
    "FPM_VERSION",
    "ForwardPassMetrics",
    "QueuedRequestMetrics",
    "ScheduledRequestMetrics",
]

FPM_VERSION = 1


class ScheduledRequestMetrics(Struct, frozen=True, gc=False):
    """What ran in one forward pass. Counts and token sums are integers >= 0; variances are population
    variances (divide by n; 0.0 for fewer than two requests).
    """

    num_prefill_requests: int = 0
    """New requests plus continuations of chunked prefills."""
    sum_prefill_tokens: int = 0
    """Tokens computed for them in this pass: a chunk counts as the chunk; cached tokens do not count."""
    var_prefill_length: float = 0.0
    """Variance of their *whole prompt* lengths (tokens squared), not of the chunk sizes."""
    sum_prefill_kv_tokens: int = 0
    """Tokens whose KV is read instead of computed: prefix hits, transferred KV, earlier chunks."""
    num_decode_requests: int = 0
    """Requests in the generation phase."""
    sum_decode_kv_tokens: int = 0
    """Sum of their context lengths in KV, in tokens."""
    var_decode_kv_tokens: float = 0.0
    """Variance of those context lengths (tokens squared)."""


class QueuedRequestMetrics(Struct, frozen=True, gc=False):
    """What was waiting when the message was built. Units as in :class:`ScheduledRequestMetrics`."""

    num_prefill_requests: int = 0
    """Requests that wait for their first pass."""
    sum_prefill_tokens: int = 0
    """Sum of their whole prompt lengths, in tokens (cache hits are not known yet)."""
    var_prefill_length: float = 0.0
    """Variance of those lengths."""
    num_decode_requests: int = 0
    """Requests that were preempted or wait for transferred KV."""
    sum_decode_kv_tokens: int = 0
    """Sum of their context lengths, in tokens."""
    var_decode_kv_tokens: float = 0.0
    """Variance of those context lengths."""


class ForwardPassMetrics(Struct, frozen=True, gc=False):
    """One forward pass of one data-parallel rank, or a heartbeat (all zeros) of an idle one."""

    version: int = FPM_VERSION
    worker_id: str = ""
    """Decimal string of the worker's 64-bit connection id."""
    dp_rank: int = 0
    """Global data-parallel rank of the scheduler that ran the pass."""
    counter_id: int = 0
    """The publisher's own sequence, stamped just before encoding. Not a step id: ranks drift apart.
    Inside a self-benchmark artifact it is the point id instead.
    """
    wall_time: float = 0.0
    """Seconds. Each engine defines it its own way (vLLM: period between outputs); 0.0 only in heartbeats."""
    scheduled_requests: ScheduledRequestMetrics = ScheduledRequestMetrics()
    queued_requests: QueuedRequestMetrics = QueuedRequestMetrics()

"""What a row of TensorRT-LLM's iteration statistics becomes."""

from __future__ import annotations

from typing import Any

import pytest
from trtllm_rows import row

from forwardpass.engines.trtllm.stats_map import BATCHING, NEEDED, map_row, missing_keys
from forwardpass.errors import EngineError
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics


def test_each_field_has_its_source() -> None:
    """TRT-01: Counts, tokens and contexts are the row's; queued decodes are the paused and the queued ones;
    the latency is in seconds; all variances are 0.
    """
    one = map_row(row(rank=3))

    assert one.dp_rank == 3
    assert one.metrics == ForwardPassMetrics(
        wall_time=0.0125,
        scheduled_requests=ScheduledRequestMetrics(2, 384, 0.0, 128, 3, 9000, 0.0),
        queued_requests=QueuedRequestMetrics(4, 2048, 0.0, 1 + 6, 50 + 700, 0.0),
    )


@pytest.mark.parametrize("rank", [None, "absent"])
def test_without_attention_data_parallelism_the_rank_is_0(rank: object) -> None:
    """TRT-01: A rank that is null or missing is 0."""
    one = row(rank=None)
    if rank == "absent":
        del one["attentionDpRank"]

    assert map_row(one).dp_rank == 0


@pytest.mark.parametrize("key", NEEDED)
def test_every_needed_key_is_probed_for(key: str) -> None:
    """TRT-02: A row that lacks any of the eleven keys is told from one that has them."""
    assert missing_keys(row(**{key: None})) == (key,)
    with pytest.raises(EngineError, match=key):
        map_row(row(**{key: None}))


def test_a_row_without_the_nested_statistics_is_told() -> None:
    """TRT-02: The nested map itself may be missing, null or something else."""
    without = row()
    del without[BATCHING]

    assert missing_keys(row()) == ()
    for bad in (without, {BATCHING: None}, {BATCHING: []}, [], "text", None, 7):
        assert missing_keys(bad) == (BATCHING,)
        with pytest.raises(EngineError):
            map_row(bad)
    assert len(NEEDED) == 11


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, True, "1", None, [], float("nan")])
@pytest.mark.parametrize("key", ["numCtxTokens", "numPausedKvTokens"])
def test_a_count_is_an_integer_of_at_least_0(key: str, value: object) -> None:
    """TRT-03: Any other value is an error that names the key, not a number made of it."""
    one = row()
    one[BATCHING][key] = value

    with pytest.raises(EngineError, match=key):
        map_row(one)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "12", None, True, 10**400, "absent"])
def test_the_latency_is_milliseconds(value: Any) -> None:
    """TRT-03: A latency that is none is an error: a wall time of 0 would be a heartbeat."""
    one = row()
    one["iterLatencyMS"] = value
    if value == "absent":
        del one["iterLatencyMS"]

    with pytest.raises(EngineError, match="iterLatencyMS"):
        map_row(one)


@pytest.mark.parametrize("value", [-1, 1.5, True, "0"])
def test_a_rank_is_an_integer(value: object) -> None:
    """TRT-03: So is a rank that is none."""
    with pytest.raises(EngineError, match="attentionDpRank"):
        map_row({**row(), "attentionDpRank": value})

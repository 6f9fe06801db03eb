"""The schema is, name for name, the documented one."""

from __future__ import annotations

import msgspec
import pytest

from forwardpass.wire.schema import (
    FPM_VERSION,
    ForwardPassMetrics,
    QueuedRequestMetrics,
    ScheduledRequestMetrics,
)

COUNTED = ("num_prefill_requests", "sum_prefill_tokens", "var_prefill_length")
DECODED = ("num_decode_requests", "sum_decode_kv_tokens", "var_decode_kv_tokens")


def test_top_level_field_order() -> None:
    """WIRE-03: the top-level fields stand in the documented order."""
    expected = (
        "version",
        "worker_id",
        "dp_rank",
        "counter_id",
        "wall_time",
        "scheduled_requests",
        "queued_requests",
    )

    assert ForwardPassMetrics.__struct_fields__ == expected


def test_nested_field_order() -> None:
    """WIRE-10, WIRE-11: both nested maps share their names, but only a scheduled prefill has read KV."""
    assert ScheduledRequestMetrics.__struct_fields__ == (*COUNTED, "sum_prefill_kv_tokens", *DECODED)
    assert QueuedRequestMetrics.__struct_fields__ == (*COUNTED, *DECODED)


def test_defaults_are_an_idle_pass() -> None:
    """WIRE-17: a message built from nothing is version 1 and zero everywhere."""
    expected = {
        "version": 1,
        "worker_id": "",
        "dp_rank": 0,
        "counter_id": 0,
        "wall_time": 0.0,
        "scheduled_requests": dict.fromkeys((*COUNTED, "sum_prefill_kv_tokens", *DECODED), 0),
        "queued_requests": dict.fromkeys((*COUNTED, *DECODED), 0),
    }

    assert msgspec.to_builtins(ForwardPassMetrics()) == expected
    assert FPM_VERSION == 1


@pytest.mark.parametrize("kind", [ScheduledRequestMetrics, QueuedRequestMetrics, ForwardPassMetrics])
def test_variances_and_times_are_floats_the_rest_integers(kind: type[msgspec.Struct]) -> None:
    """WIRE-04: only variances and the wall time are floats, so that zeros are written in one form."""
    instance = kind()
    floats = {name for name in kind.__struct_fields__ if type(getattr(instance, name)) is float}

    assert floats == {n for n in kind.__struct_fields__ if n.startswith("var_") or n == "wall_time"}


def test_messages_cannot_change() -> None:
    """A message that was built is a value: a publisher stamps a copy."""
    with pytest.raises(AttributeError):
        ForwardPassMetrics().counter_id = 1  # type: ignore[misc]

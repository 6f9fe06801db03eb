"""What ranks say to each other: names, fields, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.bench.sync import messages as m
from forwardpass.errors import MalformedPayload

READY: dict[str, Any] = {
    "type": "ready",
    "benchmark_id": 3,
    "dp_rank": 1,
    "point_digest": "d",
    "output_summary": {"sum_prefill_tokens": 4},
    "validation_error": None,
}


def from_follower(fields: dict[str, Any]) -> Any:
    return m.read_from_follower(json.dumps(fields).encode())


def test_a_message_is_one_json_object() -> None:
    """SYNC-03: A message is a JSON object with its type, and comes back as it was."""
    message = m.Ready(
        benchmark_id=3,
        dp_rank=1,
        point_digest="d",
        output_summary={"sum_prefill_tokens": 4},
        validation_error=None,
    )

    assert json.loads(m.encode(message)) == READY
    assert m.read_from_follower(m.encode(message)) == message


def test_unknown_fields_are_ignored() -> None:
    """SYNC-03: A field that a later version may add does no harm."""
    assert from_follower({**READY, "mood": [1, {"a": None}]}) == from_follower(READY)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"benchmark_id": "3"}, "$.benchmark_id"),
        ({"benchmark_id": -1}, "$.benchmark_id"),
        ({"benchmark_id": True}, "$.benchmark_id"),
        ({"benchmark_id": 3.0}, "$.benchmark_id"),
        ({"dp_rank": None}, "$.dp_rank"),
        ({"point_digest": 5}, "$.point_digest"),
        ({"output_summary": [1]}, "$.output_summary"),
        ({"validation_error": False}, "$.validation_error"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(change: dict[str, Any], path: str) -> None:
    """SYNC-04: Nothing is coerced, and the error says which field it is."""
    with pytest.raises(MalformedPayload) as caught:
        from_follower({**READY, **change})

    assert caught.value.path == path


@pytest.mark.parametrize("missing", sorted(READY))
def test_a_missing_field_is_named(missing: str) -> None:
    """SYNC-04: Every field is required, also those that may be null."""
    with pytest.raises(MalformedPayload, match=missing):
        from_follower({name: value for name, value in READY.items() if name != missing})


def test_a_type_of_the_other_direction_is_refused() -> None:
    """SYNC-04: What only rank 0 sends is refused from another rank, and the other way round."""
    with pytest.raises(MalformedPayload, match="prepare"):
        m.read_from_follower(m.encode(m.Prepare(benchmark_id=1)))
    with pytest.raises(MalformedPayload, match="ready"):
        m.read_from_zero(json.dumps(READY).encode())


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    """SYNC-04: Whatever comes in, there is a message or the one declared error."""
    for read in (m.read_from_follower, m.read_from_zero):
        try:
            read(data)
        except MalformedPayload:
            continue
        assert json.loads(data)["type"]


@pytest.mark.parametrize("cut", range(0, len(json.dumps(READY)), 7))
def test_a_cut_message_is_refused(cut: int) -> None:
    """SYNC-04: A part of a message is no message."""
    with pytest.raises(MalformedPayload):
        m.read_from_follower(json.dumps(READY).encode()[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"type":"abort","dp_rank":1,"error":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"type":"result","benchmark_id":1,"dp_rank":1,"point_digest":"","stop_requested":true,"fpms":[{"a":'
        + b"[" * 90_000,
        b'{"type":"abort","dp_rank":1,"error":"\\ud800"}',
        b'{"type":"abort","dp_rank":99999999999999999999999999,"error":""}',
    ],
)
def test_hostile_json_is_refused(data: bytes) -> None:
    """SYNC-04: Deep nesting, broken text and numbers beyond measure are refused like anything else."""
    with pytest.raises(MalformedPayload):
        m.read_from_follower(data)


def test_a_peers_text_cannot_steer_a_terminal() -> None:
    """SYNC-04: What a peer wrote is shown without control characters, and not without end."""
    with pytest.raises(MalformedPayload) as caught:
        from_follower({**READY, "type": "\x1b[2J\u202eevil\n"})

    assert str(caught.value).isprintable()
    assert len(m.shown("a" * 10_000)) == 2000


def test_results_are_the_same_on_every_rank() -> None:
    """SYNC-23: A rank goes by its own results as JSON carries them, like the others."""
    measured = {"wall_time": 0.1, "counts": (1, 2), 3: {"x": None}}

    assert m.plain([measured]) == ({"wall_time": 0.1, "counts": [1, 2], "3": {"x": None}},)  # type: ignore[list-item]
    assert m.plain(m.plain([measured])) == m.plain([measured])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"x", "\ud800"])
def test_results_that_json_cannot_hold_are_refused(value: object) -> None:
    """SYNC-23: A NaN would arrive as something else, so that ranks would differ."""
    with pytest.raises((ValueError, TypeError)):
        m.plain([{"wall_time": value}])

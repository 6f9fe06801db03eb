"""Messages of publishers that are older than ``version`` and ``counter_id``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forwardpass.wire.codec import decode_full, encode
from forwardpass.wire.complete import complete, complete_many
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload

WHOLE = encode(ForwardPassMetrics(worker_id="w7", dp_rank=1, counter_id=300, wall_time=0.5))


def without(*names: str, **more: Any) -> bytes:
    """Return the whole message without some fields, and with others after them."""
    fields = msgspec.msgpack.decode(WHOLE)
    return msgspec.msgpack.encode({name: fields[name] for name in fields if name not in names} | more)


@pytest.mark.parametrize("missing", [("version", "counter_id"), ("version",), ("counter_id",)])
def test_what_is_missing_is_put_where_it_belongs(missing: tuple[str, ...]) -> None:
    """SGL-05: The completed message is, bit for bit, the one that a newer publisher sends."""
    assert complete(without(*missing), 300) == WHOLE


def test_a_whole_message_is_returned_as_it_is() -> None:
    """SGL-05: Nothing is made anew for a message that has both, whatever its sequence is."""
    batch = [WHOLE, without("version")]

    assert complete(WHOLE, 5) is WHOLE
    assert complete_many(batch, [5, 6]) is batch


def test_a_batch_of_an_old_publisher_is_completed_one_by_one() -> None:
    """SGL-05: Each message gets its own number, and a whole one among them stays as it is."""
    old = without("version", "counter_id")
    made = complete_many([old, WHOLE, old], [7, 8, 2**64 - 1])

    counters = [msgspec.msgpack.decode(payload)["counter_id"] for payload in made]
    assert counters == [7, 300, 2**64 - 1]
    assert complete_many([], []) == []


def test_other_fields_are_kept() -> None:
    """SGL-05: Fields unknown to us, binary ones too, come through."""
    made = complete(without("version", "counter_id", more=b"\x00\xff", timing_scope="x"), 4)

    decoded = decode_full(made)
    assert decoded.metrics.counter_id == 4
    assert {name: msgspec.msgpack.decode(raw) for name, raw in decoded.unknown.items()} == {
        "more": b"\x00\xff",
        "timing_scope": "x",
    }


def test_a_message_without_a_rank_has_its_counter_at_the_end() -> None:
    """SGL-05: What else is missing is not made up, and the trace refuses it as ever."""
    made = complete(without("version", "counter_id", "dp_rank"), 4)

    assert list(msgspec.msgpack.decode(made))[-1] == "counter_id"
    with pytest.raises(Exception, match="dp_rank"):
        validate_payload(made)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, "w", 0, 0, 0.0, [0] * 7, [0] * 6]),  # the array form
        msgspec.msgpack.encode({1: 2}),
        b"\x81\xa3\xff\xfe\xfd\x01",  # a key that is no text
        without("version")[:-3],
        msgspec.msgpack.encode("version"),
    ],
)
def test_what_is_no_message_is_returned_as_it_is(payload: bytes) -> None:
    """SGL-06: The array form is not made a message, and nothing of a stranger's bytes raises."""
    assert complete(payload, 1) is payload

"""Whatever a stream delivers is a row that every reader takes, or given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.collect.sort import sort_messages
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import subject
from forwardpass.plane.nats.consumer import Delivery
from forwardpass.testing.strategies import metrics
from forwardpass.trace.record import MessageId, decode_line
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import Endpoint

U64 = st.integers(0, 2**64 - 1)
NAMES = st.text(min_size=1, max_size=8)
SUBJECTS = st.one_of(
    st.text(max_size=60),
    st.builds(lambda parts: subject(Endpoint(*parts)), st.tuples(NAMES, NAMES, NAMES)),
)
ENVELOPES = st.builds(encode_envelope, U64, U64, U64, st.one_of(st.binary(), metrics.map(encode)))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return an envelope with a few bytes changed, or anything at all."""
    body = bytearray(draw(st.one_of(st.binary(max_size=80), ENVELOPES)))
    for _ in range(draw(st.integers(0, 2)) if body else 0):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


@given(st.lists(st.tuples(SUBJECTS, bodies()), max_size=6))
def test_any_delivery(messages: list[tuple[str, bytes]]) -> None:
    """COLLECT-04, COLLECT-07: Each message is a row that decodes, with its message, or is given up."""
    deliveries = [Delivery(where, body, 1, 1000, f"reply-{at}") for at, (where, body) in enumerate(messages)]
    found = sort_messages(deliveries, 5)

    assert sorted(
        [row.delivery.reply for row in found.rows] + [delivery.reply for delivery in found.unusable]
    ) == sorted(delivery.reply for delivery in deliveries)
    assert len(found.reasons) == len(found.unusable)
    for row in found.rows:
        record = decode_line(row.line.rstrip(b"\n"))
        assert record.message_id == row.message_id
        assert record.source.producer_id == str(row.message_id.publisher_id)


@given(st.tuples(NAMES, NAMES, NAMES), U64, U64, metrics)
def test_what_a_publisher_sends_is_a_row(
    names: tuple[str, str, str], publisher: int, sequence: int, message: object
) -> None:
    """COLLECT-03: Every message that a publisher may send from any endpoint is a row."""
    body = encode_envelope(publisher, sequence, 1, encode(message))  # type: ignore[arg-type]
    found = sort_messages([Delivery(subject(Endpoint(*names)), body, 1, 1000, "reply")], 5)
    (row,) = found.rows

    assert row.message_id == MessageId(publisher, sequence)
    source = decode_line(row.line.rstrip(b"\n")).source
    assert (source.namespace, source.component) == names[:2]

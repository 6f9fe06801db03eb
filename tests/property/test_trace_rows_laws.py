"""Laws of row encoding, for any message."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.errors import WireError
from forwardpass.testing import strategies
from forwardpass.trace.record import TraceSource, decode_line
from forwardpass.trace.rows import encode_rows, read_payloads
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import CanonicalMetrics, validate_payload

SOURCE = TraceSource("dynamo", "bäckend", "42")
many = st.lists(strategies.metrics, min_size=1, max_size=20)


def lines(payloads: list[bytes]) -> list[bytes]:
    """Return the rows of payloads, all accepted, made by the fast way."""
    bodies = [body for body in read_payloads(payloads) if not isinstance(body, WireError)]
    return encode_rows([(SOURCE, 5, p) for p in payloads], bodies, "full", 1).splitlines(keepends=True)


@settings(deadline=None)
@given(many)
def test_both_ways_give_the_same_text(messages: list[ForwardPassMetrics]) -> None:
    """The fast way writes byte for byte what validating each payload on its own would write."""
    payloads = [encode(message) for message in messages]
    assert all(isinstance(body, CanonicalMetrics) for body in read_payloads(payloads))
    documents = [validate_payload(payload) for payload in payloads]
    expected = encode_rows([(SOURCE, 5, p) for p in payloads], documents, "full", 1)

    assert b"".join(lines(payloads)) == expected


@settings(deadline=None)
@given(many, st.data())
def test_a_batch_is_the_sum_of_its_parts(messages: list[ForwardPassMetrics], data: st.DataObject) -> None:
    """Where a batch is cut makes no difference, also with refused and unusual payloads in it."""
    payloads = [encode(message) for message in messages]
    for position in data.draw(st.sets(st.integers(0, len(payloads) - 1))):
        payloads[position] = data.draw(
            st.sampled_from(
                [
                    payloads[position][:-1],
                    msgspec.msgpack.encode({**msgspec.to_builtins(messages[position]), "new": 1}),
                    b"",
                ]
            )
        )
    cut = data.draw(st.integers(0, len(payloads)))
    parts = read_payloads(payloads[:cut]) + read_payloads(payloads[cut:])
    whole = read_payloads(payloads)

    assert [str(body) if isinstance(body, WireError) else body for body in whole] == [
        str(body) if isinstance(body, WireError) else body for body in parts
    ]


@settings(deadline=None)
@given(strategies.metrics)
def test_rows_read_back_as_the_message(message: ForwardPassMetrics) -> None:
    """TRACE-20: our reader and the standard library's JSON both get the message back from its row."""
    (line,) = lines([encode(message)])

    assert decode_line(line[:-1]).metrics == message
    assert json.loads(line)["event"]["fpm"] == msgspec.to_builtins(message)

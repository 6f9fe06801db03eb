"""Subjects that may overlap, and what the reply subject of a delivery says."""

from __future__ import annotations

import pytest

from forwardpass.plane.names import ANY_SUBJECT
from forwardpass.plane.nats.consumer import _facts
from forwardpass.plane.nats.stream import may_overlap


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (ANY_SUBJECT, True),
        (">", True),
        ("namespace.>", True),
        ("namespace.prod.component.*.endpoint.*.forward-pass-metrics", True),
        ("*.*.*.*.*.*.*", True),
        ("*.*.*.*.*.*", False),
        ("namespace.*.component.*.endpoint.*.kv-events", False),
        ("orders.>", False),
        ("namespace", False),
    ],
)
def test_overlap(pattern: str, expected: bool) -> None:
    """COLLECT-01: A stream is one for forward passes if one of its subjects can be an endpoint's."""
    assert may_overlap(pattern, ANY_SUBJECT) is expected
    assert may_overlap(ANY_SUBJECT, pattern) is expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.stream.durable.3.17.9.1796042065123456789.0", (3, 1796042065123)),
        ("$JS.ACK.domain.hash.stream.durable.3.17.9.1796042065123456789.0", (3, 1796042065123)),
        ("$JS.ACK.domain.hash.stream.durable.3.17.9.1796042065123456789.0.random", (3, 1796042065123)),
        ("$JS.ACK.stream.durable.x.17.9.1796042065123456789.0", None),
        ("_INBOX.abc", None),
        ("$JS.ACK.too.short", None),
    ],
)
def test_what_a_delivery_says(reply: str, expected: tuple[int, int] | None) -> None:
    """How often a message was delivered and when it was stored stand in the reply subject, in both forms."""
    assert _facts(reply) == expected

"""How endpoints are called on a plane."""

from __future__ import annotations

import pytest

from forwardpass.plane.names import (
    discovery_path,
    draw_publisher_id,
    encode_segment,
    subject,
    subject_prefix,
)
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint


def test_subject_of_the_default_endpoint() -> None:
    """The subject is the one that the reference was seen to use."""
    assert subject(Endpoint()) == (
        "namespace.dynamo.component.backend.endpoint.generate.forward-pass-metrics"
    )


def test_subject_starts_with_its_prefix() -> None:
    """A subject is its endpoint's prefix, a dot and the topic."""
    assert subject(Endpoint("a", "b", "c"), "other") == f"{subject_prefix(Endpoint('a', 'b', 'c'))}.other"


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain-Name_1", "plain-Name_1"),
        ("my ns", "my%20ns"),
        ("a.b", "a%2Eb"),
        ("100%", "100%25"),
        ("*", "%2A"),
        (">", "%3E"),
        ("a/b", "a%2Fb"),
        ("ü", "%C3%BC"),
        ("日", "%E6%97%A5"),
        ("\x7f", "%7F"),
        ("٣", "%D9%A3"),
        ("\ud800", "%ED%A0%80"),
        ("", ""),
    ],
)
def test_segment_encoding(text: str, encoded: str) -> None:
    """ASCII letters, digits, dash and underscore stay; every other UTF-8 byte becomes %XX in capitals."""
    assert encode_segment(text) == encoded


def test_discovery_path_vector() -> None:
    """The path under which a publisher is announced has the id in lower-case hex without padding."""
    assert discovery_path(Endpoint("my ns", "back-end", "gen_1"), 1000) == (
        "namespace/my%20ns/component/back-end/endpoint/gen_1/topic/forward-pass-metrics/3e8"
    )


def test_names_do_not_collide() -> None:
    """Endpoints that differ only in where their dots are have different subjects."""
    endpoints = [Endpoint("a.b", "c", "d"), Endpoint("a", "b.c", "d"), Endpoint("a", "b", "c.d")]

    assert len({subject(endpoint) for endpoint in endpoints}) == 3


def test_publisher_ids_survive_json() -> None:
    """Publisher ids are random and have at most 53 bits, so that doubles keep them exact."""
    ids = {draw_publisher_id() for _ in range(1000)}

    assert len(ids) == 1000
    assert all(0 <= one <= MAX_PRODUCER_ID and int(float(one)) == one for one in ids)

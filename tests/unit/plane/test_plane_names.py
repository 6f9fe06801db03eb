"""How endpoints are called on a plane."""

from __future__ import annotations

import pytest

from forwardpass.plane.names import (
    MAX_SEGMENT,
    discovery_path,
    draw_publisher_id,
    encode_segment,
    endpoint_of,
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


@pytest.mark.parametrize("name", ["plain", "my ns", "a.b", "100%", "*", "日", "\x1b[31m", "n" * 239])
def test_an_endpoint_comes_back_from_its_subject(name: str) -> None:
    """COLLECT-03: Whatever its names contain, a subject gives its endpoint back."""
    endpoint = Endpoint(name, f"{name}2", name)

    assert endpoint_of(subject(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "namespace.a.component.b.endpoint.c",
        "namespace.a.component.b.endpoint.c.other-topic",
        "namespace.a.component.b.point.c.forward-pass-metrics",
        "namespace.a.component..endpoint.c.forward-pass-metrics",
        "namespace.a.component.%2e.endpoint.c.forward-pass-metrics",
        "namespace.a.component.%FF.endpoint.c.forward-pass-metrics",
        "namespace.a.component.%ED%A0%80.endpoint.c.forward-pass-metrics",
        "namespace.a.component.ü.endpoint.c.forward-pass-metrics",
        "namespace.a.component.b.c.endpoint.c.forward-pass-metrics",
        f"namespace.{'n' * (MAX_SEGMENT + 1)}.component.b.endpoint.c.forward-pass-metrics",
    ],
)
def test_what_is_no_subject_of_an_endpoint(text: str) -> None:
    """COLLECT-07: Any other subject is refused, also one whose names are no text."""
    with pytest.raises(ValueError, match=r"is no |codec"):
        endpoint_of(text)

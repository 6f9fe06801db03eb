"""Who a stream belongs to, and how that becomes part of a file name."""

from __future__ import annotations

import pytest

from forwardpass.wire.keys import Endpoint, sanitize_producer_id


@pytest.mark.parametrize(
    ("producer_id", "expected"),
    [
        ("16475254495152383406", "16475254495152383406"),
        ("a-b_C9", "a-b_C9"),
        ("../../etc/passwd", "______etc_passwd"),
        ("a.b:c d", "a_b_c_d"),
        ("é١", "__"),
        ("", "unknown"),
        ("...", "___"),
    ],
)
def test_file_name_part(producer_id: str, expected: str) -> None:
    """TRACE-05: outside ``[A-Za-z0-9_-]`` each character becomes one ``_``; nothing becomes ``unknown``."""
    assert sanitize_producer_id(producer_id) == expected


def test_endpoint_is_three_parts() -> None:
    """An endpoint is written with two dots, and its text is read back as it was."""
    endpoint = Endpoint.parse("prod.decode.generate")

    assert endpoint == Endpoint("prod", "decode", "generate")
    assert str(endpoint) == "prod.decode.generate"
    assert str(Endpoint()) == "dynamo.backend.generate"


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c.d", ".b.c", "a..c", "a.b."])
def test_other_texts_are_no_endpoint(text: str) -> None:
    """Anything but three non-empty parts is refused."""
    with pytest.raises(ValueError):
        Endpoint.parse(text)

"""The rules that a payload must keep to stand in a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from forwardpass.errors import MalformedPayload, UnsupportedVersion
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import CanonicalMetrics, validate_payload

pack = msgspec.msgpack.encode
Document = dict[str, Any]


def document() -> Document:
    """Return a fresh valid message as a map."""
    return msgspec.to_builtins(ForwardPassMetrics(worker_id="w", counter_id=1, wall_time=0.5))


def fields() -> Iterator[tuple[str, ...]]:
    """Yield the path of every field of the schema."""
    for name, value in document().items():
        yield (name,)
        if isinstance(value, dict):
            yield from ((name, inner) for inner in value)


def place(path: tuple[str, ...]) -> tuple[Document, Document, str]:
    """Return a fresh document, the map that holds the field, and its name there."""
    whole = document()
    inner = whole
    for name in path[:-1]:
        inner = inner[name]
    return whole, inner, path[-1]


def test_a_valid_payload_comes_back_as_it_is() -> None:
    """TRACE-20: the map is returned with its own key order and types."""
    shuffled = dict(reversed(document().items()))

    assert list(validate_payload(pack(shuffled)).items()) == list(shuffled.items())


def test_integers_stay_integers() -> None:
    """TRACE-20: an integer where a float is expected is valid, and written as the integer it was."""
    whole = document()
    whole["wall_time"] = 2
    whole["queued_requests"]["var_prefill_length"] = 3
    result = validate_payload(pack(whole))

    assert msgspec.json.encode(result) == msgspec.json.encode(whole)
    assert type(msgspec.convert(result, CanonicalMetrics).wall_time) is int


@pytest.mark.parametrize("path", list(fields()), ids=".".join)
def test_every_field_is_required(path: tuple[str, ...]) -> None:
    """TRACE-21: a payload that lacks any field is refused: a default is not evidence."""
    whole, inner, name = place(path)
    del inner[name]
    with pytest.raises(MalformedPayload) as caught:
        validate_payload(pack(whole))

    assert caught.value.path == ".".join(("$", *path[:-1]))


@pytest.mark.parametrize("path", list(fields()), ids=".".join)
@pytest.mark.parametrize("value", [None, True, "1", b"1", [1], {"a": 1}], ids=repr)
def test_wrong_types(path: tuple[str, ...], value: object) -> None:
    """TRACE-21: null, booleans, text, binary and containers are refused where another type is due."""
    if path == ("worker_id",) and value == "1":
        return
    whole, inner, name = place(path)
    inner[name] = value
    with pytest.raises(MalformedPayload) as caught:
        validate_payload(pack(whole))

    assert caught.value.path.startswith(".".join(("$", *path)))


@pytest.mark.parametrize("path", [p for p in fields() if type(place(p)[1][p[-1]]) is int], ids=".".join)
@pytest.mark.parametrize("value", [-1, 1.0, 1.5, float("nan")], ids=repr)
def test_counts_are_integers(path: tuple[str, ...], value: float) -> None:
    """TRACE-21: counts, sums and ids are integers >= 0; 1.0 is none."""
    whole, inner, name = place(path)
    inner[name] = value
    refused = UnsupportedVersion if path == ("version",) and value == -1 else MalformedPayload
    with pytest.raises(refused):
        validate_payload(pack(whole))


@pytest.mark.parametrize("path", [p for p in fields() if type(place(p)[1][p[-1]]) is float], ids=".".join)
@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), float("-inf")], ids=repr)
def test_floats_are_finite_and_not_negative(path: tuple[str, ...], value: float) -> None:
    """TRACE-21: variances and the wall time are finite numbers >= 0 (JSON has no other)."""
    whole, inner, name = place(path)
    inner[name] = value
    with pytest.raises(MalformedPayload) as caught:
        validate_payload(pack(whole))

    assert caught.value.path == ".".join(("$", *path))


@pytest.mark.parametrize("name", ["dp_rank", "counter_id"])
def test_ids_are_signed_64_bit(name: str) -> None:
    """WIRE-13, TRACE-21: 2**63 - 1 is the last rank and counter that a trace takes."""
    largest = {**document(), name: 2**63 - 1}

    assert validate_payload(pack(largest))[name] == 2**63 - 1
    with pytest.raises(MalformedPayload):
        validate_payload(pack({**largest, name: 2**63}))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": 2, "dp_rank": "x"},
        {"version": 2, "x": b"binary"},
        {"version": 2, "wall_time": float("nan")},
        {"version": 0},
    ],
    ids=repr,
)
def test_other_versions(change: Document) -> None:
    """WIRE-05, TRACE-21, D-6: another integer version is called unsupported, whatever else is wrong."""
    with pytest.raises(UnsupportedVersion) as caught:
        validate_payload(pack({**document(), **change}))

    assert caught.value.version == change["version"]


def test_version_of_a_body_that_is_no_text() -> None:
    """D-6: a body of version 2 that cannot even be read as a map of values is still version 2."""
    with pytest.raises(UnsupportedVersion):
        validate_payload(b"\x82\xa7version\x02\xa1x\xa1\xff")


ADDED: list[tuple[str, object]] = [
    ("text", "é\n"),
    ("list", [1, [2.5, None], True]),
    ("map", {"a": {"b": 2**64 - 1}}),
    ("negative", -5),
    ("null", None),
]


@pytest.mark.parametrize("place_of", [lambda d: d, lambda d: d["queued_requests"]], ids=["top", "nested"])
@pytest.mark.parametrize("value", [v for _, v in ADDED], ids=[n for n, _ in ADDED])
def test_unknown_fields_are_kept(place_of: Callable[[Document], Document], value: object) -> None:
    """TRACE-22: unknown fields that JSON can hold pass through unchanged and in place."""
    whole = document()
    place_of(whole)["a_new_field"] = value

    assert list(validate_payload(pack(whole)).items()) == list(whole.items())


UNFIT: list[tuple[str, object, str]] = [
    ("binary", b"\x00", ""),
    ("extension", msgspec.msgpack.Ext(3, b"x"), ""),
    ("timestamp", msgspec.msgpack.Ext(-1, b"\0\0\0\0"), ""),
    ("nan", [float("nan")], "[0]"),
    ("infinite", {"a": float("inf")}, ".a"),
    ("integer key", {"a": {1: 2}}, ".a"),
    ("null key", {None: 2}, ""),
]


@pytest.mark.parametrize("home", ["$", "$.scheduled_requests"])
@pytest.mark.parametrize(("value", "where"), [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT])
def test_unknown_fields_without_a_json_form(home: str, value: object, where: str) -> None:
    """TRACE-22: a payload with a value that JSON cannot hold is refused, with the value's path."""
    whole = document()
    (whole if home == "$" else whole["scheduled_requests"])["new"] = value
    with pytest.raises(MalformedPayload) as caught:
        validate_payload(pack(whole))

    assert caught.value.path == f"{home}.new{where}"


def test_keys_that_are_no_text_beside_known_fields() -> None:
    """TRACE-22: an integer key is refused in a known map too."""
    whole = document()
    whole["scheduled_requests"][7] = 1
    with pytest.raises(MalformedPayload):
        validate_payload(pack(whole))


def nested(depth: int) -> bytes:
    """Return a message whose unknown field is ``depth`` lists deep."""
    return pack({**document(), "x": 0})[:-1] + b"\x91" * depth + b"\x00"


def test_depth_is_bounded() -> None:
    """TRACE-22: what is accepted is nested so little that every JSON reader takes the row."""
    assert msgspec.json.encode(validate_payload(nested(99)))
    for depth in (100, 500, 5000):
        with pytest.raises(MalformedPayload):
            validate_payload(nested(depth))


@pytest.mark.parametrize(
    "data",
    [
        pack(list(document().values())),
        pack([document()]),
        b"",
        b"\xc1",
        pack("text"),
    ],
)
def test_not_one_map(data: bytes) -> None:
    """TRACE-21: array form and other values are refused."""
    with pytest.raises(MalformedPayload):
        validate_payload(data)


@pytest.mark.parametrize("more", [b"\x00", b"\xc1\xff", encode(ForwardPassMetrics(dp_rank=7))])
def test_bytes_after_the_map_are_passed_over(more: bytes) -> None:
    """TRACE-21: What follows the map is not looked at, as in the reference's trace."""
    assert validate_payload(encode(ForwardPassMetrics()) + more)["dp_rank"] == 0


def test_publisher_output_is_canonical() -> None:
    """WIRE-02: whatever the encoder writes for sane values is fit for a trace."""
    assert validate_payload(encode(ForwardPassMetrics()))["worker_id"] == ""

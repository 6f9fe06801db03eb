"""What discovery records say, and what of what others write is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.errors import MalformedPayload
from forwardpass.plane.discovery.file_names import file_name, path_of
from forwardpass.plane.discovery.records import (
    Brokers,
    ModelCard,
    broker_prefix,
    card_path,
    card_prefix,
    channel_prefix,
    read_broker,
    read_card,
    read_channel,
    write_card,
    write_channel,
)
from forwardpass.plane.names import discovery_path
from forwardpass.wire.keys import Endpoint

HERE = Endpoint("my ns", "back-end", "gen_1")
CHANNEL = (
    '{"type":"EventChannel","scope":{"kind":"endpoint","endpoint":{"namespace":"my ns","component":'
    '"back-end","name":"gen_1"}},"topic":"forward-pass-metrics","instance_id":4173106391086606,"transport":'
    '{"kind":"Zmq","config":{"endpoint":"tcp://127.0.0.1:41093"}}}'
)
"""As the reference wrote it."""


def test_the_references_channel_record() -> None:
    """PLANE-11: We write a publisher's record byte for byte as the reference does, and read it."""
    assert write_channel(HERE, 4173106391086606, "tcp://127.0.0.1:41093").decode() == CHANNEL
    assert read_channel(CHANNEL.encode(), HERE) == "tcp://127.0.0.1:41093"


def test_file_name_vector() -> None:
    """PLANE-12: The specification's file name of a publisher's record."""
    assert file_name(discovery_path(HERE, 1000)) == (
        "namespace%2Fmy%2520ns%2Fcomponent%2Fback%2Dend%2Fendpoint%2Fgen%5F1"
        "%2Ftopic%2Fforward%2Dpass%2Dmetrics%2F3e8"
    )


@given(st.text(min_size=1, max_size=60))
def test_file_names_come_back(path: str) -> None:
    """PLANE-12: Every path has one file name, of letters, digits and percent signs, that gives it back."""
    assert path_of(file_name(path)) == path


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2f", "a%", "a%2", "%41", "a b", "%FF", "ä", "a\n"])
def test_names_of_no_record(name: str) -> None:
    """PLANE-12: A name that no path has is no record's: nothing in it can lead out of the folder."""
    assert path_of(name) is None


def test_prefixes() -> None:
    """PLANE-11: The paths of an endpoint's publishers begin with its prefix, and no other endpoint's do."""
    assert discovery_path(HERE, 1000) == f"{channel_prefix(HERE)}3e8"
    assert not discovery_path(Endpoint("my ns", "back-end", "gen_12"), 1).startswith(channel_prefix(HERE))
    assert card_path(HERE, 1000) == "my ns/back-end/gen_1/3e8"
    assert card_path(HERE, 1000, "lora") == "my ns/back-end/gen_1/3e8/lora"
    assert broker_prefix(HERE) == "namespace/my%20ns/component/zmq_broker/"


def _changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(CHANNEL), **changes}).encode()


NOT_OURS = {
    "empty": b"",
    "no JSON": b"\x00\xff",
    "no map": b"[1]",
    "another type": _changed(type="Instance"),
    "another endpoint": _changed(scope={"kind": "endpoint", "endpoint": {"namespace": "a"}}),
    "another scope": _changed(scope={"kind": "component", "component": {}}),
    "another topic": _changed(topic="kv-events"),
    "NATS": _changed(transport={"kind": "Nats", "config": {"subject_prefix": "x"}}),
    "NaN": CHANNEL.replace("4173106391086606", "NaN").encode(),
    "a fraction": CHANNEL.replace("4173106391086606", "1.5").encode(),
    "2**64": CHANNEL.replace("4173106391086606", str(2**64)).encode(),
    "a long id": CHANNEL.replace("4173106391086606", "9" * 1_000_000).encode(),
    "negative": CHANNEL.replace("4173106391086606", "-1").encode(),
    "deep": b"[" * 200_000,
    "deep inside": CHANNEL.replace("4173106391086606", "[" * 100_000).encode(),
    "no address": _changed(transport={"kind": "Zmq", "config": {}}),
    "escape sequences": _changed(topic="\x1b]0;title\x07"),
    "escape sequences as the type": _changed(type="it's \x1b[2J\n"),
    "a long type": _changed(type="x" * 1_000_000),
    "escape sequences as the transport": _changed(transport={"kind": "\x1b[2J"}),
    "escape sequences as a name": _changed(**{"\x1b[2J": 1, "scope": {"\x1b[2J": 1}}),
}


@pytest.mark.parametrize("value", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_records_that_are_not_taken(value: bytes) -> None:
    """PLANE-13: What is no record of a publisher of this endpoint is our declared error, whatever it holds,
    and the error is short and shows none of it.
    """
    for read in (lambda: read_channel(value, HERE), lambda: read_card("x", value, HERE)):
        with pytest.raises(MalformedPayload) as caught:
            read()
        assert len(str(caught.value)) < 300
        assert "\x1b" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes(value: bytes) -> None:
    """PLANE-13: Any bytes give a record or our declared error."""
    for read in (
        lambda: read_channel(value, HERE),
        lambda: read_broker(value),
        lambda: read_card("x", value, HERE),
    ):
        with pytest.raises(MalformedPayload):
            read()


def test_unknown_fields_are_passed_over() -> None:
    """PLANE-13: A record with fields that came later is read."""
    assert read_channel(_changed(later={"a": [None]}), HERE) == "tcp://127.0.0.1:41093"


def test_broker_records() -> None:
    """PLANE-21: A broker's record lists both sides; its scope is the prefix it was found under."""
    transport = {
        "kind": "ZmqBroker",
        "config": {"xsub_endpoints": ["tcp://a:1"], "xpub_endpoints": ["tcp://a:2"]},
    }

    assert read_broker(_changed(transport=transport)) == Brokers(("tcp://a:1",), ("tcp://a:2",))


def test_cards() -> None:
    """PLANE-16: A card is read with its worker and, for an adapter's, the suffix of its path; its JSON stays
    as it was written.
    """
    value = write_card(HERE, 1000, {"display_name": "tiny", "x": 1.0})

    assert json.loads(value) == {
        "type": "Model",
        "namespace": "my ns",
        "component": "back-end",
        "endpoint": "gen_1",
        "instance_id": 1000,
        "card_json": {"display_name": "tiny", "x": 1.0},
    }
    assert read_card(f"{card_prefix(HERE)}3e8", value, HERE) == ModelCard(
        1000, "", '{"display_name":"tiny","x":1.0}'
    )
    assert read_card(f"{card_prefix(HERE)}3e8/lora/x", value, HERE).suffix == "lora/x"


def test_a_card_in_a_wrong_place() -> None:
    """PLANE-16: A card whose path names another worker, or that is another endpoint's, is not taken."""
    value = write_card(HERE, 1000, {})

    for path, endpoint in ((f"{card_prefix(HERE)}3e9", HERE), ("a/b/c/3e8", Endpoint("a", "b", "c"))):
        with pytest.raises(MalformedPayload):
            read_card(path, value, endpoint)

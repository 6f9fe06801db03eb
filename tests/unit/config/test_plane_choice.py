"""Which event plane the settings choose."""

from __future__ import annotations

import pytest

from forwardpass.cli.recording import plane_words
from forwardpass.config.plane_choice import PlaneChoice, chosen_plane
from forwardpass.config.settings import RelaySettings, Sources
from forwardpass.errors import ConfigError
from forwardpass.plane.select import plane_url


@pytest.mark.parametrize(
    ("variables", "url", "chosen_by"),
    [
        ({}, None, ""),
        ({"FORWARDPASS_PLANE": "memory:x", "DYN_EVENT_PLANE": "nats"}, "memory:x", "FORWARDPASS_PLANE"),
        ({"FORWARDPASS_PLANE": "none", "DYN_EVENT_PLANE": "nats"}, None, "FORWARDPASS_PLANE"),
        ({"FORWARDPASS_PLANE": " ", "DYN_EVENT_PLANE": "nats"}, "nats:", "DYN_EVENT_PLANE"),
        ({"DYN_EVENT_PLANE": "zmq", "NATS_SERVER": "nats://n:4222"}, "zmq:", "DYN_EVENT_PLANE"),
        ({"DYN_EVENT_PLANE": "zmq", "DYN_DISCOVERY_BACKEND": "kubernetes"}, "zmq:", "DYN_EVENT_PLANE"),
        ({"DYN_EVENT_PLANE": ""}, None, ""),
        ({"DYN_ZMQ_BROKER_URL": "xsub=a,xpub=b"}, "zmq:", "DYN_ZMQ_BROKER_URL"),
        ({"DYN_ZMQ_BROKER_ENABLED": "1"}, "zmq:", "DYN_ZMQ_BROKER_ENABLED"),
        ({"DYN_ZMQ_BROKER_ENABLED": "0"}, None, ""),
        ({"DYN_DISCOVERY_BACKEND": "file"}, "zmq:", "DYN_DISCOVERY_BACKEND"),
        ({"DYN_FILE_KV": "/tmp/kv", "NATS_SERVER": "nats://n:4222"}, "zmq:", "DYN_FILE_KV"),
        ({"ETCD_ENDPOINTS": "http://e:2379"}, "zmq:", "ETCD_ENDPOINTS"),
        ({"NATS_SERVER": "nats://n:4222"}, "nats:", "NATS_SERVER"),
        (
            {"DYN_DISCOVERY_BACKEND": "kubernetes", "NATS_SERVER": "nats://n:4222"},
            None,
            "DYN_DISCOVERY_BACKEND",
        ),
        (
            {"DYN_EVENT_PLANE_HOST": "eth0", "ETCD_LEASE_TTL": "9", "NATS_AUTH_TOKEN": "t"},
            None,
            "",
        ),
    ],
)
def test_what_chooses_the_plane(variables: dict[str, str], url: str | None, chosen_by: str) -> None:
    """D-31, PLANE-30: The plane that was named wins, then what a Dynamo deployment says; without either there
    is none.
    """
    sources = Sources(variables)

    assert chosen_plane(sources) == PlaneChoice(url, chosen_by)
    assert plane_url(sources) == url
    assert RelaySettings.load(sources).plane_url == url


@pytest.mark.parametrize("value", ["ZMQ", "kafka", " zmq"])
def test_a_wrong_plane_is_an_error(value: str) -> None:
    """PLANE-30: A plane that Dynamo does not have is refused like any wrong value."""
    with pytest.raises(ConfigError) as caught:
        RelaySettings.load(Sources({"DYN_EVENT_PLANE": value}))

    assert (caught.value.variable, caught.value.value) == ("DYN_EVENT_PLANE", value)


def test_the_line_says_which_variable_chose() -> None:
    """Where nobody named the plane to us, the line about it says which variable did."""
    assert "DYN_FILE_KV" in plane_words(RelaySettings.load(Sources({"DYN_FILE_KV": "/tmp/kv"})))
    assert "no event plane" in plane_words(RelaySettings.load(Sources({"FORWARDPASS_PLANE": "none"})))


def test_the_line_does_not_drive_the_terminal() -> None:
    """A URL with escape sequences is shown without them."""
    assert "\x1b" not in plane_words(RelaySettings.load(Sources({"FORWARDPASS_PLANE": "zmq+file:\x1b[2J"})))

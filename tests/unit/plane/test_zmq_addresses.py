"""The addresses of the ZMQ event plane, and how texts list them."""

from __future__ import annotations

import pytest

from forwardpass.errors import ConfigError
from forwardpass.plane.discovery.records import Brokers
from forwardpass.plane.zmq.addresses import canonical, is_address, parse_addresses, parse_brokers
from forwardpass.plane.zmq.host import advertised_host


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://[::1]:65535", True),
        ("tcp://worker-1.pool_a.example:5557", True),
        ("tcp://127.0.0.1:0", False),
        ("tcp://127.0.0.1:65536", False),
        ("tcp://127.0.0.1", False),
        ("tcp://*:5557", False),
        ("tcp://eth0;10.0.0.1:5557", False),
        ("tcp://10.0.0.1:5557;10.0.0.2:5557", False),
        ("tcp://10.0.0.1:5557\n", False),
        ("tcp://\x1b[2J:5557", False),
        ("tcp://" + "a" * 1_000_000 + ":1", False),
        ("ipc:///var/run/docker.sock", False),
        ("inproc://here", False),
        ("", False),
    ],
)
def test_addresses(text: str, good: bool) -> None:
    """PLANE-13: Only a TCP host and port is an address: no other transport, no wildcard, no source."""
    assert is_address(text) is good


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("tcp://127.0.0.1:05557", "tcp://127.0.0.1:5557"),
        ("tcp://[0:0:0:0:0:0:0:1]:5557", "tcp://[::1]:5557"),
        ("tcp://[:::]:5557", "tcp://[:::]:5557"),
        ("tcp://host:5557", "tcp://host:5557"),
    ],
)
def test_one_name_per_address(address: str, name: str) -> None:
    """An address has one name, the one that libzmq's events use."""
    assert canonical(address) == name


def test_lists_of_addresses() -> None:
    """PLANE-02: Fixed addresses stand in the URL with commas between them, slashes and blanks allowed."""
    assert parse_addresses("//a:1, b:2,tcp://c:3", "url") == ("tcp://a:1", "tcp://b:2", "tcp://c:3")


@pytest.mark.parametrize("rest", ["", "//", "//a", "//a:1,", "//a:b", "//a:1;b:2"])
def test_wrong_lists_of_addresses(rest: str) -> None:
    """PLANE-02: Anything else is the operator's error, which shows the URL."""
    with pytest.raises(ConfigError) as caught:
        parse_addresses(rest, f"zmq+tcp:{rest}")

    assert caught.value.value == f"zmq+tcp:{rest}"


@pytest.mark.parametrize(
    "text",
    [
        "xsub=tcp://a:1,xpub=tcp://b:2;tcp://c:3",
        " xpub = tcp://b:2 ; tcp://c:3 , xsub = tcp://a:1 ; ",
    ],
)
def test_brokers(text: str) -> None:
    """PLANE-21: Both sides of the brokers are listed, in either order, with blanks where one likes."""
    assert parse_brokers(text, "V") == Brokers(("tcp://a:1",), ("tcp://b:2", "tcp://c:3"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "xsub=tcp://a:1",
        "xsub=tcp://a:1,xpub=",
        "xsub=a,xpub=b",
        "xsub=tcp://a:1,xsub=tcp://a:1",
        "x",
        ",,",
    ],
)
def test_wrong_brokers(text: str) -> None:
    """PLANE-21: A missing side, another word or a bad address is refused under the variable's name."""
    with pytest.raises(ConfigError) as caught:
        parse_brokers(text, "DYN_ZMQ_BROKER_URL")

    assert caught.value.variable == "DYN_ZMQ_BROKER_URL"


@pytest.mark.parametrize(
    ("setting", "host"),
    [("10.1.2.3", "10.1.2.3"), ("::1", "[::1]"), ("[fd00:0::2]", "[fd00::2]"), ("lo", "127.0.0.1")],
)
def test_the_host_that_is_set(setting: str, host: str) -> None:
    """D-32, PLANE-05: An address is taken as it is, in the shortest form, and an interface's name stands for
    its own.
    """
    assert advertised_host(setting) == host


@pytest.mark.parametrize(
    "setting",
    [
        "nosuch0",
        "a-name-that-is-too-long-for-it",
        "host.example",
        "\0",
        "1.2.3",
        "0.0.0.0",
        "::",
        "fe80::1%lo",
        "224.0.0.1",
        "*",
    ],
)
def test_a_wrong_host(setting: str) -> None:
    """PLANE-05: What is neither an address nor an interface is an error, as in the reference, and so is an
    address that others cannot connect to.
    """
    with pytest.raises(ConfigError) as caught:
        advertised_host(setting)

    assert caught.value.variable == "DYN_EVENT_PLANE_HOST"


def test_the_host_of_this_machine() -> None:
    """PLANE-05: Without a setting there is always an address that can be put into a URL."""
    assert is_address(f"tcp://{advertised_host('')}:1")

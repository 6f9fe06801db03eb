"""Where the ranks of a worker publish."""

from __future__ import annotations

import pytest

from forwardpass.errors import ConfigError
from forwardpass.relay.targets import RelayTarget, check_url, local_targets, rank_url


@pytest.mark.parametrize(
    "url",
    ["tcp://127.0.0.1:20380", "tcp://engine-0.svc:1", "tcp://[::1]:65535", "ipc:///tmp/x", "ipc://@abstract"],
)
def test_urls_that_can_be_connected_to(url: str) -> None:
    """TCP with host and port, and IPC with a path, are accepted as they are."""
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:20380",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536",
        "tcp://*:20380",
        "tcp://:20380",
        "tcp://host:20380/x",
        "tcp://host:20380\n",
        "udp://host:1",
        "http://host:1",
        "inproc://x",
        "ipc://",
        "ipc://" + "x" * 108,
        "ipc://" + "é" * 54,
    ],
)
def test_urls_that_cannot(url: str) -> None:
    """Anything else is the operator's error, with the value that was found."""
    with pytest.raises(ConfigError) as caught:
        check_url(url)

    assert caught.value.value == url


@pytest.mark.parametrize(
    ("url", "rank", "expected"),
    [
        ("tcp://host:20380", 0, "tcp://host:20380"),
        ("tcp://host:20380", 3, "tcp://host:20383"),
        ("tcp://[::1]:5", 2, "tcp://[::1]:7"),
        ("ipc:///tmp/fpm", 0, "ipc:///tmp/fpm.0"),
        ("ipc:///tmp/fpm", 12, "ipc:///tmp/fpm.12"),
    ],
)
def test_rank_urls(url: str, rank: int, expected: str) -> None:
    """TCP ports count up from the base; IPC endpoints get the rank as a suffix, rank 0 too."""
    assert rank_url(url, rank) == expected


def test_a_rank_beyond_the_last_port() -> None:
    """A rank whose port does not exist is refused."""
    with pytest.raises(ConfigError):
        rank_url("tcp://host:65535", 1)


def test_local_targets() -> None:
    """The local ranks of a worker connect to loopback, base plus global rank."""
    assert local_targets(20380, 2, first_rank=4) == (
        RelayTarget("tcp://127.0.0.1:20384", 4),
        RelayTarget("tcp://127.0.0.1:20385", 5),
    )

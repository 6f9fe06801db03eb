"""NATS servers and credentials as they are read from URLs and variables."""

from __future__ import annotations

import sys

import pytest

from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, MissingExtra
from forwardpass.plane.nats.login import load_library
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.plane.shown import shown_url


@pytest.mark.parametrize(
    ("url", "server", "expected"),
    [
        ("nats:", None, ("nats://localhost:4222",)),
        ("nats:", "tls://a:1, b", ("tls://a:1", "tls://b:4222")),
        ("nats://", "", ("nats://localhost:4222",)),
        ("nats://a", "tls://elsewhere", ("nats://a:4222",)),
        ("nats://a:1,b:2,nats://c", None, ("nats://a:1", "nats://b:2", "nats://c:4222")),
        ("nats://[::1]:4", None, ("nats://[::1]:4",)),
        ("nats://user:word@a:1", None, ("nats://a:1",)),
    ],
)
def test_servers(url: str, server: str | None, expected: tuple[str, ...]) -> None:
    """NATS-01: Servers come from the URL, or from NATS_SERVER where it names none; 4222 is the usual port."""
    env = {} if server is None else {"NATS_SERVER": server}

    assert NatsSettings.load(url, Sources(env)).servers == expected


@pytest.mark.parametrize(
    "url", ["nats://:1", "nats://a:x", "http://a", "nats://a/path", "nats://a:0", "nats://,"]
)
def test_what_is_no_server(url: str) -> None:
    """A URL that names no server is refused, without what may be a password."""
    with pytest.raises(ConfigError) as refused:
        NatsSettings.load(url.replace("//", "//u:hunter2@", 1), Sources({}))

    assert refused.value.variable == "FORWARDPASS_PLANE"
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("module", ["nats", "nkeys"])
def test_a_library_that_is_not_there(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is missing is named, with the extra that brings it."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as missing:
        load_library(module)

    assert (missing.value.module, missing.value.extra) == (module, "nats")


def test_secrets_are_not_represented() -> None:
    """NATS-05: The representation of settings names the servers alone."""
    settings = NatsSettings.load("nats://me:hunter2@a:1", Sources({}))

    assert (settings.user, settings.password) == ("me", "hunter2")
    assert repr(settings) == "NatsSettings(nats://a:1)"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://a:1", "nats://a:1"),
        ("nats://u:p@a:1", "nats://***@a:1"),
        ("nats://u:p@x,y@a:1", "nats://***@a:1"),
        ("u:p@a", "***@a"),
        ("nats://u:p@a,nats://u:q@b", "nats://***@b"),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, expected: str) -> None:
    """NATS-05: Whatever stands before the last ``@`` is not shown."""
    assert shown_url(url) == expected

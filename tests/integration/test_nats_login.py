"""Every way to log in to real NATS servers, and what is said where it fails."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nats")
pytest.importorskip("nkeys")

from nats_logins import Nkey, make_certificates, operator_login

from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, PlaneUnavailable
from forwardpass.plane import nats
from forwardpass.plane.base import PlaneContext
from forwardpass.testing.nats_server import NatsServer, find_nats_server, nats_server
from forwardpass.testing.ports import free_port
from forwardpass.wire.keys import Endpoint

pytestmark = pytest.mark.skipif(find_nats_server() is None, reason="nats-server is not installed")

HERE = Endpoint("ns", "part", "gen")
SECRET = "s3cret/@,:%"
QUOTED = "s3cret%2F%40%2C%3A%25"


def carries(url: str, env: dict[str, str]) -> bool:
    """Say whether a message gets from a publisher to a subscriber that log in like this."""

    async def run() -> bool:
        context = PlaneContext(Sources(env))
        subscriber = await nats.open_subscriber(url, HERE, context)
        publisher = await nats.open_publisher(url, HERE, context)
        try:
            await publisher.publish(b"payload")
            async with asyncio.timeout(10):
                return (await anext(aiter(subscriber))).payload == b"payload"
        finally:
            await publisher.close()
            await subscriber.close()

    return asyncio.run(run())


def refusal(url: str, env: dict[str, str]) -> str:
    """Return why a publisher cannot log in like this."""

    async def run() -> str:
        with pytest.raises(PlaneUnavailable) as refused:
            await nats.open_publisher(url, HERE, PlaneContext(Sources(env)))
        return str(refused.value)

    return asyncio.run(run())


@pytest.fixture(scope="module")
def by_password() -> Iterator[NatsServer]:
    """Run a server with one user."""
    config = f'authorization {{ user: "u:1", password: "{SECRET}" }}'
    with nats_server(config=config) as server:
        yield server


def test_user_and_password(by_password: NatsServer) -> None:
    """NATS-04: A user with a password is let in, and ``nats:`` takes the servers of NATS_SERVER."""
    env = {"NATS_AUTH_USERNAME": "u:1", "NATS_AUTH_PASSWORD": SECRET, "NATS_SERVER": by_password.url}

    assert carries("nats:", env)


def test_credentials_in_the_url_come_first(by_password: NatsServer) -> None:
    """NATS-04: What stands in the URL is used before any variable, with every character of the password."""
    url = f"nats://u%3A1:{QUOTED}@127.0.0.1:{by_password.port}"

    assert carries(url, {"NATS_AUTH_TOKEN": "wrong"})


def test_user_and_password_come_before_a_token(by_password: NatsServer) -> None:
    """NATS-04: The first that is found is used, and a user without a password is none."""
    login = {"NATS_AUTH_USERNAME": "u:1", "NATS_AUTH_PASSWORD": SECRET}

    assert carries(by_password.url, {**login, "NATS_AUTH_TOKEN": "wrong"})
    assert "uthorization" in refusal(by_password.url, {"NATS_AUTH_USERNAME": "u:1", "NATS_AUTH_TOKEN": "x"})


def test_a_wrong_password_is_not_shown(by_password: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """NATS-05: Who is not let in is told so at once; neither the error nor the log has the password."""
    caplog.set_level(logging.DEBUG)
    words = refusal(f"nats://u%3A1:hunter2@127.0.0.1:{by_password.port}", {})

    assert "uthorization" in words
    assert f"127.0.0.1:{by_password.port}" in words
    assert "hunter2" not in words + caplog.text


def test_token() -> None:
    """NATS-04: A token is let in, from its variable and from the URL."""
    with nats_server(config='authorization { token: "t0ken" }') as server:
        assert carries(server.url, {"NATS_AUTH_TOKEN": "t0ken"})
        assert carries(f"nats://t0ken@127.0.0.1:{server.port}", {})
        assert "uthorization" in refusal(server.url, {"NATS_AUTH_TOKEN": "other"})


def test_nkey() -> None:
    """NATS-04: The seed of an nkey is let in; another user's is not."""
    key = Nkey("U")
    with nats_server(config=f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}") as server:
        assert carries(server.url, {"NATS_AUTH_NKEY": key.seed})
        assert "uthorization" in refusal(server.url, {"NATS_AUTH_NKEY": Nkey("U").seed})


def test_credentials_file(tmp_path: Path) -> None:
    """NATS-04: A credentials file of an operator's account is let in; that of another operator is not."""
    config, text = operator_login()
    (tmp_path / "own.creds").write_text(text)
    (tmp_path / "other.creds").write_text(operator_login()[1])
    with nats_server(config=config) as server:
        assert carries(server.url, {"NATS_AUTH_CREDENTIALS_FILE": str(tmp_path / "own.creds")})
        other = refusal(server.url, {"NATS_AUTH_CREDENTIALS_FILE": str(tmp_path / "other.creds")})
        assert "uthorization" in other


@pytest.mark.parametrize(
    ("variable", "value", "content"),
    [
        ("NATS_AUTH_NKEY", "SUNOKEY", None),
        ("NATS_AUTH_CREDENTIALS_FILE", "missing.creds", None),
        ("NATS_AUTH_CREDENTIALS_FILE", "empty.creds", ""),
        ("NATS_AUTH_CREDENTIALS_FILE", "half.creds", "-----BEGIN NATS USER JWT-----\nabc\n"),
        ("NATS_TLS_CA_CERT_PATH", "missing.pem", None),
        ("NATS_TLS_CA_CERT_PATH", "bad.pem", "no certificate"),
    ],
)
def test_what_cannot_be_used_is_named(variable: str, value: str, content: str | None, tmp_path: Path) -> None:
    """NATS-05: A seed or file that is none ends the opening with its variable, and nobody is asked."""
    path = tmp_path / value
    if content is not None:
        path.write_text(content)
    given = value if variable == "NATS_AUTH_NKEY" else str(path)

    async def run() -> ConfigError:
        context = PlaneContext(Sources({variable: given}))
        with pytest.raises(ConfigError) as refused:
            await nats.open_publisher("nats://127.0.0.1:1", HERE, context)
        return refused.value

    error = asyncio.run(run())

    assert error.variable == variable
    assert "SUNOKEY" not in str(error)


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NatsServer, Path]]:
    """Run a server that insists on TLS; its authority's certificate comes with it."""
    folder = tmp_path_factory.mktemp("tls")
    authority, certificate, key = make_certificates(folder)
    with nats_server("--tls", "--tlscert", str(certificate), "--tlskey", str(key)) as server:
        yield server, authority


@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_tls(with_tls: tuple[NatsServer, Path], scheme: str) -> None:
    """NATS-06: A server is trusted whose certificate the named authority signed."""
    server, authority = with_tls

    assert carries(f"{scheme}://127.0.0.1:{server.port}", {"NATS_TLS_CA_CERT_PATH": str(authority)})


def test_a_stranger_is_not_trusted(with_tls: tuple[NatsServer, Path]) -> None:
    """NATS-06: A certificate that nobody known signed is refused."""
    assert "certificate" in refusal(f"tls://127.0.0.1:{with_tls[0].port}", {}).lower()


def test_tls_is_not_given_up() -> None:
    """NATS-06: With tls:// nothing of us, above all no password, goes to a server without TLS."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", free_port())) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576}\r\n')
                connection.settimeout(5)
                while data := connection.recv(4096):
                    received.append(data)

        thread = threading.Thread(target=serve)
        thread.start()
        words = refusal(f"tls://me:hunter2@127.0.0.1:{listener.getsockname()[1]}", {})
        thread.join(10)

    assert "does not use TLS" in words
    assert received == []


def test_an_engines_terminal_stays_clean() -> None:
    """NATS-05: A process that configured no logging sees nothing of nats-py's on its terminal."""
    program = (
        "import asyncio\n"
        "from forwardpass.plane import nats\n"
        "from forwardpass.plane.base import PlaneContext\n"
        "from forwardpass.config.settings import Sources\n"
        "from forwardpass.wire.keys import Endpoint\n"
        "async def run():\n"
        "    try:\n"
        "        await nats.open_publisher('nats://127.0.0.1:1', Endpoint(), PlaneContext(Sources({})))\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
        "asyncio.run(run())\n"
        "import logging\n"
        "logging.getLogger('nats.aio.client').error('nats: encountered error')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "PlaneUnavailable\n"
    assert done.stderr == ""

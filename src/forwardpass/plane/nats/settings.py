"""Knows what is needed to reach NATS servers: their addresses, and who we are there.

Credentials are the first that is found of: those in the URL, user and password, token, nkey seed,
credentials file. What is secret is never part of an error, a log line or a representation.
"""

from __future__ import annotations

from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from forwardpass.config import plane_variables as v
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError
from forwardpass.plane.shown import shown_url

__all__ = ["DEFAULT_PORT", "NatsSettings"]

DEFAULT_PORT = 4222
_SCHEMES = ("nats", "tls")
_ACCEPTED = "nats: or nats://host:port, tls://host:port, with commas between several"


class NatsSettings(Struct, frozen=True):
    """Where the servers are and how to log in."""

    servers: tuple[str, ...]
    """URLs without credentials, each with its port."""
    tls: bool = False
    """Whether a server without TLS must not be talked to."""
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_seed: str | None = None
    credentials_file: str | None = None
    tls_ca: str | None = None
    """PEM file of the authorities that may vouch for a server; the system's by default."""

    def __repr__(self) -> str:
        return f"NatsSettings({self.where})"

    @property
    def where(self) -> str:
        """The servers in words."""
        return ", ".join(self.servers)

    @classmethod
    def load(cls, url: str, sources: Sources) -> NatsSettings:
        """Build from a plane URL and the variables. Raises :class:`ConfigError`."""
        variable, text = "FORWARDPASS_PLANE", url.strip()
        if text.partition(":")[2].strip("/ ") == "":
            variable, text = v.NATS_SERVER.name, sources.value(v.NATS_SERVER) or v.NATS_SERVER.default
        parts = _parts(text, variable)
        login = _login_of(parts) or _login_from(sources)
        return cls(
            servers=tuple(f"{part.scheme}://{_address(part)}" for part in parts),
            tls=any(part.scheme == "tls" for part in parts),
            tls_ca=sources.value(v.NATS_TLS_CA) or None,
            **login,
        )


def _parts(text: str, variable: str) -> list[SplitResult]:
    """Return the servers of ``text``; one without a scheme has that of the first."""
    refused = ConfigError(variable, shown_url(text), _ACCEPTED)
    parts: list[SplitResult] = []
    scheme = "nats"
    for each in filter(None, (one.strip() for one in text.split(","))):
        try:
            part = urlsplit(each if "://" in each else f"{scheme}://{each}")
            usable = bool(part.hostname) and part.scheme in _SCHEMES and part.port != 0
        except ValueError:
            raise refused from None
        if not usable or part.path.strip("/") or part.query or part.fragment:
            raise refused
        scheme = part.scheme
        parts.append(part)
    if not parts:
        raise refused
    return parts


def _address(part: SplitResult) -> str:
    host = part.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{part.port or DEFAULT_PORT}"


def _login_of(parts: list[SplitResult]) -> dict[str, str]:
    """Return the credentials in the first URL that has any; a name alone is a token, as at other clients."""
    for part in parts:
        if part.username and part.password is not None:
            return {"user": unquote(part.username), "password": unquote(part.password)}
        if part.username:
            return {"token": unquote(part.username)}
    return {}


def _login_from(sources: Sources) -> dict[str, str]:
    user, password = sources.value(v.NATS_USERNAME), sources.value(v.NATS_PASSWORD)
    if user and password:
        return {"user": user, "password": password}
    for name, variable in (
        ("token", v.NATS_TOKEN),
        ("nkey_seed", v.NATS_NKEY),
        ("credentials_file", v.NATS_CREDENTIALS_FILE),
    ):
        if found := sources.value(variable):
            return {name: found}
    return {}

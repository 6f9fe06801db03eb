"""Knows how nats-py is told who we are and whom to trust, and what is wrong with a file that cannot be used.

Files are checked when a plane is opened, because nats-py reads them late: one without its marker lines would
hang it. They are read again for each connection, so that rotated credentials are used.
"""

from __future__ import annotations

import base64
import importlib
import re
import ssl
from typing import Any

from forwardpass.config import plane_variables as v
from forwardpass.errors import ConfigError, MissingExtra
from forwardpass.plane.nats.settings import NatsSettings

__all__ = ["load_library", "login_options"]

_HIDDEN = "(not shown)"
_BLOCK = r"-+BEGIN {0}-+\s+([A-Za-z0-9._=-]+)\s+-+END {0}-+"
_JWT = re.compile(_BLOCK.format("NATS USER JWT"))
_SEED = re.compile(_BLOCK.format("USER NKEY SEED"))
_MAX_FILE_BYTES = 1 << 20


def load_library(module: str) -> Any:
    """Return a library of the extra ``nats``. Raises :class:`~forwardpass.errors.MissingExtra`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(module.partition(".")[0], "nats") from error


def login_options(settings: NatsSettings) -> dict[str, Any]:
    """Return the keyword arguments of ``Client.connect`` for credentials and TLS.

    Raises :class:`~forwardpass.errors.ConfigError`, which names the variable and never the secret.
    """
    options: dict[str, Any] = {}
    if settings.user is not None:
        options.update(user=settings.user, password=settings.password)
    elif settings.token is not None:
        options.update(token=settings.token)
    elif settings.nkey_seed is not None:
        if _key_pair(settings.nkey_seed) is None:
            raise ConfigError(v.NATS_NKEY.name, _HIDDEN, "the seed of a user's nkey, which begins with SU")
        options.update(nkeys_seed_str=settings.nkey_seed)
    elif settings.credentials_file is not None:
        options.update(_file_options(settings.credentials_file))
    if settings.tls or settings.tls_ca is not None:
        options.update(tls=_tls_context(settings.tls_ca))
    return options


def _key_pair(seed: str) -> Any:
    """Return the key of a seed, or ``None`` if it is none."""
    nkeys = load_library("nkeys")
    try:
        return nkeys.from_seed(bytearray(seed.encode()))
    except Exception:  # noqa: BLE001  boundary: nkeys raises what it likes, also of other libraries
        return None


def _file_options(path: str) -> dict[str, Any]:
    try:
        _read_credentials(path)
    except OSError as error:
        accepted = "a file with a NATS USER JWT and a USER NKEY SEED, as nsc writes it"
        reason = error.strerror or str(error)
        raise ConfigError(v.NATS_CREDENTIALS_FILE.name, path, f"{accepted} ({reason})") from None

    def jwt() -> bytearray:
        return bytearray(_read_credentials(path)[0].encode())

    def sign(nonce: str) -> bytes:
        signature: bytes = base64.b64encode(_read_credentials(path)[1].sign(nonce.encode()))
        return signature

    return {"user_jwt_cb": jwt, "signature_cb": sign}


def _read_credentials(path: str) -> tuple[str, Any]:
    """Return the JWT and the key of a credentials file. Raises ``OSError``, which nats-py survives."""
    with open(path, "rb") as file:
        text = file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
    jwt, seed = _JWT.search(text), _SEED.search(text)
    key = _key_pair(seed[1]) if seed is not None else None
    if jwt is None or key is None:
        raise OSError(0, "it has no such blocks" if jwt is None or seed is None else "its seed is none")
    return jwt[1], key


def _tls_context(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it has no certificate"
        raise ConfigError(v.NATS_TLS_CA.name, ca, f"a PEM file with certificates ({reason})") from error

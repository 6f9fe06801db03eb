"""Knows how a file of conversations is fetched over HTTP once, and kept for the next run.

Nothing else in this package reaches out by itself. Time and size are bounded, and the name is given to the
file only when it is whole and has the digest that it must have.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import secrets
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from msgspec import Struct

from forwardpass import __version__
from forwardpass.bench.content.base import ContentReason
from forwardpass.clock import Clock, SystemClock
from forwardpass.errors import ContentUnavailable

__all__ = ["DownloadLimits", "cached_name", "fetch", "is_url", "shown_source"]

_PIECE = 1 << 18
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class DownloadLimits(Struct, frozen=True):
    """When a download is given up."""

    silence_seconds: float = 60.0
    """The server says nothing for so long."""
    total_seconds: float = 270.0
    """All of it takes longer; ranks wait 300 s for each other's first message."""
    max_bytes: int = 2 * 1024**3


def is_url(source: str) -> bool:
    """Say whether a dataset is fetched, rather than a file of this machine."""
    return source.lower().startswith(("http://", "https://"))


def shown_source(source: str) -> str:
    """Return a dataset's name without what may be secret in a URL: user, password and query."""
    if not is_url(source):
        return source
    parts = _split(source)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def cached_name(url: str, sha256: str | None) -> str:
    """Return the name of a kept file. One without a digest has that of its URL in it: it is all we know."""
    name = _UNSAFE.sub("_", _split(url).path.rpartition("/")[2])[-100:].lstrip(".") or "dataset"
    return name if sha256 else f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name}"


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None,
    limits: DownloadLimits | None = None,
    clock: Clock | None = None,
) -> None:
    """Write what ``url`` gives to ``path``, whole or not at all.

    Raises :class:`~forwardpass.errors.ContentUnavailable`. A process that is killed leaves a file beside it,
    which nothing reads.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with open(temporary, "xb") as file:
            for piece in _pieces(url, limits or DownloadLimits(), clock or SystemClock()):
                digest.update(piece)
                file.write(piece)
        if sha256 and digest.hexdigest() != sha256:
            raise _unavailable(url, f"it has SHA-256 {digest.hexdigest()}, expected {sha256}")
        os.replace(temporary, path)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unavailable(url, _words(error)) from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; of one that is none just its scheme."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult(url.partition(":")[0], "", "", "", "")


def _request(url: str) -> urllib.request.Request:
    """Return the request for a URL, its user and password in a header, where servers look for them."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(
        urlunsplit(parts._replace(netloc=host)), headers={"User-Agent": f"forwardpass/{__version__}"}
    )
    if at:  # not carried along to where the server may redirect to
        secret = b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return request


def _pieces(url: str, limits: DownloadLimits, clock: Clock) -> Iterator[bytes]:
    deadline = clock.monotonic() + limits.total_seconds
    received = 0
    with _opener().open(_request(url), timeout=min(limits.silence_seconds, limits.total_seconds)) as response:
        declared = response.headers.get("Content-Length")
        expected = int(declared) if declared is not None and declared.isdecimal() else None
        if expected is not None and expected > limits.max_bytes:
            raise _unavailable(url, f"it has {expected} bytes, at most {limits.max_bytes} are accepted")
        while expected is None or received < expected:
            piece = response.read1(_PIECE)
            if not piece:
                break
            received += len(piece)
            if received > limits.max_bytes:
                raise _unavailable(url, f"it has more than {limits.max_bytes} bytes")
            if clock.monotonic() > deadline:
                raise _unavailable(url, f"it took more than {limits.total_seconds:g} s")
            yield piece
    if expected is not None and received < expected:
        raise _unavailable(url, f"it was cut off after {received} of {expected} bytes")


def _opener() -> urllib.request.OpenerDirector:
    """Return what opens http(s) URLs and nothing else, wherever a server redirects to."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _unavailable(url: str, why: str) -> ContentUnavailable:
    return ContentUnavailable(ContentReason.UNAVAILABLE, f"{shown_source(url)}: {why}")


def _words(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"the server answers {error.code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)

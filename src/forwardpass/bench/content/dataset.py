"""Knows a dataset of real conversations: where its file is, that it is the right one, and its texts."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.bench.content.base import ContentReason
from forwardpass.bench.content.download import DownloadLimits, cached_name, fetch, is_url, shown_source
from forwardpass.clock import Clock
from forwardpass.errors import ContentUnavailable

__all__ = ["COLLECTION_POOL", "LEAST_CHARACTERS", "Texts", "load_texts", "texts_of"]

COLLECTION_POOL = "conversation_sha256_even"
"""Name of the half of the conversations that is used; the other is left for others to test with."""
LEAST_CHARACTERS = 64


class Texts(Struct, frozen=True):
    """The texts of one dataset, in the order of its file."""

    texts: tuple[str, ...]
    path: str
    """Where the file is."""
    sha256: str


class _Turn(Struct):
    value: Any = None
    """A text; whatever else a stranger wrote counts as its text, and nothing as no turn."""


class _Conversation(Struct):
    conversations: list[_Turn] | None = None


_decoder = msgspec.json.Decoder(list[_Conversation])


def load_texts(
    source: str,
    *,
    sha256: str | None,
    cache_dir: str,
    limits: DownloadLimits | None = None,
    clock: Clock | None = None,
) -> Texts:
    """Return the texts of a file, or of a URL through the cache; a kept file of a wrong digest is replaced.

    ``sha256`` is the digest that the file must have, in lower case. Raises
    :class:`~forwardpass.errors.ContentUnavailable`, whose text is what the artifact says.
    """
    limits = limits or DownloadLimits()
    if not is_url(source):
        path = Path(source)
        data, digest = _read(path, source, limits)
        _check(source, digest, sha256)
    else:
        path = Path(cache_dir) / cached_name(source, sha256)
        data, digest = _read(path, source, limits) if path.is_file() else (b"", "")
        if not digest or (sha256 and digest != sha256):
            del data
            fetch(source, path, sha256=sha256, limits=limits, clock=clock)
            data, digest = _read(path, source, limits)
            _check(source, digest, sha256)
    texts = texts_of(data, source)
    return Texts(texts, str(path), digest)


def texts_of(data: bytes, source: str) -> tuple[str, ...]:
    """Return the texts that are used of a dataset's bytes; raises as :func:`load_texts`."""
    bodies = (
        "\n".join(str(turn.value) for turn in each.conversations or () if turn.value)
        for each in _conversations(data, source)
    )
    texts = tuple(body for body in bodies if len(body) >= LEAST_CHARACTERS and _is_ours(body))
    if not texts:
        raise ContentUnavailable(ContentReason.EMPTY)
    return texts


def _conversations(data: bytes, source: str) -> list[_Conversation]:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:  # the slow reader takes halves of surrogate pairs, which old collections of web text have
        return msgspec.convert(json.loads(data), list[_Conversation])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unavailable(source, str(error)) from error


def _is_ours(body: str) -> bool:
    return hashlib.sha256(body.encode(errors="ignore")).digest()[0] % 2 == 0


def _read(path: Path, source: str, limits: DownloadLimits) -> tuple[bytes, str]:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _unavailable(source, "it is no file")
        if found.st_size > limits.max_bytes:
            raise _unavailable(
                source, f"it has {found.st_size} bytes, at most {limits.max_bytes} are accepted"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise _unavailable(source, f"{type(error).__name__}: {error}") from error
    return data, hashlib.sha256(data).hexdigest()


def _check(source: str, digest: str, sha256: str | None) -> None:
    if sha256 and digest != sha256:
        raise _unavailable(source, f"it has SHA-256 {digest}, expected {sha256}")


def _unavailable(source: str, why: str) -> ContentUnavailable:
    return ContentUnavailable(ContentReason.UNAVAILABLE, f"{shown_source(source)}: {why}")

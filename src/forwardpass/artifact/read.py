"""Knows how an artifact's file is read: whole, plain or gzip, its rows decoded only when they are asked for.

The passes of all ranks stand in every rank's file, normally byte for byte: a file can be read beside another
one, and what is the same there is compared and not parsed again.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from forwardpass.artifact.model import SCHEMA_VERSION
from forwardpass.errors import ArtifactPathError, MalformedArtifact, UnknownSchema
from forwardpass.wire.codec import BYTES_ERRORS

__all__ = [
    "GROUPS",
    "MAX_BYTES",
    "PROBE_SCHEMA",
    "RESULTS",
    "ArtifactFile",
    "Kind",
    "decode_part",
    "parse_artifact",
    "rank_hint",
    "read_artifact",
    "read_bytes",
    "same_bytes",
]

MAX_BYTES = 8 << 30
"""A larger file is refused; 64 ranks of 5,000 points have 350 MB."""
PROBE_SCHEMA = "dynamo.fpm.benchmark_worker_probe"
RESULTS = "results"
GROUPS = "iteration_groups"

_CHUNK = 1 << 20
_KEY_BYTES = 4096
"""How far back a key that a chunk's end has cut is looked for."""
_GZIP = b"\x1f\x8b"
_GROUPS_KEY = re.compile(rb'"iteration_groups"[ \t\r\n]*:[ \t\r\n]*')
_RANK = re.compile(rb'"dp"\s*:\s*\{[^{}]{0,200}?"rank"\s*:\s*(\d{1,9})\b')
_SAME = b'"same as beside 1f0c9f7e-0f55-4e0e-9d6a-5b8f7a6c2d11 "'
"""Stands in for rows that were compared; made up for this, so that a file that has it is read in full."""


class Kind(StrEnum):
    """What a file is."""

    RANK = "rank"
    MERGED = "merged"
    PROBE = "worker_probe"


class ArtifactFile(Struct):
    """A file as it was read. Rows are JSON text; ``None`` where there is no list."""

    name: str
    kind: Kind
    head: dict[str, Any]
    """The document without its rows, every other field kept."""
    results: list[Raw] | None = None
    groups: list[Raw] | None = None
    groups_text: Raw | None = None
    """All groups as one text."""

    def document(self) -> dict[str, Any]:
        """Return the whole document; raises :class:`MalformedArtifact`."""
        rows = {
            name: [decode_part(row, self.name, name) for row in part]
            for name, part in ((RESULTS, self.results), (GROUPS, self.groups))
            if part is not None
        }
        return {**self.head, **rows}


def read_artifact(path: Path, *, beside: ArtifactFile | None = None) -> ArtifactFile:
    """Return the file at ``path``; ``beside`` is one that may have the same groups.

    Raises :class:`ArtifactPathError`, :class:`MalformedArtifact` or :class:`UnknownSchema`.
    """
    if beside is not None and beside.groups_text is not None:
        with _opened(path) as file:
            spliced = _read_beside(file, beside.groups_text)
        found = None if spliced is None else _spliced_file(spliced, str(path), beside)
        if found is not None:
            return found
    return parse_artifact(read_bytes(path), str(path), beside=beside)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file, inflated if they are gzip. Raises as :func:`read_artifact`."""
    with _opened(path) as file:
        data = file.read()
    return _inflated(data, str(path)) if data.startswith(_GZIP) else data


def parse_artifact(data: bytes, name: str, *, beside: ArtifactFile | None = None) -> ArtifactFile:
    """Return the artifact in ``data``, called ``name`` in messages. Raises as :func:`read_artifact`."""
    if beside is not None and beside.groups_text is not None:
        spliced = _without_same_groups(data, beside.groups_text)
        found = None if spliced is None else _spliced_file(spliced, name, beside)
        if found is not None:
            return found
    return _file(_parts(data, name), name, None)


def decode_part(text: Raw | bytes, name: str, where: str) -> Any:
    """Return the value of a part of a file; raises :class:`MalformedArtifact`, which names it."""
    try:
        return msgspec.json.decode(text)
    except BYTES_ERRORS as error:
        raise MalformedArtifact(name, f"{where}: {_reason(error)}") from error


def rank_hint(path: Path) -> int:
    """Return the rank that a file's beginning names, for the order of reading; a large number if none."""
    try:
        with open(path, "rb") as file:
            match = _RANK.search(file.read(_CHUNK))
    except (OSError, ValueError):
        match = None
    return int(match[1]) if match else 1 << 31


def same_bytes(one: Any, other: Any) -> bool:
    """Say whether two buffers hold the same bytes, without a whole copy of either."""
    # Two memoryviews are compared item by item, a bytearray and a buffer at the speed of the memory.
    first, second = memoryview(one), memoryview(other)
    return len(first) == len(second) and all(
        bytearray(first[at : at + _CHUNK]) == second[at : at + _CHUNK] for at in range(0, len(first), _CHUNK)
    )


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Give a regular file that is not too large; what fails meanwhile is told with its path."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise ArtifactPathError(str(path), "is not a file")
        if found.st_size > MAX_BYTES:
            raise ArtifactPathError(str(path), f"has more than {MAX_BYTES} bytes")
        with open(path, "rb") as file:
            yield file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArtifactPathError(str(path), f"cannot be read: {reason}") from error


def _read_beside(file: BufferedReader, groups: Raw) -> bytes | None:
    """Return a file with a mark in the place of ``groups``, without having it in memory as a whole.

    ``None`` if they do not follow the first key of that name.
    """
    head = bytearray()
    match = None
    while match is None or match.end() == len(head):  # blanks may go on
        searched = max(0, len(head) - _KEY_BYTES) if match is None else match.start()
        chunk = file.read(_CHUNK)
        if not chunk:
            return None
        head += chunk
        match = _GROUPS_KEY.search(head, searched)
    known = memoryview(groups)
    begun = head[match.end() :]
    at = min(len(begun), len(known))
    if begun[:at] != known[:at]:
        return None
    tail = bytes(begun[at:])
    piece = bytearray(_CHUNK)  # one for all, and compared where it lies: a copy costs as much as the reading
    while at < len(known):
        count = file.readinto(memoryview(piece)[: len(known) - at])
        filled = piece if count == len(piece) else piece[:count]
        if not count or filled != known[at : at + count]:
            return None
        at += count
    return _marked(bytes(head[: match.end()]), tail + file.read())


def _marked(begin: bytes, end: bytes) -> bytes | None:
    return None if _SAME in begin or _SAME in end else begin + _SAME + end


def _spliced_file(spliced: bytes, name: str, beside: ArtifactFile) -> ArtifactFile | None:
    """Return the file in marked text, ``None`` if the mark does not stand where the groups do."""
    with suppress(MalformedArtifact):  # it may have come to stand within a text
        parts = _parts(spliced, name)
        if bytes(parts.get(GROUPS, b"")) == _SAME:
            return _file(parts, name, beside)
    return None


def _without_same_groups(data: bytes, groups: Raw) -> bytes | None:
    """Return ``data`` with a mark in the place of ``groups``, if they follow the first key of that name."""
    match = _GROUPS_KEY.search(data)
    if match is None:
        return None
    begin, end = match.end(), match.end() + len(memoryview(groups))
    if not same_bytes(memoryview(data)[begin:end], groups):
        return None
    return _marked(data[:begin], data[end:])


def _parts(data: bytes, name: str) -> dict[str, Raw]:
    try:
        return msgspec.json.decode(data, type=dict[str, Raw])
    except BYTES_ERRORS as error:
        raise MalformedArtifact(name, f"is not a JSON object: {_reason(error)}") from error


def _file(parts: dict[str, Raw], name: str, beside: ArtifactFile | None) -> ArtifactFile:
    head = {key: decode_part(text, name, key) for key, text in parts.items() if key not in (RESULTS, GROUPS)}
    kind = _kind(head, name)
    file = ArtifactFile(name, kind, head)
    for key in (RESULTS, GROUPS):
        if key not in parts or (beside is not None and key == GROUPS):
            continue
        try:
            rows = msgspec.json.decode(parts[key], type=list[Raw])
        except BYTES_ERRORS:
            head[key] = decode_part(parts[key], name, key)  # no list: a rule will say so
            continue
        if key == RESULTS:
            file.results = rows
        else:
            file.groups, file.groups_text = rows, parts[key]
    if beside is not None:
        file.groups, file.groups_text = beside.groups, beside.groups_text
    return file


def _kind(head: Mapping[str, Any], name: str) -> Kind:
    schema, version, kind = (head.get(key) for key in ("schema", "schema_version", "artifact_type"))
    if schema == PROBE_SCHEMA and type(version) is int and version == 1:
        return Kind.PROBE
    if type(version) is int and version == SCHEMA_VERSION and kind in ("rank", "merged"):
        return Kind(str(kind))
    raise UnknownSchema(
        name,
        schema if schema is not None else kind,
        version,
        f"artifact_type 'rank' or 'merged' in version {SCHEMA_VERSION}, or {PROBE_SCHEMA} in version 1",
    )


def _inflated(data: bytes, name: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        while data:
            member = zlib.decompressobj(wbits=31)
            parts.append(member.decompress(data, MAX_BYTES + 1 - size))
            size += len(parts[-1])
            if not member.eof:
                reason = "ends early" if size <= MAX_BYTES else f"has more than {MAX_BYTES} bytes"
                raise MalformedArtifact(name, f"gzip {reason}")
            data = member.unused_data
    except (zlib.error, ValueError) as error:
        raise MalformedArtifact(name, f"damaged gzip: {error}") from error
    return b"".join(parts)


def _reason(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__

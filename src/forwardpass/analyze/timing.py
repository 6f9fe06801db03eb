"""Knows what the ``wall_time`` of a row measures, as far as somebody who knew has said so.

A row has no field for it in the format. A publisher may say it in an extra field ``timing_scope``; a recorder
that knows its engine says it in the ledger beside the segment; whoever reads may know. In this order.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from forwardpass.trace.ledger_reader import Run, read_ledger
from forwardpass.trace.record import TraceRecord

__all__ = ["NOT_SAID", "Scopes", "scopes_of"]

NOT_SAID = ""
"""The scope of a row of which nobody has said it."""
MAX_CHARACTERS = 40
"""Of a publisher's own word that are kept."""

_MARK = b'timing_scope":'


class _Fpm(Struct):
    timing_scope: object = None


class _Event(Struct):
    fpm: _Fpm


class _Row(Struct):
    event: _Event


_decode = msgspec.json.Decoder(_Row).decode


class Scopes:
    """Tells the scope of each row; by default only what stands in the row."""

    def __init__(self, runs: Iterable[Run] = (), fallback: str = NOT_SAID) -> None:
        self._fallback = fallback
        self._runs: dict[str, list[Run]] = {}
        for run in runs:
            self._runs.setdefault(run.producer_id, []).append(run)
        self._always = {
            producer: runs[0].wall_time or fallback
            for producer, runs in self._runs.items()
            if len({run.wall_time for run in runs}) == 1
        }

    def of(self, record: TraceRecord) -> str:
        """Return what the row's ``wall_time`` measures, or ``NOT_SAID``."""
        if record.line.rfind(_MARK) >= 0:  # half a microsecond; searching forwards takes three times that
            said = _said(record.line)
            if said:
                return said
        producer = record.source.producer_id
        scope = self._always.get(producer)
        return scope if scope is not None else self._by_time(producer, record.observed_at_unix_ms)

    def _by_time(self, producer: str, unix_ms: int) -> str:
        """Return the scope of the recorder's life that the row is of, where its lives differ in it."""
        for run in self._runs.get(producer, ()):
            if run.from_unix_ms <= unix_ms <= run.to_unix_ms:
                return run.wall_time or self._fallback
        return self._fallback


def scopes_of(segments: Iterable[Path], fallback: str = NOT_SAID) -> Scopes:
    """Return the scopes that the ledgers beside ``segments`` know; ``fallback`` is that of all other rows."""
    return Scopes(read_ledger(segments).runs, fallback)


def _said(line: bytes) -> str:
    try:
        scope = _decode(line).event.fpm.timing_scope
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return NOT_SAID
    return scope[:MAX_CHARACTERS] if isinstance(scope, str) else NOT_SAID

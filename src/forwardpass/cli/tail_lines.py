"""Knows how live messages become lines of output: which are shown, how many, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping

from forwardpass.cli.tail_view import decode_message, json_line, table_line
from forwardpass.clock import Clock, SystemClock
from forwardpass.errors import WireError
from forwardpass.plane.base import PlaneMessage
from forwardpass.wire.complete import complete_many
from forwardpass.wire.frames import Frames

__all__ = ["LiveLines"]


class LiveLines:
    """Turns messages into lines, as they come in; at most ``limit`` lines, of ``rank`` only."""

    def __init__(
        self,
        *,
        as_json: bool,
        data_parallel: bool = False,
        limit: int | None = None,
        rank: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.unreadable = 0
        """Messages that could not be decoded or have no form in JSON."""
        self.last_fault = ""
        self.shown = 0
        self._as_json = as_json
        self._data_parallel = data_parallel
        self._limit = limit
        self._rank = rank
        self._clock: Clock = clock or SystemClock()
        self._lines: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.shown >= self._limit

    def note(self, dp_rank: int | None, frames: Frames) -> None:
        """Take a message; its line waits for :meth:`take`. ``dp_rank`` is the stream's, not the message's."""
        payload = complete_many([frames.payload], [frames.seq])[0]  # older publishers number only the frame
        self._note(payload, {"seq": frames.seq})

    def note_message(self, message: PlaneMessage) -> None:
        """Take a message of an event plane."""
        origin = {
            "seq": message.sequence,
            "publisher_id": message.publisher_id,
            "published_at_unix_ms": message.published_at_ms,
        }
        self._note(message.payload, origin, message.received_at_ms)

    def _note(self, payload: bytes, origin: Mapping[str, int], received_at_ms: int | None = None) -> None:
        if self.finished:
            return
        try:
            message = decode_message(payload)
        except WireError as error:
            self.unreadable += 1
            self.last_fault = str(error)
            return
        metrics = message.metrics
        if self._rank is not None and metrics.dp_rank != self._rank:
            return
        now = self._clock.unix_ms() if received_at_ms is None else received_at_ms
        self.shown += 1
        if self._as_json:
            self._lines.append(json_line(message, origin, now))
        else:
            self._lines.append(table_line(metrics, now, data_parallel=self._data_parallel))

    def take(self) -> list[str]:
        """Return the lines that wait."""
        lines, self._lines = self._lines, []
        return lines

"""Knows how to ask a TensorRT-LLM server for its iteration statistics over HTTP.

``trtllm-serve`` answers ``GET /metrics`` with a JSON list: the iterations since it was last asked. So two
readers share them, and each sees a part.
"""

from __future__ import annotations

import http.client
import re

import msgspec
from msgspec import Struct

from forwardpass.clock import SystemClock
from forwardpass.errors import ConfigError, EngineError

__all__ = ["MAX_ANSWER_BYTES", "PATH", "StatsEndpoint", "parse_endpoint"]

PATH = "/metrics"
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""A longer answer is not read: 1,000 iterations, the server's own limit, have about 2 MB a rank."""
TIMEOUT_SECONDS = 10.0
_PIECE_BYTES = 1 << 16

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-~]*)?\Z"
)
_ACCEPTED = "http://HOST:PORT, with a path if it is another than /metrics"
_decode = msgspec.json.Decoder(list[object]).decode


class StatsEndpoint(Struct, frozen=True):
    """Where the statistics are."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """The address in words."""
        return f"http{'s' if self.secure else ''}://{self.host}:{self.port}{self.path}"

    def fetch(self, timeout_seconds: float = TIMEOUT_SECONDS) -> list[object]:
        """Return the rows since the last call, oldest first. Blocks for up to twice ``timeout_seconds``.

        Raises :class:`EngineError` for an answer that is no list of statistics or does not end, and
        ``OSError`` where no answer came.
        """
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_seconds
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host.strip("[]"), self.port, timeout=timeout_seconds)
        try:
            connection.request("GET", self.path, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            body = bytearray()
            while len(body) <= MAX_ANSWER_BYTES and (piece := answer.read1(_PIECE_BYTES)):
                body += piece
                if clock.monotonic() > deadline:  # each read is timely, and they never end
                    raise EngineError(f"{self.url}: no end of the answer within {timeout_seconds:g} s")
        except http.client.HTTPException as error:
            raise EngineError(f"{self.url}: no HTTP answer: {type(error).__name__}") from error
        finally:
            connection.close()
        return self._rows(answer.status, bytes(body))

    def _rows(self, status: int, body: bytes) -> list[object]:
        if status != http.client.OK:
            raise EngineError(f"{self.url}: status {status}; expected 200")
        if len(body) > MAX_ANSWER_BYTES:
            raise EngineError(f"{self.url}: an answer of more than {MAX_ANSWER_BYTES} bytes")
        try:
            return _decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise EngineError(f"{self.url}: expected a JSON list of iteration statistics: {error}") from error


def parse_endpoint(url: str) -> StatsEndpoint:
    """Return the endpoint at ``url``; without a path it is at ``/metrics``. Raises :class:`ConfigError`."""
    match = _URL.match(url)
    if match is None or not 0 < int(match["port"] or 1) < 65536:
        raise ConfigError("--metrics-url", url, _ACCEPTED)
    secure = match["scheme"] == "https"
    path = match["path"] if match["path"] not in (None, "/") else PATH
    return StatsEndpoint(secure, match["host"], int(match["port"] or (443 if secure else 80)), path)

"""Knows how to ask the server for all kinds of answers, and what the API said that each one cost."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from demo_vllm import MODEL, REQUEST_SECONDS

from soak.engine import SoakFailed

__all__ = ["Answer", "Ask", "Client", "Words"]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["prefill", "decode", "mixed"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "kind", "count"],
}
REGEX = "[a-f]{4}(-[0-9]{3}){2,6}"


@dataclass(frozen=True)
class Ask:
    """One request to be."""

    kind: str
    path: str
    body: dict[str, Any]
    hang_up_after: int | None = None
    """Pieces of the streamed answer after which the client goes away."""


@dataclass(frozen=True)
class Answer:
    """What one request came to, in tokens, as the API said."""

    kind: str
    prompt: int
    cached: int
    completion: int
    """For one that was hung up on: as many as had been seen by then."""
    limit: int
    """``max_tokens``."""
    hung_up: bool = False


@dataclass
class Words:
    """Makes prompts; one for each user, for a generator is no thread's but its own."""

    rng: random.Random
    shared: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        fixed = random.Random(7)
        syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
        self._words = ["".join(fixed.choices(syllables, k=fixed.randint(1, 3))) for _ in range(300)]
        self.shared = [" ".join(fixed.choices(self._words, k=count)) for count in (40, 90, 150)]

    def text(self, fewest: int, most: int) -> str:
        """Return between so many words, never heard before."""
        return " ".join(self.rng.choices(self._words, k=self.rng.randint(fewest, most)))

    def short_chat(self) -> Ask:
        """A few words, a short answer."""
        return self._chat("short chat", self.text(3, 30), self.rng.randint(4, 48))

    def one_token(self) -> Ask:
        """An answer that ends with its first token: a request without a decode."""
        return self._complete("one token", self.text(5, 120), 1)

    def long_prompt(self) -> Ask:
        """A prompt that takes several chunks."""
        return self._complete("long prompt", self.text(120, 200), self.rng.randint(4, 24))

    def shared_prefix(self) -> Ask:
        """One of a few beginnings, then words of its own."""
        beginning = self.rng.choice(self.shared)
        return self._complete("shared prefix", f"{beginning} {self.text(2, 30)}", self.rng.randint(4, 40))

    def long_answer(self) -> Ask:
        """A short prompt and an answer that goes on."""
        return self._complete("long answer", self.text(60, 110), self.rng.randint(250, 420))

    def structured(self) -> Ask:
        """JSON of a schema, or text of a pattern."""
        ask = self._chat("structured", self.text(3, 20), 96)
        if self.rng.random() < 0.5:
            schema = {"type": "json_schema", "json_schema": {"name": "pass", "schema": SCHEMA}}
            constraint: dict[str, Any] = {"response_format": schema}
        else:
            constraint = {"structured_outputs": {"regex": REGEX}}
        body = {name: value for name, value in ask.body.items() if name != "ignore_eos"}
        return Ask(ask.kind, ask.path, {**body, **constraint, "temperature": 1.0})

    def hung_up(self) -> Ask:
        """A streamed answer that the client does not wait for."""
        fewest, most = self.rng.choice([(3, 20), (3, 20), (150, 220)])
        ask = self._complete("hung up", self.text(fewest, most), self.rng.randint(100, 300))
        return Ask(ask.kind, ask.path, ask.body, hang_up_after=self.rng.randint(1, 60))

    def _chat(self, kind: str, text: str, max_tokens: int) -> Ask:
        messages = [{"role": "user", "content": text}]
        return self._ask(kind, "/v1/chat/completions", {"messages": messages}, max_tokens)

    def _complete(self, kind: str, text: str, max_tokens: int) -> Ask:
        return self._ask(kind, "/v1/completions", {"prompt": text}, max_tokens)

    def _ask(self, kind: str, path: str, what: dict[str, Any], max_tokens: int) -> Ask:
        temperature = self.rng.choice((0.0, 0.0, 1.0))
        common = {"model": str(MODEL), "max_tokens": max_tokens, "ignore_eos": True}
        return Ask(kind, path, {**what, **common, "temperature": temperature})


class Client:
    """Sends requests to one server; safe to share, for each request has a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port

    def send(self, ask: Ask, *, stream: bool) -> Answer:
        """Send one request to its end, or until it is hung up on. Raises :class:`SoakFailed`."""
        stream = stream or ask.hang_up_after is not None
        body = dict(ask.body)
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_SECONDS)
        try:
            connection.request("POST", ask.path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise SoakFailed(f"{ask.kind}: HTTP {response.status}: {response.read()[:500]!r}")
            if not stream:
                return _answer(ask, json.loads(response.read())["usage"])
            return self._follow(ask, response)
        except (http.client.HTTPException, OSError) as error:
            raise SoakFailed(f"{ask.kind}: {error!r}") from error
        finally:
            connection.close()

    def _follow(self, ask: Ask, response: http.client.HTTPResponse) -> Answer:
        usage: dict[str, Any] | None = None
        for number, piece in enumerate(_pieces(response), start=1):
            if "error" in piece:
                raise SoakFailed(f"{ask.kind}: {piece['error']}")
            usage = piece.get("usage") or usage
            if number == ask.hang_up_after and usage is not None:
                return _answer(ask, usage, hung_up=True)
        if usage is None:
            raise SoakFailed(f"{ask.kind}: a stream without usage")
        return _answer(ask, usage)


def _pieces(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if data and data != b"[DONE]":
            yield json.loads(data)


def _answer(ask: Ask, usage: dict[str, Any], *, hung_up: bool = False) -> Answer:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(
        *(ask.kind, usage["prompt_tokens"], cached, usage.get("completion_tokens") or 0),
        *(ask.body["max_tokens"], hung_up),
    )

"""Knows how a stream of JetStream and its durable consumer are found or made.

The stream holds what every endpoint's publishers send; the consumer remembers, at the server, what was
acknowledged. One that exists is used as it is.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from forwardpass.errors import ConfigError, PlaneUnavailable
from forwardpass.plane.names import ANY_SUBJECT
from forwardpass.plane.nats.link import words_of
from forwardpass.plane.nats.login import load_library

__all__ = ["StreamSettings", "ensure_consumer", "may_overlap"]

API_SECONDS = 5.0
"""Longest wait for one answer of the server."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


class StreamSettings(Struct, frozen=True):
    """Which stream and consumer, and what they are made with where they do not exist yet."""

    stream: str = "forward-passes"
    durable: str = "forwardpass-collect"
    max_bytes: int = 4 << 30
    """Bytes that the stream keeps; the oldest messages go first, collected or not."""
    max_age_seconds: float = 86_400.0
    """Longest time that the stream keeps a message."""
    replicas: int = 1
    ack_wait_seconds: float = 30.0
    """Time after which a message that was not acknowledged is delivered again."""
    max_ack_pending: int = 262_144
    """Messages that all collectors together may hold without having acknowledged them."""

    def check(self) -> None:
        """Raise :class:`ConfigError` for a name that the server would not take."""
        for option, name in (("--stream", self.stream), ("--durable", self.durable)):
            if _NAME.fullmatch(name) is None:
                raise ConfigError(option, name, "1 to 128 letters, digits, - and _")


async def ensure_consumer(client: Any, settings: StreamSettings) -> None:
    """Make the stream and the consumer if they are not there.

    Raises :class:`ConfigError` for a stream or consumer that cannot serve, and :class:`PlaneUnavailable`
    where the server has no JetStream, or refuses.
    """
    errors = load_library("nats.js.errors")
    try:
        jetstream = client.jetstream(timeout=API_SECONDS)
        await _ensure_stream(jetstream, settings, errors)
        await _ensure_durable(jetstream, settings, errors)
    except (load_library("nats.errors").NoRespondersError, errors.ServiceUnavailableError) as error:
        raise PlaneUnavailable("the NATS server has no JetStream (nats-server -js)") from error
    except (load_library("nats.errors").Error, OSError) as error:  # what the server says is among them
        words = getattr(error, "description", None) or words_of(error)
        raise PlaneUnavailable(f"stream {settings.stream}: {words[:200]}") from error


async def _ensure_stream(jetstream: Any, settings: StreamSettings, errors: Any) -> None:
    api = load_library("nats.js.api")
    try:
        config = (await jetstream.stream_info(settings.stream)).config
    except errors.NotFoundError:
        config = api.StreamConfig(
            name=settings.stream,
            description="forward passes of LLM engines",
            subjects=[ANY_SUBJECT],
            retention=api.RetentionPolicy.LIMITS,
            storage=api.StorageType.FILE,
            discard=api.DiscardPolicy.OLD,
            max_bytes=settings.max_bytes,
            max_age=settings.max_age_seconds,
            num_replicas=settings.replicas,
        )
        await jetstream.add_stream(config)
        return
    subjects = config.subjects or []
    if subjects and not any(may_overlap(subject, ANY_SUBJECT) for subject in subjects):
        found = f"{settings.stream} ({', '.join(subjects)[:200]})"
        raise ConfigError("--stream", found, f"a stream with the subject {ANY_SUBJECT}, or a new name")


async def _ensure_durable(jetstream: Any, settings: StreamSettings, errors: Any) -> None:
    api = load_library("nats.js.api")
    try:
        config = (await jetstream.consumer_info(settings.stream, settings.durable)).config
    except errors.NotFoundError:
        config = api.ConsumerConfig(
            durable_name=settings.durable,
            description="forwardpass collect",
            deliver_policy=api.DeliverPolicy.ALL,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=settings.ack_wait_seconds,
            max_ack_pending=settings.max_ack_pending,
            filter_subject=ANY_SUBJECT,
        )
        await jetstream.add_consumer(settings.stream, config)
        return
    if config.ack_policy != api.AckPolicy.EXPLICIT or config.deliver_subject:
        raise ConfigError("--durable", settings.durable, "a pull consumer with explicit acknowledgement")


def may_overlap(one: str, other: str) -> bool:
    """Say whether a subject can match both patterns of NATS (``*`` is one word, ``>`` is the rest)."""
    words, others = one.split("."), other.split(".")
    for word, counterpart in zip(words, others, strict=False):
        if ">" in (word, counterpart):
            return True
        if "*" not in (word, counterpart) and word != counterpart:
            return False
    return len(words) == len(others)

"""Plain objects in the shape of vLLM's scheduler outputs and requests (0.28 to 0.33)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from msgspec import Struct


class Status(IntEnum):
    """vLLM's request statuses, as far as they matter here."""

    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6


class Waiting(Struct):
    """A request in a queue."""

    length: int
    status: Status = Status.WAITING
    num_computed_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.length


class New(Struct):
    """A record in ``scheduled_new_reqs``."""

    req_id: str
    prompt_token_ids: list[int] | None
    num_computed_tokens: int = 0
    prompt_embeds: Any = None
    prefill_token_ids: list[int] | None = None


class Cached(Struct, frozen=True):
    """``scheduled_cached_reqs``."""

    req_ids: list[str] = []
    num_computed_tokens: list[int] = []
    num_output_tokens: list[int] = []
    resumed_req_ids: set[str] = set()


class Output(Struct):
    """A scheduler output."""

    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: list[New] = []
    scheduled_cached_reqs: Cached = Cached()
    scheduled_spec_decode_tokens: dict[str, list[int]] = {}
    finished_req_ids: set[str] = set()

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


class Row(NamedTuple):
    """One cached request of a pass: id, tokens in KV, output tokens, tokens scheduled."""

    id: str
    computed: int
    outputs: int
    tokens: int = 1


def output(
    *rows: Row,
    new: list[tuple[New, int]] | None = None,
    resumed: set[str] | None = None,
    finished: set[str] | None = None,
    drafts: dict[str, list[int]] | None = None,
) -> Output:
    """Return the scheduler output of ``rows`` and of ``new`` records with their scheduled tokens."""
    new = new or []
    return Output(
        {row.id: row.tokens for row in rows} | {record.req_id: tokens for record, tokens in new},
        [record for record, _ in new],
        Cached(
            [row.id for row in rows],
            [row.computed for row in rows],
            [row.outputs for row in rows],
            resumed or set(),
        ),
        drafts or {},
        finished or set(),
    )


def prompt(request_id: str, length: int, computed: int = 0, **more: Any) -> New:
    """Return the record of a new request with a prompt of ``length`` tokens."""
    return New(request_id, [0] * length, computed, **more)

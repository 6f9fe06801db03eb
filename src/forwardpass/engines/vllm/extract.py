"""Knows how one vLLM scheduler output becomes the scheduled part of a message.

Pure: values and duck-typed outputs in, wire values out; it imports no engine and keeps no state of its
own. Loops over requests are left to C builtins. ``num_computed_tokens`` in an output is the value
*before* the pass.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.wire.schema import ScheduledRequestMetrics
from forwardpass.wire.tally import Tally, sum_and_variance

__all__ = ["Lengths", "known_lengths", "scheduled_metrics"]


Lengths = tuple[int, int]
"""What was known of a newly listed request when its pass was scheduled: the length of its prompt, and of all
its tokens, which are more if it was preempted."""


def known_lengths(new_requests: Sequence[Any]) -> list[Lengths]:
    """Return the lengths of each newly listed request; call it when the pass was scheduled.

    The lists in the records are the requests' own and grow while the pass runs, a session's prompt as
    well. A prompt given as embeddings counts its rows (decision D-5). Model runner V2 lists a preempted
    request as new and gives all its tokens, generated ones included, in ``prefill_token_ids``.
    """
    # HOT PATH, on the engine's thread, where each function that is called costs a microsecond or two.
    found = []
    for new in new_requests:
        ids, known = new.prompt_token_ids, new.prefill_token_ids
        prompt = _embedded_length(new) if ids is None else len(ids)
        found.append((prompt, prompt if known is None else len(known)))
    return found


def _embedded_length(new: Any) -> int:
    """Return the rows of a prompt's embeddings, 0 without any."""
    return 0 if new.prompt_embeds is None else int(new.prompt_embeds.shape[0])


def scheduled_metrics(
    output: Any, lengths: Sequence[Lengths], memory: RequestMemory
) -> ScheduledRequestMetrics:
    """Return what ``output`` ran; ``lengths`` are its :func:`known_lengths`.

    Outputs must be given in the order in which they were scheduled. Updates ``memory``.
    """
    # HOT PATH, on the publisher's thread: 256 decoding requests, 10 us (benchmarks/bench_extract.py).
    cached, finished = output.scheduled_cached_reqs, output.finished_req_ids
    if finished:
        memory.forget(finished)
    decode = Tally.of(cached.num_computed_tokens)
    prefills = _Prefills(output)
    for new, (prompt, known) in zip(output.scheduled_new_reqs, lengths, strict=True):
        computed = new.num_computed_tokens
        tokens = prefills.add(new.req_id, computed, known)
        memory.list_anew(new.req_id, prompt, computed + tokens if known > prompt else known, known)
    if cached.resumed_req_ids or memory.recomputing or not all(cached.num_output_tokens):
        prefills.add_listed(cached, _continued(output, memory), decode)
    if _undrafted(output) > prefills.tokens + decode.n:
        prefills.add_listed(cached, _set_back(output, memory, prefills.positions), decode)
    return ScheduledRequestMetrics(
        len(prefills.lengths),
        prefills.tokens,
        sum_and_variance(prefills.lengths)[1],
        prefills.kv_tokens,
        decode.n,
        decode.total,
        decode.variance,
    )


class _Prefills:
    """The prefills of one pass."""

    __slots__ = ("_drafts", "_scheduled", "kv_tokens", "lengths", "positions", "tokens")

    def __init__(self, output: Any) -> None:
        self._scheduled = output.num_scheduled_tokens
        self._drafts = output.scheduled_spec_decode_tokens
        self.tokens = 0
        self.kv_tokens = 0
        self.lengths: list[int] = []
        self.positions: set[int] = set()
        """Of those that were listed before."""

    def add(self, request_id: str, computed: int, length: int) -> int:
        """Count one request; return the tokens computed for it in this pass.

        Draft tokens count nowhere: the scheduler pads a prefill of one token to the size of a
        speculative step with placeholders.
        """
        tokens: int = self._scheduled[request_id]
        if self._drafts:
            tokens -= len(self._drafts.get(request_id, ()))
        self.tokens += tokens
        self.kv_tokens += computed
        self.lengths.append(length)
        return tokens

    def add_listed(self, cached: Any, found: Iterable[tuple[int, int]], decode: Tally) -> None:
        """Count requests by position and length, and take them out of ``decode``."""
        for position, length in found:
            computed = cached.num_computed_tokens[position]
            decode.remove(computed)
            self.positions.add(position)
            self.add(cached.req_ids[position], computed, length)


def _undrafted(output: Any) -> int:
    """Return the tokens of a pass without drafts; a decode computes one."""
    total: int = output.total_num_scheduled_tokens
    drafts = output.scheduled_spec_decode_tokens
    return total - sum(len(drafts[request_id]) for request_id in drafts) if drafts else total


def _continued(output: Any, memory: RequestMemory) -> list[tuple[int, int]]:
    """Return position and length of every request that was listed before and computes prompt or lost
    tokens in this pass: chunks of a prompt, and preempted requests on their way back (decision D-2).
    """
    cached = output.scheduled_cached_reqs
    outputs, ids, lengths = cached.num_output_tokens, cached.req_ids, memory.lengths
    found = [(position, lengths.get(ids[position], 0)) for position in _zeros(outputs)]
    if not cached.resumed_req_ids and not memory.recomputing:
        return found
    positions = {request_id: position for position, request_id in enumerate(ids)}
    for request_id in cached.resumed_req_ids:
        position = positions[request_id]
        if outputs[position]:
            length = lengths.get(request_id, 0) + outputs[position]
            memory.recomputing[request_id] = length
    for request_id, length in list(memory.recomputing.items()):
        position = positions.get(request_id, -1)
        if position < 0 or not outputs[position]:
            continue
        computed = cached.num_computed_tokens[position]
        if computed < length:
            found.append((position, length))
        memory.recompute(request_id, computed + output.num_scheduled_tokens[request_id], length)
    return found


def _set_back(output: Any, memory: RequestMemory, counted: Container[int]) -> Iterator[tuple[int, int]]:
    """Yield position and length of requests that compute more than a decode does, but for the positions
    that are ``counted``: KV from elsewhere failed to arrive, and vLLM set them back while they ran.
    """
    cached, drafts = output.scheduled_cached_reqs, output.scheduled_spec_decode_tokens
    for position, request_id in enumerate(cached.req_ids):
        tokens = output.num_scheduled_tokens[request_id]
        if tokens - len(drafts.get(request_id, ())) > 1 and position not in counted:
            length = memory.lengths.get(request_id, 0) + cached.num_output_tokens[position]
            memory.recompute(request_id, cached.num_computed_tokens[position] + tokens, length)
            yield position, length


def _zeros(values: list[int]) -> Iterable[int]:
    """Return the positions of zeros: requests without output tokens (placeholders count as such)."""
    if all(values):
        return
    position = -1
    try:
        while True:
            position = values.index(0, position + 1)
            yield position
    except ValueError:
        return

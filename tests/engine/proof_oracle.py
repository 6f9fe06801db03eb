"""Knows what each message of a run must say, from the live requests and from the client's ledger.

Two witnesses that share nothing with the product, and are held against each other as well: what a request
was, is read from vLLM's request objects right after ``schedule()``; what it must be, is kept by
``proof_ledger`` from the tokens that went in and came out. Sums of squares do not occur.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from bare_engine import BLOCK_TOKENS
from fpm_oracle import Expected, variance
from proof_ledger import Ledger, Life, Miscount, Part, State

from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics


@cache
def request_statuses() -> Any:
    """Return vLLM's statuses of requests."""
    from vllm.v1.request import RequestStatus

    return RequestStatus


def second_queue(scheduler: Any) -> Any:
    """Return the queue beside ``waiting``; it had another name before vLLM 0.31."""
    new = hasattr(scheduler, "kv_holding_waiting")
    return scheduler.kv_holding_waiting if new else scheduler.skipped_waiting


def is_queued(scheduler: Any, name: str) -> bool:
    """Say whether a request is in one of the waiting queues."""
    return any(
        request.request_id == name
        for queue in (scheduler.waiting, second_queue(scheduler))
        for request in queue
    )


class ProofOracle:
    """Counts passes and queues of one engine."""

    def __init__(self, ledger: Ledger, *, asynchronous: bool, count_paused: bool) -> None:
        self.ledger = ledger
        self.asynchronous = asynchronous
        self.count_paused = count_paused
        self.cases: set[str] = set()
        """What the pass in hand has covered; the engine empties it."""
        self.generated = 0
        self.decodes = 0
        self.prefill_tokens = 0

    # --- a pass ----------------------------------------------------------------------------------

    def scheduled(self, scheduler: Any, output: Any) -> list[Part]:
        """Take down the pass that was just scheduled."""
        lives = self.ledger.lives
        for name in output.preempted_req_ids or ():
            if name in lives:
                # Up to 0.29 requests with passes in flight are preempted here too; then those are void.
                self.ledger.preempt(lives[name], drop=scheduler.requires_kv_delivery)
        drafts_of = output.scheduled_spec_decode_tokens
        parts = []
        for name, tokens in output.num_scheduled_tokens.items():
            life, request = lives[name], scheduler.requests[name]
            before = request.num_computed_tokens - tokens  # vLLM has moved it on already
            if life.state is not State.RUNNING:
                self._admitted(life, request, before)
            life.expect(before == life.position, f"starts at {before}")
            drafts = len(drafts_of.get(name, ())) if drafts_of else 0
            part = Part(life, before, tokens - drafts, drafts)
            life.expect(
                part.samples is not request.is_prefill_chunk, "samples when its known tokens are computed"
            )
            if not self.asynchronous:
                life.expect(before + part.tokens <= life.known, "computes tokens that nobody knows yet")
            life.position = before + tokens
            life.parts.append(part)
            if part.prefill:
                life.prefilled += part.tokens
                self.prefill_tokens += part.tokens
            else:
                life.expect(part.tokens == 1, "a decode computes one token beside its drafts")
                self.decodes += 1
            parts.append(part)
        return parts

    def _admitted(self, life: Life, request: Any, start: int) -> None:
        life.expect(request.num_tokens == life.known, f"the engine knows {request.num_tokens} tokens of it")
        if life.position:  # it kept its KV: a session goes on, or a transfer has arrived
            life.expect(start == life.position, f"held other KV than {start} tokens")
            self.cases.add("admitted with KV in hand")
        elif start and not life.loads:
            life.expect(
                start % BLOCK_TOKENS == 0, f"a prefix hit of {start} tokens is no whole number of blocks"
            )
            self.cases.add("prefix hit")
        if life.resuming:
            self.cases.add("resumed")
        self.ledger.admit(life, start)

    @staticmethod
    def metrics(parts: Iterable[Part]) -> ScheduledRequestMetrics:
        """Return the message's part for one pass."""
        expected = Expected()
        for part in parts:
            if part.prefill:
                expected.prefills.append((part.life.name, part.tokens, part.before, part.target))
            else:
                expected.decodes.append((part.life.name, part.before))
        return expected.metrics()

    # --- its output ------------------------------------------------------------------------------

    def returned(self, parts: list[Part], results: dict[str, Any], scheduler: Any, *, kv_lost: bool) -> None:
        """Take in what the client got from a pass; ``kv_lost``: synchronously loaded KV was bad."""
        for part in parts:
            life = part.life
            life.expect(life.parts.pop(0) is part, "passes come back in order")
            result = results.pop(part.life.name, None)
            if part.void or life.state is State.DONE:
                life.expect(result is None or life.state is not State.DONE, "got tokens after its end")
                life.expect(result is None or not result.new_token_ids, "got tokens of a void pass")
                self.cases.add("aborted in flight" if life.aborted else "output dropped")
                if result is not None:
                    self.ledger.turn_ended(life, failed=True)
                continue
            if kv_lost and self._lost_its_kv(part, result, scheduler):
                continue
            if not part.prefill:
                self._context_is_true(part)
            if part.samples:
                self._sampled(part, result, scheduler)
            else:
                life.expect(result is None, "got tokens from a chunk")
                self.cases.add("chunk")
        for name, result in results.items():
            life = self.ledger.lives.get(name)
            if life is None or result.new_token_ids or result.finish_reason is None:
                raise Miscount(f"{name}: the client got something that no pass gave: {result}")
            self.cases.add("failed in the queue")
            self.ledger.turn_ended(life, failed=True)

    def _context_is_true(self, part: Part) -> None:
        """The context is every token but the last; drafts not yet judged when it was scheduled, and
        rejected since, are the one thing by which it may be more.
        """
        overstated = part.life.rejected - part.rejected_before
        part.life.expect(part.before - overstated == part.life.known - 1, f"context {part.before}")
        if overstated:
            self.cases.add("context with pending rejections")

    def _sampled(self, part: Part, result: Any, scheduler: Any) -> None:
        life = part.life
        if result is None:
            life.expect(False, "the client got nothing from a pass that sampled")
        rejected = part.drafts - (len(part.made) - 1)
        life.rejected += rejected
        if life.state is State.RUNNING:
            life.position -= rejected
        else:
            self.cases.add("output after preemption")
        if part.drafts:
            self.cases.add("drafts rejected" if rejected else "drafts accepted")
            self.cases.add("padded prefill" if part.prefill else "speculative decode")
        tokens, reason = result.new_token_ids, result.finish_reason
        life.expect(
            tokens == part.made[: len(tokens)], f"the client got {tokens}, the model made {part.made}"
        )
        life.expect(len(tokens) == len(part.made) or reason is not None, "tokens were lost")
        life.known += len(tokens)
        life.returned += len(tokens)
        life.turn_left -= len(tokens)
        self.generated += len(tokens)
        stats = result.prefill_stats
        if stats is not None and not life.loads and not life.preemptions:
            life.expect(stats.num_cached_tokens == life.first_start, f"the client was told of {stats}")
        if reason is not None:
            failed = reason.name == "ERROR"
            if life.resumable:
                self.cases.add("turn of a session ended")
            elif reason.name == "STOP":
                self.cases.add("stop token")
            elif life.returned == 1:
                self.cases.add("one token in all")
            lost = life.state is State.WAITING and not is_queued(scheduler, life.name)
            self.ledger.turn_ended(life, failed, lost=lost)

    def _lost_its_kv(self, part: Part, result: Any, scheduler: Any) -> bool:
        """Follow vLLM where a request reads KV that could not be loaded; return whether it does."""
        life = part.life
        failed = result is not None and not result.new_token_ids
        if failed:  # the policy is to fail such requests
            self.ledger.turn_ended(life, failed=True)
            return True
        now = scheduler.requests[life.name].num_computed_tokens if life.name in scheduler.requests else -1
        if result is not None or now in (-1, life.position):
            return False
        life.expect(now < life.position, "lost KV makes the computed tokens fewer")
        life.owed += min(life.target, life.position) - min(life.target, now)
        life.position = now
        self.cases.add("synchronous load failed")
        return True

    # --- the queue -------------------------------------------------------------------------------

    def queued(self, scheduler: Any) -> QueuedRequestMetrics:
        """Count what waits now; every waiting request is one that the ledger says waits."""
        statuses = request_statuses()
        prompts: list[int] = []
        contexts: list[int] = []
        waiting, lives, seen, cases = self.ledger.waiting, self.ledger.lives, 0, self.cases
        for name, request in scheduler.requests.items():
            status = request.status
            if status == statuses.RUNNING or name not in lives:
                continue
            life = lives[name]
            if status == statuses.WAITING_FOR_STREAMING_REQ:
                cases.add("paused session")
                if life.state is State.PAUSED and self.count_paused:
                    prompts.append(request.num_tokens)
                continue
            if life.state is State.LOST:
                continue
            seen += 1
            tokens = request.num_tokens
            if name not in waiting or tokens != life.known:
                life.expect(False, f"waits with {tokens} tokens as {status!r}")
            if status == statuses.WAITING:
                prompts.append(tokens)
            elif status == statuses.WAITING_FOR_REMOTE_KVS:
                contexts.append(request.num_computed_tokens)
                cases.add("KV in transit")
            elif status == statuses.PREEMPTED:
                contexts.append(request.num_computed_tokens or tokens)
                cases.add("preempted request waits")
            else:
                prompts.append(tokens)
                cases.add("grammar not ready")
        if seen != len(waiting):
            raise Miscount(f"{seen} requests wait, the ledger says {sorted(waiting)}")
        if prompts:
            cases.add("prompts wait")
        if scheduler.waiting and second_queue(scheduler):
            cases.add("both queues hold requests")
        return QueuedRequestMetrics(
            len(prompts), sum(prompts), variance(prompts), len(contexts), sum(contexts), variance(contexts)
        )

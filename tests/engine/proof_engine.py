"""Knows vLLM's engine core, call by call, and holds every message of a run against ``proof_oracle``.

The order of calls is that of ``EngineCore.step`` and ``step_with_batch_queue`` (vllm/v1/engine/core.py,
0.32): schedule, grammar bitmask, aborts that came meanwhile, update, drafts; and with several batches in
flight the bitmask of a batch with structured output waits for the output before it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from bare_engine import BareEngine
from proof_ledger import Ledger, Miscount, Part, State
from proof_model import MadeUpModel
from proof_oracle import ProofOracle
from proof_transfers import Load, Transfers


class Pass(NamedTuple):
    """One scheduler output and what it should report."""

    output: Any
    parts: list[Part]
    scheduled_at: float
    loads: list[Load]


class ProvenEngine(BareEngine):
    """An engine core whose every message is checked. ``between`` runs while a batch is with the model."""

    def __init__(self, scheduler: Any, depth: int, rng: random.Random, structured: str | None = None) -> None:
        super().__init__(scheduler, depth)
        self.rng = rng
        self.ledger = Ledger()
        self.asynchronous = scheduler.scheduler_config.async_scheduling
        self.proof = ProofOracle(
            self.ledger, asynchronous=self.asynchronous, count_paused=scheduler.count_paused_sessions
        )
        self.model = MadeUpModel(rng, scheduler.num_spec_tokens, structured)
        self.transfers = Transfers(rng, scheduler, self.ledger)
        self.transfers.cases = self.proof.cases
        self.between: Callable[[], None] = lambda: None
        self.throttle = 0.0
        """How often prefills are throttled, as data-parallel balancing does."""
        self.dp_rank = 0
        self.flight: deque[Pass] = deque()
        self.coverage: Counter[str] = Counter()
        self.labels: set[str] = set()
        """What every pass of this engine covers."""

    def step(self) -> bool:
        """Do one step of the engine core; return whether there was anything to do."""
        if self.depth > 1:
            return self._step_with_queue()
        if not self.scheduler.has_requests():
            return False
        scheduled = self._schedule()
        self.scheduler.get_grammar_bitmask(scheduled.output)
        self.flight.append(scheduled)
        self._settle()
        if self.scheduler.num_spec_tokens and scheduled.parts:
            self.scheduler.update_draft_token_ids(self.model.draft(scheduled.parts))
        return True

    def _step_with_queue(self) -> bool:
        scheduler, deferred = self.scheduler, None
        if scheduler.has_requests():
            scheduled = self._schedule()
            if scheduled.output.pending_structured_output_tokens:
                deferred = scheduled
            else:
                scheduler.get_grammar_bitmask(scheduled.output)
                self.flight.append(scheduled)
                if len(self.flight) < self.depth and (scheduled.parts or scheduler.has_requests()):
                    return True
        elif not self.flight:
            return False
        self._settle()
        if deferred is not None:
            if scheduler.num_spec_tokens:
                drafts = self.model.draft(deferred.parts)
                scheduler.update_draft_token_ids_in_output(drafts, deferred.output)
            scheduler.get_grammar_bitmask(deferred.output)
            self.flight.append(deferred)
            self.proof.cases.add("deferred grammar")
        return True

    def _schedule(self) -> Pass:
        throttled = bool(self.throttle) and self.rng.random() < self.throttle
        output = self.scheduler.schedule(throttled) if throttled else self.scheduler.schedule()
        loads = self.transfers.started() if self.scheduler.connector is not None else []
        parts = self.proof.scheduled(self.scheduler, output)
        if self.passes % 4 == 0:
            self.check_note()
        return Pass(output, parts, self.clock.monotonic(), loads)

    def _settle(self) -> None:
        done = self.flight.popleft()
        self.between()
        self.clock.advance(0.001 * (1 + self.passes % 7))
        scheduler, publisher = self.scheduler, self.publisher
        publisher.messages.clear()
        publisher.queue_notes.clear()
        model_output, kv_lost = self._answer(done)
        results = scheduler.update_from_output(done.output, model_output)
        if kv_lost:
            self.transfers.follow()
        self.proof.returned(done.parts, self._by_name(results), scheduler, kv_lost=kv_lost)
        scheduled, queue = self.proof.metrics(done.parts), self.proof.queued(scheduler)
        try:
            self._check_message(done.output, scheduled, queue, done.scheduled_at, (0, 0))
        except AssertionError as error:
            sent = publisher.messages or publisher.queue_notes
            raise Miscount(f"sent {sent}, expected {scheduled} {queue}, parts {done.parts}") from error
        publisher.queue_notes.clear()
        if publisher.messages and publisher.messages[0].dp_rank != self.dp_rank:
            raise Miscount(f"rank {publisher.messages[0].dp_rank}, not {self.dp_rank}")
        self._cover(done)
        if self.ledger.lost:
            self._give_up_lost_sessions()

    def _answer(self, done: Pass) -> tuple[Any, bool]:
        from vllm.v1.outputs import ModelRunnerOutput

        names, sampled = [], []
        drafts_of = done.output.scheduled_spec_decode_tokens
        for part in done.parts:
            name = part.life.name
            part.made = self.model.answer(part, drafts_of.get(name), placeholders=self.asynchronous)
            names.append(name)
            sampled.append(part.made.copy())  # vLLM shortens its list
        transfers, kv_lost = None, False
        if self.scheduler.connector is not None:
            transfers, kv_lost = self.transfers.report(done.loads, may_fail=self.depth == 1)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=transfers,
        )
        return output, kv_lost

    @staticmethod
    def _by_name(results: dict[int, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for outputs in results.values():
            for result in outputs.outputs:
                if result.request_id in found:
                    raise Miscount(f"{result.request_id}: two results in one step")
                found[result.request_id] = result
        return found

    def _cover(self, done: Pass) -> None:
        cases = self.proof.cases
        for part in done.parts:
            if part.prefill:
                cases.add("prefill")
                if part.life.resuming and part.admission > 1:
                    cases.add("recomputed after preemption")
                if part.life.turns > 1:
                    cases.add("session goes on")
            else:
                cases.add("decode")
            if part.life.structured:
                cases.add("structured output")
        if done.parts and self.scheduler.pause_state.name != "UNPAUSED":
            cases.add(f"pass while {self.scheduler.pause_state.name}")
        if not done.parts:
            cases.add("empty step")
        elif len(done.parts) > 1 and not any(part.prefill for part in done.parts):
            cases.add("pure decode batch")
        self.coverage.update(cases)
        if done.parts:
            self.coverage.update(self.labels)
        cases.clear()

    def _give_up_lost_sessions(self) -> None:
        """Abort sessions that vLLM has taken out of its queues: they would never end."""
        from vllm.v1.request import RequestStatus

        names, self.ledger.lost = self.ledger.lost, []
        alive = [name for name in names if self.ledger.lives[name].state is State.LOST]
        self.scheduler.finish_requests(alive, RequestStatus.FINISHED_ABORTED)
        self.ledger.abort(alive)
        self.coverage["session lost by vLLM"] += 1

    def check_note(self) -> None:
        """Hold what was last noted of the queue, for heartbeats, against what waits now."""
        notes = self.publisher.queue_notes
        if notes:
            queue = self.proof.queued(self.scheduler)
            if notes[-1] != queue:
                raise Miscount(f"noted {notes[-1]}, expected {queue}")
            notes.clear()
            self.coverage["queue noted between outputs"] += 1

    def recount(self) -> None:
        """Hold the waiting queues' own count, where they count themselves, against a full read."""
        reader = getattr(self.scheduler.recorder.read_queue, "__self__", None)
        if hasattr(reader, "recount"):
            if reader.recount() != reader.read():
                raise Miscount(f"the queues count {reader.read()}, a full read gives {reader.recount()}")
            if getattr(reader, "differences", 0):
                raise Miscount("the queues have found a difference of their own")
            self.coverage["recount agrees"] += 1

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

from forwardpass.engines.vllm.waiting import snapshot_metrics
from forwardpass.wire.schema import ForwardPassMetrics

LOOK = 0.3
"""How often messages are looked at after a step. The product builds a message when it is looked at."""


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
        self._looks = random.Random(0)  # of its own: seeds that found something once must stay what they were
        self.looked_at: list[list[Part] | None] = []
        """What ran in the passes whose messages were not looked at yet; ``None`` for empty steps."""
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
        scheduler = self.scheduler
        model_output, kv_lost = self._answer(done)
        results = scheduler.update_from_output(done.output, model_output)
        if kv_lost:
            self.transfers.follow()
        self.proof.returned(done.parts, self._by_name(results), scheduler, kv_lost=kv_lost)
        scheduled, queue = self.proof.metrics(done.parts), self.proof.queued(scheduler)
        try:
            self._check(done.output, scheduled, queue, done.scheduled_at)
        except AssertionError as error:
            raise Miscount(f"expected {queue} to wait after an empty step") from error
        self.looked_at.append(done.parts if done.parts else None)
        if self._looks.random() < LOOK:
            self.compare()
        self._cover(done)
        if self.ledger.lost:
            self._give_up_lost_sessions()

    def compare(self) -> None:
        """Look at what was sent since the last time, which is when the product builds it; then forget it."""
        expected = self.expected
        parts, self.looked_at = [each for each in self.looked_at if each], []
        try:
            super().compare()
        except AssertionError as error:
            raise Miscount(self._difference(expected, parts)) from error
        ranks = {message.dp_rank for message in self.publisher.messages}
        if not ranks <= {self.dp_rank}:
            raise Miscount(f"ranks {ranks}, not {self.dp_rank}")
        self.coverage["built later, with others"] += max(0, len(expected) - 1)
        self.publisher.messages.clear()
        self.compared = 0

    def _difference(self, expected: list[ForwardPassMetrics], parts: list[list[Part]]) -> str:
        sent = self.publisher.messages
        for message, each, part in zip(sent, expected, parts, strict=False):
            if (message.wall_time, message.scheduled_requests, message.queued_requests) != (
                each.wall_time, each.scheduled_requests, each.queued_requests
            ):  # fmt: skip
                return f"sent {message}, expected {each}, parts {part}"
        return f"sent {len(sent)} messages, expected {len(expected)}"

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
        """Hold what a heartbeat would say of the queue now against what waits."""
        said, queue = self.publisher.waiting_now(), self.proof.queued(self.scheduler)
        if said != queue:
            raise Miscount(f"a heartbeat would say {said}, expected {queue}")
        self.coverage["queue asked between outputs"] += 1

    def recount(self) -> None:
        """Hold the waiting queues' own count, where they count themselves, against a full read."""
        reader = self.scheduler.recorder.queues
        counted = snapshot_metrics(reader.read(self.clock.monotonic()))
        if reader.recount() != counted:
            raise Miscount(f"the queues count {counted}, a full read gives {reader.recount()}")
        if reader.differences:
            raise Miscount("the queues have found a difference of their own")
        self.coverage["recount agrees"] += 1

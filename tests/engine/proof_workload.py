"""Knows how to make up an engine and everything that can happen to it, from a seed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any, NamedTuple

from bare_engine import build_scheduler, make_request, scheduler_class
from proof_engine import ProvenEngine
from proof_ledger import Life, Miscount, State
from proof_model import BAD_GRAMMAR, GRAMMAR, STOP, Grammars, letters

STEPS = 700
MAX_MODEL_LEN = 512
MOST_AT_ONCE = 18


class Shape(NamedTuple):
    """One engine: what it is and what happens to it."""

    depth: int
    asynchronous: bool
    runner_v2: bool
    policy: str
    blocks: int
    max_seqs: int
    budget: int
    chunked: bool
    caching: bool
    long_prefill_tokens: int
    drafts: int
    structured: bool
    remote: str
    """What a KV load that fails does: ``recompute`` or ``fail``; empty without a KV connector."""
    sessions: bool
    count_paused: bool
    loras: int
    dp_index: int
    throttle: float
    arrivals: float
    outputs: int

    @property
    def labels(self) -> set[str]:
        """What each of its passes covers."""
        order = "asynchronous" if self.asynchronous else "synchronous"
        names = {
            f"{order}, {self.depth} in flight",
            "runner V2" if self.runner_v2 else "runner V1",
            f"policy {self.policy}",
            f"chunked prefill {'on' if self.chunked else 'off'}",
            f"prefix caching {'on' if self.caching else 'off'}",
        }
        for holds, name in (
            (self.drafts, "engine with drafts"),
            (self.structured, "engine with structured output"),
            (self.remote, f"KV connector, policy {self.remote}"),
            (self.sessions, "engine with sessions"),
            (self.count_paused, "parity: paused sessions counted"),
            (self.loras, "adapters"),
            (self.dp_index, "DP rank above 0"),
            (self.throttle, "throttled prefills"),
        ):
            if holds:
                names.add(name)
        return names


def random_shape(rng: random.Random) -> Shape:
    """Return an engine; every combination that vLLM itself supports may come."""
    depth, asynchronous = rng.choices([(1, False), (2, True), (3, True), (3, False)], [35, 35, 15, 15])[0]
    chunked = rng.random() < 0.85
    shape = Shape(
        depth=depth,
        asynchronous=asynchronous,
        runner_v2=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "priority"]),
        blocks=rng.choice([22, 30, 48, 300]),
        max_seqs=rng.choice([2, 5, 12]),
        budget=rng.choice([24, 64, 160, 1024]) if chunked else 1024,
        chunked=chunked,
        caching=rng.random() < 0.9,
        long_prefill_tokens=rng.choice([0, 0, 0, 40]) if chunked else 0,
        drafts=rng.choice([0, 0, 0, 1, 3, 5]) if asynchronous or depth == 1 else 0,
        structured=rng.random() < 0.25,
        remote=rng.choice(["", "", "", "recompute", "fail"]),
        sessions=rng.random() < 0.35,
        count_paused=rng.random() < 0.3,
        # A running request that is passed over for a step frees its adapter's place, and vLLM then fails.
        loras=rng.choice([0, 0, 1]) if depth == 1 else 0,
        dp_index=rng.choice([0, 0, 1, 3]),
        throttle=rng.choice([0.0, 0.0, 0.0, 0.2]) if depth > 1 else 0.0,
        arrivals=rng.choice([0.08, 0.2, 0.5]),
        outputs=rng.choice([6, 30, 60]),
    )
    if shape.sessions and not turns_end_cleanly():
        shape = shape._replace(depth=1 if asynchronous else depth, asynchronous=False, drafts=0)
    return shape


@cache
def turns_end_cleanly() -> bool:
    """Say whether vLLM throws away what is in flight when the turn of a session ends.

    Up to 0.30 it does not: tokens of passes in flight, and drafts not yet judged, go on into the next turn.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    return "num_stale_output_tokens" in Scheduler._handle_stopped_request.__code__.co_names


def build_engine(model: str, shape: Shape, rng: random.Random) -> ProvenEngine:
    """Return the engine, nothing submitted yet."""
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="AsPlanned", kv_connector_module_path="kv_connector_stub", kv_role="kv_both",
        kv_load_failure_policy=shape.remote,
    ) if shape.remote else None  # fmt: skip
    base = scheduler_class()
    cls = type("ParityScheduler", (base,), {"count_paused_sessions": True}) if shape.count_paused else base
    scheduler = build_scheduler(
        model, cls=cls, async_scheduling=shape.asynchronous, runner_v2=shape.runner_v2,
        blocks=shape.blocks, max_seqs=shape.max_seqs, max_batched_tokens=shape.budget,
        max_model_len=MAX_MODEL_LEN, policy=shape.policy, kv_transfer=transfer, chunked=shape.chunked,
        caching=shape.caching, long_prefill_tokens=shape.long_prefill_tokens, drafts=shape.drafts,
        tokenizer=shape.structured, dp_index=shape.dp_index, loras=shape.loras,
        pipeline_stages=3 if shape.depth == 3 else 1,
    )  # fmt: skip
    engine = ProvenEngine(scheduler, shape.depth, rng, model if shape.structured else None)
    engine.labels = shape.labels
    engine.throttle = shape.throttle
    engine.dp_rank = shape.dp_index
    return engine


class RandomWorkload:
    """Everything that happens to one engine. The same seed does the same."""

    def __init__(self, model: str, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.shape = random_shape(rng)
        self.engine = build_engine(model, self.shape, rng)
        self.engine.between = self._meanwhile
        self.scheduler, self.ledger = self.engine.scheduler, self.engine.ledger
        self.model = model
        self.grammars = Grammars(self.scheduler.structured_output_manager) if self.shape.structured else None
        self.roots = [[rng.randrange(20, 1000) for _ in range(400)] for _ in range(3)]
        self.sent = 0

    def run(self, steps: int = STEPS) -> ProvenEngine:
        """Do ``steps`` steps, then let everything end; raise :class:`Miscount` where a number is wrong."""
        try:
            for step in range(steps):
                self._happenings()
                self.engine.step()
                if step % 16 == 0:
                    self.engine.recount()
            self._end()
        except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise Miscount(f"seed {self.seed}, pass {self.engine.passes}: {error!r}\n{self.shape}") from error
        return self.engine

    # --- what may happen before a step -------------------------------------------------------------

    def _happenings(self) -> None:
        rng, shape = self.rng, self.shape
        if rng.random() < shape.arrivals:
            for _ in range(rng.randrange(1, 4)):
                if len(self.scheduler.requests) < MOST_AT_ONCE:
                    self._send()
        if rng.random() < 0.04:
            self._abort()
        if rng.random() < 0.012:
            self._reset_cache()
        paused = self.scheduler.pause_state.name != "UNPAUSED"
        if rng.random() < (0.2 if paused else 0.02):
            self._pause()
        if shape.sessions and rng.random() < 0.4:
            self._next_input()
        if self.grammars is not None and self.grammars.pending and rng.random() < 0.25:
            self.grammars.release()

    def _meanwhile(self) -> None:
        """Clients also give up while a batch is with the model."""
        if self.rng.random() < 0.02:
            self._abort()

    def _send(self) -> None:
        rng, shape = self.rng, self.shape
        name = f"r{self.sent}"
        self.sent += 1
        prompt = rng.choice(self.roots)[: rng.randrange(1, 200)]
        prompt = prompt + [rng.randrange(20, 1000) for _ in range(rng.randrange(1, 60))]
        life = Life(name, len(prompt), 1 if rng.random() < 0.08 else rng.randrange(1, shape.outputs + 1))
        draw = rng.random()
        if shape.sessions and draw < 0.4:
            life.resumable = True
        elif shape.structured and draw < 0.7:
            life.structured = True
        elif draw < 0.85:
            life.stops = rng.random() < 0.5
        self.scheduler.add_request(self._request(life, prompt))
        self.ledger.submit(life)
        self.engine.check_note()

    def _request(self, life: Life, prompt: list[int]) -> Any:
        rng, shape = self.rng, self.shape
        more: dict[str, Any] = {"arrival_time": float(self.sent), "resumable": life.resumable}
        if shape.policy == "priority":
            more["priority"] = rng.randrange(3)
        if shape.loras and rng.random() < 0.7:
            from vllm.lora.request import LoRARequest

            number = rng.randrange(1, 4)
            more["lora_request"] = LoRARequest(f"adapter-{number}", number, "/nowhere")
        tokens: list[int] | None = prompt
        if not life.resumable and rng.random() < 0.06:
            import torch

            tokens, more["prompt_embeds"] = None, torch.zeros(len(prompt), 4)
            self.engine.proof.cases.add("embeddings sent")
        request = make_request(life.name, tokens, life.turn_left, sampling=self._sampling(life), **more)  # type: ignore[arg-type]
        if shape.remote and rng.random() < 0.6:
            request.kv_transfer_params = {
                "tokens": rng.choice([0, len(prompt), rng.randrange(len(prompt) + 1)]),
                "is_async": rng.random() < 0.6,
                "unknown": rng.choice([0, 0, 0, 2]),
                "hold": rng.random() < 0.3,
            }
        if life.structured and self.grammars is not None:
            self.grammars.compile(request, late=rng.random() < 0.5)
        return request

    def _sampling(self, life: Life) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        most = life.turn_left
        if not life.structured:
            return SamplingParams(
                max_tokens=most, ignore_eos=True, temperature=0, stop_token_ids=[STOP] if life.stops else None
            )
        structured = StructuredOutputsParams(grammar=BAD_GRAMMAR if self.rng.random() < 0.05 else GRAMMAR)
        structured._backend = "xgrammar"
        sampling = SamplingParams(max_tokens=most, temperature=0, structured_outputs=structured)
        sampling._eos_token_id = letters(self.model)[3]
        return sampling

    def _abort(self) -> None:
        from vllm.v1.request import RequestStatus

        names = sorted(self.ledger.lives)
        chosen = self.rng.sample(names, min(self.rng.randrange(1, 4), len(names)))
        if not chosen:
            return
        for name in chosen:
            state = self.ledger.lives[name].state.name.lower()
            self.engine.proof.cases.add(f"aborted while {state}")
        self.scheduler.finish_requests(chosen, RequestStatus.FINISHED_ABORTED)
        self.ledger.abort(chosen)
        self.engine.check_note()

    def _reset_cache(self) -> None:
        """Preempt everything, where vLLM can: not while a request that does not run holds KV."""
        scheduler = self.scheduler
        held = len(scheduler.requests) > len(scheduler.running) + len(scheduler.waiting)
        if not hasattr(scheduler, "kv_holding_waiting"):  # up to 0.30 such requests may be in either queue
            held = held or any(request.num_computed_tokens for request in scheduler.waiting)
        in_flight = scheduler.defer_block_free and self.engine.flight
        if held or in_flight or self.rng.random() < 0.2:
            scheduler.reset_prefix_cache()
            return
        scheduler.reset_prefix_cache(reset_running_requests=True)
        self.ledger.preempt_all()
        self.engine.proof.cases.add("all preempted")

    def _pause(self) -> None:
        from vllm.v1.core.sched.interface import PauseState

        self.scheduler.set_pause_state(self.rng.choice(list(PauseState)))

    def _next_input(self) -> None:
        sessions = [
            life for life in self.ledger.lives.values()
            if life.resumable and life.state is not State.LOST and None not in life.updates
        ]  # fmt: skip
        if not sessions:
            return
        life, rng = self.rng.choice(sessions), self.rng
        tokens, output = rng.randrange(1, 80), rng.randrange(1, 20)
        queued = sum(sum(update) for update in life.updates if update) + life.turn_left
        last = (
            life.turns + len(life.updates) > 4 or life.known + queued + tokens + output > MAX_MODEL_LEN - 10
        )
        update = None if last or rng.random() < 0.1 else (tokens, output)
        prompt = [rng.randrange(20, 1000) for _ in range(tokens)]
        following = Life(life.name, tokens, output)
        following.resumable = update is not None
        request = make_request(
            life.name, prompt, output, sampling=self._sampling(following), resumable=update is not None,
            arrival_time=float(self.sent),
        )  # fmt: skip
        self.scheduler.add_request(request)
        self.engine.proof.cases.add("input for a session")
        if life.state is not State.PAUSED:
            life.updates.append(update)
        elif update is None:  # vLLM ends it as if it were aborted
            self.ledger.abort([life.name])
        else:
            self.ledger.next_input(life, update)
        self.engine.check_note()

    # --- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """Let everything come to its end, and see that nothing is left and nothing was lost."""
        from vllm.v1.core.sched.interface import PauseState
        from vllm.v1.request import RequestStatus

        engine, ledger = self.engine, self.ledger
        self.scheduler.set_pause_state(PauseState.UNPAUSED)
        engine.between = lambda: None
        while self.grammars is not None and self.grammars.pending:
            self.grammars.release()
        sessions = [name for name, life in ledger.lives.items() if life.resumable]
        self.scheduler.finish_requests(sessions, RequestStatus.FINISHED_ABORTED)
        ledger.abort(sessions)
        engine.run()
        engine.compare()
        if ledger.lives or self.scheduler.requests:
            raise Miscount(f"left over: {sorted(ledger.lives)}, {sorted(self.scheduler.requests)}")
        if ledger.submitted != ledger.finished + ledger.aborted:
            raise Miscount("requests were lost")
        engine.recount()

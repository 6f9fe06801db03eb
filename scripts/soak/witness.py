"""Knows how to count a forward pass from vLLM's live requests: the scheduler under test, and a witness.

It shares no code and no input with what it watches. The product reads scheduler outputs and remembers
lengths; this looks at the requests themselves before and after each call. It keeps one number for each
live request and writes its rows to a file at once, so it adds nothing to the engine's memory.
"""

from __future__ import annotations

import os
import time
from typing import Any

from forwardpass.engines.vllm.scheduler import ForwardPassScheduler
from soak.rows import WITNESS_FILE, Spread, WitnessRow

__all__ = ["WitnessedScheduler"]


class _Seen:
    """What the witness saw when a pass was scheduled."""

    def __init__(self, before: float, after: float) -> None:
        self.before, self.after = before, after
        self.tokens = self.kv_tokens = self.samples = self.resumed = 0
        self.prefills: list[int] = []
        self.decodes: list[int] = []


class WitnessedScheduler(ForwardPassScheduler):
    """The product's scheduler, every pass written down by someone else as well."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = os.environ[WITNESS_FILE]
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o644)
        self._known: dict[
            str, tuple[int, bool]
        ] = {}  # tokens known at admission; whether some were generated
        self._flying: list[tuple[Any, _Seen]] = []
        self._after_empty = 1
        self._steps = 0

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule, and look at what was chosen."""
        running = {request.request_id for request in self.running}
        before = time.monotonic()
        output = super().schedule(*args, **kwargs)
        seen = _Seen(before, time.monotonic())
        for request_id, scheduled in output.num_scheduled_tokens.items():
            self._look_at(self.requests[request_id], scheduled, request_id not in running, seen)
        self._flying.append((output, seen))
        if len(self._known) > 64 + 4 * len(self.requests):
            self._known = {name: known for name, known in self._known.items() if name in self.requests}
        return output

    def _look_at(self, request: Any, scheduled: int, admitted: bool, seen: _Seen) -> None:
        if admitted:
            known, prompt = request.num_tokens, request.num_prompt_tokens
            self._known[request.request_id] = known, known > prompt
        target, again = self._known[request.request_id]
        computed = request.num_computed_tokens - scheduled  # vLLM has moved it on already
        if computed >= target:
            seen.decodes.append(computed)
            seen.samples += 1
            return
        tokens = min(scheduled, target - computed)  # what goes beyond are drafts
        seen.prefills.append(target)
        seen.tokens += tokens
        seen.kv_tokens += computed
        done = computed + tokens == target
        seen.samples += done
        seen.resumed += done and again

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in the output, look at what waits, and write the row."""
        before = time.monotonic()
        result = super().update_from_output(scheduler_output, model_runner_output)
        after = time.monotonic()
        self._steps += 1
        output, seen = self._flying.pop(0)
        if output is not scheduler_output:
            raise RuntimeError("an output came back out of order")
        if not scheduler_output.total_num_scheduled_tokens:
            self._after_empty = 1
            return result
        prompts, contexts = self._waiting_now()
        row = WitnessRow(
            *(seen.tokens, seen.kv_tokens, Spread.of(seen.prefills), Spread.of(seen.decodes)),
            *(Spread.of(prompts), Spread.of(contexts)),
            *(seen.samples, self._after_empty, self._steps, seen.resumed),
            *(seen.before, seen.after, before, after),
        )
        os.write(self._file, row.packed())
        self._after_empty = 0
        return result

    def _waiting_now(self) -> tuple[list[int], list[int]]:
        """Return the lengths of waiting prompts and of waiting contexts: all that neither runs nor ended."""
        prompts: list[int] = []
        contexts: list[int] = []
        for request in self.requests.values():
            status = request.status.name
            if status == "RUNNING" or request.is_finished() or status == "WAITING_FOR_STREAMING_REQ":
                continue
            if status == "PREEMPTED":
                contexts.append(request.num_computed_tokens or request.num_tokens)
            else:
                prompts.append(request.num_tokens)
        return prompts, contexts

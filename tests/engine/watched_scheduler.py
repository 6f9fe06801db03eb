"""Our scheduler inside a real engine, watched from outside.

Live requests are looked at right after ``schedule()`` and when the output has come; no code of the product
takes part in that. vLLM loads the class by its name.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from fpm_oracle import Oracle

from forwardpass.config.settings import SourceSettings
from forwardpass.engines.vllm.attach import record_to
from forwardpass.engines.vllm.scheduler import ForwardPassScheduler
from forwardpass.testing.publishers import ListPublisher


class WatchedScheduler(ForwardPassScheduler):
    """Our scheduler, and what an outsider sees of it."""

    def open_recorder(self) -> Any:
        self.oracle = Oracle()
        self.passes: list[dict[str, Any]] = []
        self.in_flight: deque[tuple[Any, dict[str, Any], Any]] = deque()
        self.publisher = ListPublisher(worker_id="")
        return record_to(self.publisher, self, SourceSettings())

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        self.oracle.before_schedule(self)
        output = super().schedule(*args, **kwargs)
        expected = None if self.vllm_config.speculative_config else self.oracle.scheduled(self, output)
        self.in_flight.append((output, self.look(output), expected))
        return output

    def look(self, output: Any) -> dict[str, Any]:
        """Describe the live requests of a pass that was just scheduled, and how many passes it overlaps."""
        requests = {}
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            requests[request_id] = {
                "tokens": tokens,
                "before": request.num_computed_tokens - tokens,
                "prompt": request.num_prompt_tokens,
                "drafts": len(output.scheduled_spec_decode_tokens.get(request_id, ())),
                "known": None,
            }
        others = sum(bool(other.total_num_scheduled_tokens) for other, _, _ in self.in_flight)
        return {"requests": requests, "in_flight": others, "scheduled_at": time.monotonic()}

    def update_from_output(self, output: Any, model_output: Any) -> Any:
        scheduled, seen, expected = self.in_flight.popleft()
        assert scheduled is output
        seen["span"] = time.monotonic() - seen["scheduled_at"]
        for request_id, row in seen["requests"].items():
            if request_id in self.requests:
                row["known"] = self.requests[request_id].num_tokens
        result = super().update_from_output(output, model_output)
        seen["taken_in"] = time.monotonic() - seen.pop("scheduled_at")
        if output.total_num_scheduled_tokens:
            self.compare(seen, expected)
        return result

    def compare(self, seen: dict[str, Any], expected: Any) -> None:
        """Note what was reported, and whether the oracle agrees (it knows no drafts)."""
        message = self.publisher.messages[-1]
        part = message.scheduled_requests
        seen["scheduled"] = {name: getattr(part, name) for name in part.__struct_fields__}
        seen["right"] = expected is None or expected.metrics() == part
        seen["queue"] = (
            message.queued_requests.num_prefill_requests,
            message.queued_requests.num_decode_requests,
        )
        seen["queue_right"] = self.oracle.queued(self) == message.queued_requests
        waiting = {request.status.name for request in self.requests.values()}
        seen["statuses"] = sorted(waiting)
        seen["wall_time"] = message.wall_time
        self.passes.append(seen)
        assert len(self.passes) == len(self.publisher.messages)

"""Knows how long a benchmarked pass takes: captured graphs, padding, what runs without a graph, first
executions.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct

from forwardpass.bench.evidence import Observed
from forwardpass.bench.limits import GraphMode, GraphSettings
from forwardpass.engines.mock.model import CostModel
from forwardpass.engines.mock.step import Step

__all__ = ["GraphCosts", "PassCosts"]

_NOISE_LIMIT = 3.0


class GraphCosts(Struct, frozen=True):
    """What graphs save, in seconds."""

    launch_seconds: float = 2.2e-3
    """Launching every kernel of a pass by itself."""
    piecewise_seconds: float = 0.6e-3
    """The same where only pieces are captured."""
    first_seconds: float = 0.35
    """Choosing and compiling kernels when a shape runs without a graph for the first time."""


class PassCosts:
    """The seconds of one rank's passes, and how each was dispatched."""

    def __init__(
        self,
        cost: CostModel,
        graph: GraphSettings,
        *,
        noise: float = 0.0,
        seed: str = "",
        graph_costs: GraphCosts | None = None,
        request_limit: int = 1 << 30,
    ) -> None:
        self._cost = cost
        self._graph = graph
        self._costs = graph_costs or GraphCosts()
        self._noise = noise
        self._random = Random(seed)
        self._request_limit = request_limit
        self._seen: set[int] = set()
        self.slow_factor = 1.0
        self.stall_seconds = 0.0
        """How much longer the next pass takes, once."""

    def of(self, step: Step) -> tuple[float, Observed]:
        """Return how long ``step`` takes, and the graph that it runs as. An empty step takes no time."""
        tokens = sum(chunk.tokens for chunk in step.chunks) + len(step.contexts)
        mode, size = self._dispatch(step, tokens)
        padded = tokens if size is None else size
        seconds = self._gpu_seconds(step, padded - tokens)
        if mode is GraphMode.NONE:
            seconds += self._costs.launch_seconds
            if tokens not in self._seen:
                self._seen.add(tokens)
                seconds += self._costs.first_seconds
        elif mode is GraphMode.PIECEWISE:
            seconds += self._costs.piecewise_seconds
        if self._noise:
            noise = min(_NOISE_LIMIT, max(-_NOISE_LIMIT, self._random.gauss(0.0, 1.0)))
            seconds *= 1.0 + self._noise * noise
        seconds, self.stall_seconds = seconds * self.slow_factor + self.stall_seconds, 0.0
        return seconds, Observed(mode.value, tokens, padded, padded - tokens)

    def _dispatch(self, step: Step, tokens: int) -> tuple[GraphMode, int | None]:
        if step.chunks:
            mode, captures = self._graph.prefill_mode, self._graph.prefill_captures()
        else:
            mode, captures = self._graph.decode_mode, self._graph.decode_captures(self._request_limit)
        size = next((size for size in captures if size >= tokens), None)
        return (mode, size) if size is not None else (GraphMode.NONE, None)

    def _gpu_seconds(self, step: Step, padding: int) -> float:
        prefill, pairs, read = 0, 0, sum(step.contexts)
        for chunk in step.chunks:
            prefill += chunk.tokens
            pairs += chunk.tokens * chunk.computed + chunk.tokens * (chunk.tokens + 1) // 2
            read += chunk.computed
        return self._cost.gpu_seconds(
            prefill_tokens=prefill + (padding if step.chunks else 0),
            pairs=pairs,
            decode_requests=len(step.contexts) + (0 if step.chunks else padding),
            kv_tokens=read,
        )

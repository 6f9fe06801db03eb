"""Knows the simulated engine that benchmarks are planned for and run on: what it holds and takes."""

from __future__ import annotations

from collections.abc import Callable

from forwardpass.bench.cost import PassLoad
from forwardpass.bench.limits import GraphMode, GraphSettings
from forwardpass.bench.limits_file import EngineLimits
from forwardpass.bench.points import Point
from forwardpass.engines.mock.bench_costs import GraphCosts
from forwardpass.engines.mock.bench_driver import MockBenchConfig, MockDriver
from forwardpass.engines.mock.scheduler import Scheduler

__all__ = ["GRAPHS", "mock_limits", "mock_seconds"]

GRAPHS = GraphSettings(
    "FULL_AND_PIECEWISE", GraphMode.PIECEWISE, GraphMode.FULL, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
)
"""What the simulated engine has captured."""


def mock_limits(config: MockBenchConfig) -> EngineLimits:
    """Return what an empty rank says of itself."""
    driver = MockDriver(config, Scheduler(config.engine))
    return EngineLimits(driver.layout(), driver.capacity())


def mock_seconds(config: MockBenchConfig) -> Callable[[Point, PassLoad], float]:
    """Return how long a pass takes, noise aside: its work and padding, launches, first executions.

    The passes have to come in the order of execution.
    """
    costs, cost = GraphCosts(), config.engine.cost
    seen: set[int] = set()

    def seconds(point: Point, load: PassLoad) -> float:
        padding = point.padding_tokens or 0
        total = cost.host_seconds + cost.gpu_seconds(
            prefill_tokens=load.prefill_tokens + (padding if load.prefill_tokens else 0),
            pairs=load.pairs,
            decode_requests=load.decode_requests + (0 if load.prefill_tokens else padding),
            kv_tokens=load.kv_tokens,
        )
        if point.expected_cudagraph_mode is GraphMode.PIECEWISE:
            total += costs.piecewise_seconds
        if point.expected_cudagraph_mode is GraphMode.NONE:
            total += costs.launch_seconds + (0 if point.shape_driver in seen else costs.first_seconds)
            seen.add(point.shape_driver)
        return total

    return seconds

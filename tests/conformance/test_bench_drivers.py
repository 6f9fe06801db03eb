"""Every benchmark driver keeps the promises of the seam."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forwardpass.bench.driver import Admitted, Batch, SyntheticRequest
from forwardpass.bench.limits import KvGroup
from forwardpass.engines.mock.bench_driver import MockBenchConfig, MockDriver
from forwardpass.engines.mock.bench_request import ContentRequest
from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.extract import measure_scheduled
from forwardpass.engines.mock.scheduler import Scheduler
from forwardpass.engines.mock.step import Step
from forwardpass.testing import check_driver
from forwardpass.testing.conformance_driver import DRIVER_CHECKS
from forwardpass.wire.schema import ScheduledRequestMetrics


class MockRig:
    """The simulated engine's scheduler, stepped by hand."""

    def __init__(
        self, *, more_groups: tuple[KvGroup, ...] = (), driver: type[MockDriver] = MockDriver, **engine: Any
    ) -> None:
        limits: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 256, "num_blocks": 120}
        config = MockBenchConfig(MockConfig(**(limits | engine)), more_groups=more_groups, watermark_blocks=2)
        self.scheduler = Scheduler(config.engine)
        self.driver = driver(config, self.scheduler)

    def step(self, output: Step | None = None) -> ScheduledRequestMetrics | None:
        step = self.scheduler.schedule() if output is None else output
        self.scheduler.update(step)
        return None if step.empty else measure_scheduled(step)


KINDS = {
    "plain": MockRig(),
    "drafter": MockRig(drop_last_hit=True),
    "groups": MockRig(more_groups=(KvGroup(32), KvGroup(16, admission_cap=3))),
    "large blocks": MockRig(block_tokens=64, num_blocks=60),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", DRIVER_CHECKS, ids=lambda check: check.__name__)
def test_mock_driver(check: Any, kind: str) -> None:
    """RUN-60, PIT-16, PIT-22: The simulated engine's driver keeps each promise, whatever kind of KV it has.
    Where a drafter drops the last block that is found, a prefix needs one more to be found whole.
    """
    check(KINDS[kind])


def test_check_driver_runs_all_checks() -> None:
    """RUN-60: A driver's author needs one call."""
    check_driver(MockRig())


class Leaky(MockDriver):
    """Forgets a block of each request that it releases."""

    def release(self, ids: tuple[str, ...]) -> None:
        for identity in ids:
            request = self._requests.get(identity)
            if request is not None:
                request.blocks = request.blocks[1:]
        super().release(ids)


class Hasty(MockDriver):
    """Takes batches in part, and prompts whose prefix is not there."""

    def inject(self, batch: Batch) -> Any:
        answer = super().inject(batch)
        return answer if isinstance(answer, Admitted) else Admitted((), self.empty())


class Slow(MockDriver):
    """Admits decodes at their whole prompts."""

    def steady(self, ids: tuple[str, ...]) -> Step | None:
        super().steady(ids)
        return super().steady(ids)


class Sharing(MockDriver):
    """Lets prompts find each other that nobody gave a salt."""

    def _new(self, synthetic: SyntheticRequest, output_tokens: int | None = None) -> ContentRequest:
        salted = msgspec.structs.replace(synthetic, cache_salt=synthetic.cache_salt or "all")
        return super()._new(salted, output_tokens)


class Forgetful(MockDriver):
    """Keeps cached prefixes that it should forget."""

    def reset_prefix_cache(self) -> bool:
        return True


@pytest.mark.parametrize("driver", [Leaky, Hasty, Slow, Sharing, Forgetful])
def test_a_broken_driver_is_found(driver: type[MockDriver]) -> None:
    """RUN-60, PIT-22: A driver that leaks a block, takes what it cannot run, skips a step, shares equal
    prompts or clears nothing fails a check.
    """
    with pytest.raises(AssertionError):
        check_driver(MockRig(driver=driver))

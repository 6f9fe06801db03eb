"""Runs groups in which some ranks are ours and some are objects of the synchroniser of NVIDIA Dynamo.

``python reference_ranks.py`` reads a JSON list of scenarios from stdin and writes what each rank saw to
stdout, as the last line. Each rank is a thread. Needs the environment of ``scripts/setup_reference_env.sh``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import dynamo.vllm.instrumented_scheduler as reference
import msgspec

from forwardpass.bench.digest import point_digest
from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.group import open_group
from forwardpass.bench.sync.rounds import Legs

DIGEST = "ab" * 32
SUMMARY = {"sum_prefill_tokens": 0, "sum_decode_kv_tokens": 64}


class Scenario(msgspec.Struct):
    """Who is who, and what a rank does differently."""

    name: str
    port: int
    roles: str
    """A letter a rank: ``o`` for ours, ``d`` for Dynamo's."""
    odd: int = -1
    """Which rank is odd: it"""
    how: str = ""
    """has another ``grid`` or ``capacity``, finds a pass ``invalid``, gives up (``abort``), wants to stop
    ``late``, is at another idle ``step``, or is ``absent``."""


def point(number: int) -> dict[str, Any]:
    return {"benchmark_id": number, "total_prefill_tokens": 0, "total_kv_read_tokens": 64, "batch_size": 4}


def fpm(rank: int) -> dict[str, Any]:
    return {"version": 1, "dp_rank": rank, "wall_time": 0.25 + rank, "scheduled_requests": {"x": [1, None]}}


class Ours:
    """A rank of this package."""

    def __init__(self, rank: int, size: int, port: int, seconds: float) -> None:
        legs = Legs(leg=seconds, first=seconds, linger=1.0)
        self.group = open_group(rank, size, "127.0.0.1", port, legs=legs)

    def capacity(self, *limits: Any) -> Any:
        return msgspec.structs.asdict(self.group.agree_capacity(CapacityEnvelope(*limits)))

    def grid(self, digest: str) -> Any:
        return self.group.agree_grid(digest, 2, ["decode"])

    def stage(self, seq: int, phase: str, ok: bool | None) -> Any:
        return list(self.group.stage(seq, 8, m.StagePhase(phase), ok))

    def boundary(self, number: int, late: bool) -> Any:
        return self.group.boundary(number, iter([False] + [late] * 5).__next__)

    def go(self, number: int, problem: str | None) -> Any:
        return self.group.go(number, point_digest(Point(Phase.DECODE, **point(number))), SUMMARY, problem)

    def result(self, number: int, fpms: list[Any], late: bool) -> Any:
        digest = point_digest(Point(Phase.DECODE, **point(number)))
        found = self.group.exchange(number, digest, fpms, iter([False] + [late] * 5).__next__)
        return [msgspec.to_builtins(found.rank_results), found.stop_requested]

    def cleanup(self) -> Any:
        return self.group.cleanup()

    def abort(self, reason: str) -> None:
        self.group.abort(reason)

    def close(self) -> None:
        self.group.close()


class Dynamos:
    """A rank of the reference."""

    def __init__(self, rank: int, size: int, port: int, seconds: float) -> None:
        self.one = reference._BenchmarkSynchronizer(
            dp_rank=rank, dp_size=size, master_ip="127.0.0.1", port=port, timeout=seconds
        )

    def capacity(self, *limits: Any) -> Any:
        found = self.one.negotiate_capacity(reference._BenchmarkCapacityEnvelope(*limits))
        return {name: getattr(found, name) for name in found.__dataclass_fields__}

    def grid(self, digest: str) -> Any:
        return self.one.synchronize_grid(grid_digest=digest, expected_points=2, missing_phases=["decode"])

    def stage(self, seq: int, phase: str, ok: bool | None) -> Any:
        found = self.one.stage_round(seq, 8, phase, ok)
        return [found.all_done, found.ok]

    def boundary(self, number: int, late: bool) -> Any:
        return self.one.synchronize_boundary(number, False, stop_deadline_monotonic=self._deadline(late))

    def go(self, number: int, problem: str | None) -> Any:
        return self.one.synchronize(self._point(number), SUMMARY, problem)

    def result(self, number: int, fpms: list[Any], late: bool) -> Any:
        found = self.one.collect_result(
            self._point(number), fpms, stop_deadline_monotonic=self._deadline(late)
        )
        return [found.rank_results, found.stop_requested]

    def cleanup(self) -> Any:
        return self.one.synchronize_cleanup()

    def abort(self, reason: str) -> None:
        self.one.abort(reason)

    def close(self) -> None:
        self.one.close()

    @staticmethod
    def _point(number: int) -> Any:
        return reference.BenchmarkPoint(point_type="decode", **point(number))

    @staticmethod
    def _deadline(late: bool) -> float | None:
        return time.monotonic() - 1 if late else None


def run(one: Ours | Dynamos, rank: int, how: str, done: list[Any]) -> None:
    """Go through a short run."""
    invariants = DIGEST if how != "capacity" else "cd" * 32
    done.append(one.capacity(1000 + rank, 256, 16, 500 - rank, 400, invariants, True))
    done.append(one.grid(DIGEST if how != "grid" else "cd" * 32))
    done.append(one.stage(1, "building" if rank else "done", None if rank else True))
    done.append(one.stage(2 if how != "step" else 3, "done", rank != 1))
    for number in (1, 2):
        done.append(one.boundary(number, how == "late" and number == 2))
        if done[-1]:
            break
        if how == "abort":
            one.abort("it broke")
            return
        done.append(one.go(number, "255 tokens" if how == "invalid" else None))
        done.append(one.result(number, [fpm(rank)] if number == 1 else [], how == "late result"))
        if done[-1][1]:
            break
    done.append(one.cleanup())


def take_part(scenario: Scenario, rank: int, ends: list[Any]) -> None:
    """Be one rank from start to end."""
    how = scenario.how if rank == scenario.odd else ""
    if how == "absent":
        return
    seconds = 2.0 if scenario.how in ("absent", "abort", "step") else 20.0
    kinds: dict[str, Callable[..., Ours | Dynamos]] = {"o": Ours, "d": Dynamos}
    one = kinds[scenario.roles[rank]](rank, len(scenario.roles), scenario.port, seconds)
    done: list[Any] = []
    error = None
    try:
        run(one, rank, how, done)
    except Exception as caught:  # noqa: BLE001  boundary: Dynamo's errors are of no class of its own
        error = f"{type(caught).__name__}: {caught}"
    finally:
        one.close()
    ends[rank] = {"done": done, "error": error}


def main() -> None:
    """Play all scenarios, one after the other."""
    found = {}
    for scenario in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Scenario]):
        ends: list[Any] = [None] * len(scenario.roles)
        ranks = [
            threading.Thread(target=take_part, args=(scenario, rank, ends))
            for rank in range(len(scenario.roles))
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        found[scenario.name] = ends
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""The few things that the end of a benchmark wants of vLLM's client, and a clock that runs ahead."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.engine_config import to_engine
from forwardpass.bench.handover import Order
from forwardpass.testing.artifacts import made_run

REPLY = {
    "dp_rank": 0,
    "worker_rank": 0,
    "tp_rank": 0,
    "pp_rank": 0,
    "pcp_rank": 0,
    "attention_backends": {"layers.0": "SOME_ATTN"},
    "capture_errors": {},
    "mla_prefill_backend": None,
    "cudagraph_mode_resolved": "FULL",
    "cudagraph_capture_sizes_resolved": [1, 2],
}


class Clock:
    """Each look at it is ten seconds later."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10.0
        return self.now

    def unix_ms(self) -> int:
        return 0


class Client:
    """An engine's client. ``replies`` are answers or errors by method."""

    def __init__(
        self, *, size: int = 1, first: int = 0, external: bool = False, hybrid: bool = False
    ) -> None:
        self.calls: list[str] = []
        self.replies: dict[str, Any] = {
            "fpm_engine_probe": [REPLY],
            "fpm_disable_cudagraph_metrics": [{"cudagraph_metrics": False}],
            "fpm_gc_stop": [{"gc_held": False}],
        }
        self.errored = False
        parallel = SimpleNamespace(
            data_parallel_external_lb=external,
            data_parallel_hybrid_lb=hybrid,
            data_parallel_rank=first,
            data_parallel_size_local=1,
            data_parallel_size=size,
        )
        self.vllm_config = SimpleNamespace(
            parallel_config=parallel, observability_config=SimpleNamespace(cudagraph_metrics=True)
        )
        alone, member = (
            SimpleNamespace(cudagraph_logging=object()),
            SimpleNamespace(cudagraph_logging=object()),
        )
        adapter = SimpleNamespace(per_engine_stat_loggers={0: member})
        self.logger_manager: Any = SimpleNamespace(stat_loggers=[alone, adapter])
        self.loggers = (alone, member)

    async def collective_rpc(self, method: str, timeout: float | None = None) -> Any:
        self.calls.append(method)
        reply = self.replies[method]
        if isinstance(reply, BaseException):
            raise reply
        return reply


def order(path: Path, **more: Any) -> Order:
    """Return what was ordered; ``more`` are settings, and what the order itself has."""
    own = {name: more.pop(name) for name in ("on_failure", "prepared") if name in more}
    config = BenchConfig(
        BenchMode.AGG,
        output_path=str(path),
        **{"worker_extension_installed": True, "cudagraph_metrics_auto_enabled": True, **more},
    )
    return Order(to_engine(config), **{"prepared": True, **own})


def leave_files(path: Path, ranks: int = 1, **changes: Any) -> None:
    """Leave the ranks' files; ``changes`` are made to each document."""
    for rank, document in enumerate(made_run(ranks=ranks)):
        name = path if rank == 0 else path.with_name(f"{path.stem}_dp{rank}{path.suffix}")
        name.write_text(json.dumps({**document, **changes}))

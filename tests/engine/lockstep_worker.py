"""A worker that lets mixture-of-experts ranks work together on CPU, and notes each batch that it begins.

``--worker-cls lockstep_worker.LockstepWorker``. vLLM's communicator for CPU lacks the two collectives with
which ranks exchange the tokens of their experts, so this worker brings them. The scheduler knows nothing
of it, and no code of the product takes part.

A note is a line ``time what`` in a file named after the rank, in the folder that ``LOCKSTEP_NOTES`` names:
the monotonic time in seconds, and the number of tokens or ``dummy``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.v1.worker.cpu_worker import CPUWorker


def gathered(self: Any, pieces: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Return the rows of all ranks, one rank's below the other's; how many may differ between them."""
    if not isinstance(pieces, torch.Tensor):
        return [gathered(self, piece, dim, sizes) for piece in pieces]
    assert dim == 0
    rows = sizes or [pieces.shape[0]] * self.world_size
    parts = [pieces.new_empty((count, *pieces.shape[1:])) for count in rows]
    parts[self.rank_in_group] = pieces.contiguous()
    for rank, part in enumerate(parts):
        torch.distributed.broadcast(part, group=self.device_group, group_src=rank)
    return torch.cat(parts)


def reduced(self: Any, whole: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    """Return this rank's rows of the sum over all ranks."""
    assert dim == 0
    total = whole.clone()
    torch.distributed.all_reduce(total, group=self.device_group)
    rows = sizes or [whole.shape[0] // self.world_size] * self.world_size
    return total.split(rows)[self.rank_in_group].contiguous()


class LockstepWorker(CPUWorker):
    """vLLM's worker, with the collectives and the notes."""

    def init_device(self) -> None:
        CpuCommunicator.all_gatherv = gathered
        CpuCommunicator.reduce_scatterv = reduced
        super().init_device()

    def note(self, what: object) -> None:
        path = Path(os.environ["LOCKSTEP_NOTES"]) / str(self.parallel_config.data_parallel_index)
        with path.open("a") as file:
            file.write(f"{time.monotonic()} {what}\n")

    def execute_model(self, scheduler_output: Any) -> Any:
        self.note(scheduler_output.total_num_scheduled_tokens)
        return super().execute_model(scheduler_output)

    def execute_dummy_batch(self) -> None:
        self.note("dummy")
        super().execute_dummy_batch()

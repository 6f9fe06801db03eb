"""Knows how the garbage collector of a model worker is held from its start until a self-benchmark has ended.

vLLM imports the module of a worker's extension class in the worker alone, before the model is loaded: that
import begins the hold, if the settings ask for it. It ends when the server calls ``fpm_gc_stop``.
"""

from __future__ import annotations

from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.garbage import hold_garbage
from forwardpass.config.settings import Sources
from forwardpass.engines.vllm.worker_extension import ForwardPassWorkerExtension

__all__ = ["ForwardPassGcWorkerExtension"]

_hold = hold_garbage(BenchEnvironment.load(Sources()))


class ForwardPassGcWorkerExtension(ForwardPassWorkerExtension):
    """The usual methods, and one that lets the garbage collector go."""

    def fpm_gc_stop(self) -> dict[str, bool]:
        """Give this process's garbage collector back, and leave what is then alive frozen. Idempotent."""
        _hold.release(freeze_again=True)
        return {"gc_held": False}

"""Lets a released SGLang run on CPU, for its tests: never part of the package.

Two imports are helped. torchvision from PyPI is a CUDA build whose operators do not load beside a CPU torch:
their schemas are enough to import it. And SGLang takes ``wall_time`` from events of a device, which CPU torch
has no timing for: here they read the host's clock.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
import time


class _Before(importlib.abc.MetaPathFinder):
    """Calls something once, right before a module is imported."""

    def __init__(self, module: str, prepare) -> None:
        self._module = module
        self._prepare = prepare

    def find_spec(self, name, path=None, target=None):
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        self._prepare()
        return importlib.util.find_spec(name)


def _define_operators() -> None:
    import torch

    with contextlib.suppress(Exception):
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.torchvision_operators = library  # gone with its last reference


def _read_the_host_clock() -> None:
    import torch

    class HostEvent:
        """An event of the host's clock, as far as SGLang uses one."""

        def __init__(self, enable_timing: bool = False) -> None:
            self.at = None

        def record(self, stream=None) -> None:
            self.at = time.perf_counter()

        def query(self) -> bool:
            return self.at is not None

        def synchronize(self) -> None:
            return None

        def wait(self, stream=None) -> None:
            return None

        def elapsed_time(self, other: HostEvent) -> float:
            return (other.at - self.at) * 1e3

    torch.cpu.Event = HostEvent


sys.meta_path.insert(0, _Before("torchvision", _define_operators))
sys.meta_path.insert(0, _Before("sglang.srt.utils.device_timer", _read_the_host_clock))

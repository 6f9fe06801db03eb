"""Knows what happens when vLLM loads this package by itself: nothing, unless a variable asks for more.

vLLM calls :func:`register`, the entry point ``forwardpass`` of its group ``vllm.general_plugins``, in every
process that it has: API servers, engine cores, workers, and those that only look at a model. So this file
imports neither vLLM nor ZMQ.
"""

from __future__ import annotations

from forwardpass.config import variables as v
from forwardpass.config.handover import BENCH_FOLDER
from forwardpass.config.settings import Sources, process_environment
from forwardpass.errors import ConfigError

__all__ = ["register"]


def register() -> None:
    """Prepare this process if ``DYN_FPM_TRACE`` is true, ``DYN_FORWARDPASS_METRIC_PORT`` is set, or a
    launcher of ours started it to measure its engine.

    Where one of them has a value that is not accepted, one warning says so and vLLM stays as it is; with
    ``FORWARDPASS_STRICT`` it raises :class:`~forwardpass.errors.ConfigError`, which stops vLLM.
    """
    sources = Sources()
    trace, port = sources.resolve(v.FPM_TRACE), sources.resolve(v.METRIC_PORT)
    measured = bool(process_environment().get(BENCH_FOLDER))
    # A port asks for generation whatever the trace variable says; then its value is no surprise.
    error = port.error or (trace.error if port.value is None else None)
    if error is not None:
        _refuse(error, strict=bool(sources.resolve(v.STRICT).value))
    if measured or (error is None and (trace.value or port.value is not None)):
        from forwardpass.engines.vllm.wrap import wrap_engine_args

        wrap_engine_args()


def _refuse(error: ConfigError, *, strict: bool) -> None:
    if strict:
        raise error
    from forwardpass.engines.vllm.told import warn_once

    warn_once(f"{error}; no forward passes are generated or recorded; serving goes on")

"""Knows the one place where vLLM is wrapped: where a process has built the configuration of an engine.

The smallest wrap that will do: vLLM's own method runs first and unchanged, its result is returned, and in
between one field of it may be filled in. Nothing is wrapped unless the plugin was asked for.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from forwardpass.config.handover import BENCH_FOLDER
from forwardpass.config.settings import Sources, process_environment
from forwardpass.config.variables import STRICT
from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.inject import prepare_engine
from forwardpass.engines.vllm.told import warn_once
from forwardpass.errors import ForwardPassError

__all__ = ["METHOD", "wrap_engine_args", "wrap_method"]

logger = logging.getLogger(__name__)

METHOD = "create_engine_config"
_MARK = "__forwardpass__"


def wrap_engine_args() -> None:
    """Wrap ``EngineArgs.create_engine_config``; warn and leave it alone if it is not what we know.

    May be called again: vLLM loads plugins as often as it likes.
    """
    owner = compat.engine_args_class()
    if owner is None or not wrap_method(owner):
        warn_once(
            f"EngineArgs.{METHOD} of this vLLM is not as it was in the versions that are supported; "
            "no forward passes are generated or recorded; serving goes on"
        )


def wrap_method(owner: Any) -> bool:
    """Wrap ``owner``'s method once; return whether it is wrapped, by now or already."""
    original = vars(owner).get(METHOD)
    if getattr(original, _MARK, False):
        return True
    if not inspect.isfunction(original) or "headless" not in inspect.signature(original).parameters:
        return False
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        headless = bool(given.get("headless", False))
        _prepare(config, headless=headless)
        if process_environment().get(BENCH_FOLDER):
            from forwardpass.engines.vllm.bench_prepare import prepare_benchmark

            prepare_benchmark(config, headless=headless)
        return config

    setattr(create_engine_config, _MARK, True)
    setattr(owner, METHOD, create_engine_config)
    return True


def _prepare(config: Any, *, headless: bool) -> None:
    """Prepare the engine of ``config``; what goes wrong here is ours and leaves ``config`` as it was."""
    sources = Sources()
    try:
        prepare_engine(config, headless=headless, sources=sources)
    except Exception as error:  # boundary: the engine must start, whatever is wrong with us
        if sources.resolve(STRICT).value:
            raise
        logger.error(
            "Forward Pass Metrics: %s; this engine is served without them",
            error if isinstance(error, ForwardPassError) else repr(error),
            exc_info=not isinstance(error, ForwardPassError),
        )

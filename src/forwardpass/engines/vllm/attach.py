"""Knows how a live vLLM scheduler gets its recorder, or why it gets none."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from forwardpass.config.settings import PublisherSettings, Sources, SourceSettings
from forwardpass.config.variables import STRICT
from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.extract import queued_metrics, tally_queues
from forwardpass.engines.vllm.recorder import NullRecorder, PassRecorder, Recorder
from forwardpass.errors import ForwardPassError
from forwardpass.publish.publisher import NullPublisher, open_publisher
from forwardpass.wire.schema import QueuedRequestMetrics

__all__ = ["attach_recorder"]

logger = logging.getLogger(__name__)


def attach_recorder(scheduler: Any, sources: Sources | None = None) -> Recorder:
    """Return the recorder of ``scheduler``, its stream bound and its thread running.

    Settings come from ``sources`` (by default this process's environment). What cannot be set up costs
    one error line and gives a recorder that does nothing: the engine goes on serving. With
    ``FORWARDPASS_STRICT`` the error is raised instead.
    """
    sources = sources or Sources()
    try:
        return _open(scheduler, sources)
    except Exception as error:  # boundary: the engine must start, whatever is wrong with us
        if sources.resolve(STRICT).value:
            raise
        logger.error(
            "%s; FPM is off for this engine; serving goes on",
            error,
            exc_info=not isinstance(error, ForwardPassError),
        )
        return NullRecorder()


def _open(scheduler: Any, sources: Sources) -> Recorder:
    settings = PublisherSettings.load(sources)
    rules = compat.installed_queue_rules(
        count_paused_sessions=SourceSettings.load(sources).count_paused_sessions
    )
    queues = compat.waiting_queues(scheduler)
    rank = compat.rank_facts(scheduler)
    publisher = open_publisher(settings, dp_rank=rank.dp_rank, dp_size=rank.dp_size)
    if isinstance(publisher, NullPublisher):  # it has said why
        return NullRecorder()

    def read_queue() -> QueuedRequestMetrics:
        return queued_metrics(*tally_queues(queues(), rules))

    recorder = PassRecorder(publisher, read_queue)
    # vLLM's API server ends engines without calling Scheduler.shutdown(). Nothing depends on this, for
    # the thread sends within milliseconds, but the last pass may be younger. It also runs when an
    # engine is thrown away in a process that goes on.
    weakref.finalize(recorder, publisher.shutdown)
    compat.offer_utility()
    return recorder

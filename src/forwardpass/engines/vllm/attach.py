"""Knows how a live vLLM scheduler gets its recorder, or why it gets none."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from forwardpass.clock import Clock
from forwardpass.config.settings import PublisherSettings, Sources, SourceSettings
from forwardpass.config.variables import STRICT
from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.counted import CountedQueues, QueueLedger, Unsettled, count_in
from forwardpass.engines.vllm.recorder import NullRecorder, PassRecorder, Recorder
from forwardpass.engines.vllm.waiting import QueueRules
from forwardpass.errors import ForwardPassError
from forwardpass.publish.publisher import LatePublisher, NullPublisher, open_publisher

__all__ = ["attach_recorder", "counted_queues", "record_to"]

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


def record_to(
    publisher: LatePublisher, scheduler: Any, settings: SourceSettings, clock: Clock | None = None
) -> PassRecorder:
    """Return a recorder of ``scheduler`` that publishes to ``publisher``.

    Raises :class:`~forwardpass.errors.EngineError` if the scheduler is not what we know of vLLM.
    """
    rules = compat.installed_queue_rules(count_paused_sessions=settings.count_paused_sessions)
    queues = counted_queues(scheduler, rules)
    return PassRecorder(publisher, queues, unfinished=compat.unfinished_requests(scheduler), clock=clock)


def counted_queues(scheduler: Any, rules: QueueRules) -> CountedQueues:
    """Return what reads the waiting requests: queues that count themselves, where that can be had."""
    unsettled = Unsettled()
    ledgers = QueueLedger(rules, unsettled), QueueLedger(rules, unsettled)
    queues = compat.waiting_queues(scheduler)
    try:
        for name, ledger in zip(compat.queue_names(scheduler), ledgers, strict=True):
            count_in(getattr(scheduler, name), ledger)
    except (AttributeError, TypeError) as error:
        logger.warning(
            "vLLM's waiting queues cannot count themselves (%s); every pass reads them, which is right but "
            "slower; please report it",
            error,
        )
        return CountedQueues(queues, None, rules)
    return CountedQueues(queues, ledgers, rules)


def _open(scheduler: Any, sources: Sources) -> Recorder:
    settings, source_settings = PublisherSettings.load(sources), SourceSettings.load(sources)
    rank = compat.rank_facts(scheduler)
    publisher = open_publisher(settings, dp_rank=rank.dp_rank, dp_size=rank.dp_size)
    if isinstance(publisher, NullPublisher):  # it has said why
        return NullRecorder()
    try:
        recorder = record_to(publisher, scheduler, source_settings)
        compat.offer_utility()
    except BaseException:
        publisher.shutdown()  # free the port: nobody else will
        raise
    # vLLM's API server ends engines without calling Scheduler.shutdown(). Nothing depends on this, for
    # the thread sends within milliseconds, but the last pass may be younger. It also runs when an
    # engine is thrown away in a process that goes on.
    weakref.finalize(recorder, publisher.shutdown)
    return recorder

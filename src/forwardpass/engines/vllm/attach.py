"""Knows how a live vLLM scheduler gets its recorder, or why it gets none."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

from forwardpass.clock import Clock
from forwardpass.config.settings import PublisherSettings, Sources, SourceSettings
from forwardpass.config.variables import STRICT
from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.counted import CountedQueues, QueueLedger, count_in
from forwardpass.engines.vllm.recorder import NullRecorder, PassRecorder, Recorder
from forwardpass.engines.vllm.waiting import QueueRules, read_waiting
from forwardpass.errors import ForwardPassError
from forwardpass.publish.publisher import NullPublisher, Publisher, open_publisher
from forwardpass.wire.schema import QueuedRequestMetrics

__all__ = ["attach_recorder", "queue_reader", "record_to"]

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
    publisher: Publisher, scheduler: Any, settings: SourceSettings, clock: Clock | None = None
) -> PassRecorder:
    """Return a recorder of ``scheduler`` that publishes to ``publisher``.

    Raises :class:`~forwardpass.errors.EngineError` if the scheduler is not what we know of vLLM.
    """
    rules = compat.installed_queue_rules(count_paused_sessions=settings.count_paused_sessions)
    return PassRecorder(publisher, queue_reader(scheduler, rules, clock), clock=clock)


def queue_reader(
    scheduler: Any, rules: QueueRules, clock: Clock | None = None
) -> Callable[[], QueuedRequestMetrics]:
    """Return what reads the waiting requests: queues that count themselves, where that can be had."""
    names = compat.queue_names(scheduler)
    queues, ledgers = compat.waiting_queues(scheduler), tuple(QueueLedger(rules) for _ in names)
    try:
        for name, ledger in zip(names, ledgers, strict=True):
            count_in(getattr(scheduler, name), ledger)
    except (AttributeError, TypeError) as error:
        logger.warning(
            "vLLM's waiting queues cannot count themselves (%s); every pass reads them, which is right but "
            "slower; please report it",
            error,
        )
        return lambda: read_waiting(queues(), rules)
    return CountedQueues(queues, ledgers, rules, clock).read


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

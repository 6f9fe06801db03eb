"""How differences between vLLM versions are detected, on plain objects."""

from __future__ import annotations

import heapq
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_shapes import Status, Waiting

from forwardpass.engines.vllm.compat import queue_rules, rank_facts, waiting_queues
from forwardpass.engines.vllm.contract import CONTRACT
from forwardpass.errors import EngineError


def scheduler(**parallel: Any) -> SimpleNamespace:
    return SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(**parallel)))


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ({"data_parallel_index": 3, "data_parallel_rank": 0, "data_parallel_size": 1}, (3, 4)),
        ({"data_parallel_index": 1, "data_parallel_rank": 1, "data_parallel_size": 4}, (1, 4)),
        ({"data_parallel_rank": 2, "data_parallel_size": 4}, (2, 4)),
        ({"data_parallel_rank": None, "data_parallel_size": None}, (0, 1)),
        ({}, (0, 1)),
    ],
)
def test_the_index_tells_the_rank(parallel: dict[str, Any], expected: tuple[int, int]) -> None:
    """ENG-10, TRAP-04, PIT-02: Dense ranks have rank 0 and size 1 each and differ in the index alone."""
    assert expected == rank_facts(scheduler(**parallel))


@pytest.mark.parametrize("second", ["kv_holding_waiting", "skipped_waiting"])
def test_the_second_queue_is_found_by_its_name(second: str) -> None:
    """ENG-08, TRAP-03: It was renamed in 0.31."""
    engine = SimpleNamespace(waiting=deque([1]), **{second: deque([2])})

    assert waiting_queues(engine)() == (deque([1]), deque([2]))


def test_a_priority_queue_is_read_through_its_heap() -> None:
    """Iterating one sorts it in Python; the heap is replaced now and then, so it is looked up each time."""
    queue = SimpleNamespace(_heap=[3, 4])
    engine = SimpleNamespace(waiting=queue, kv_holding_waiting=SimpleNamespace(_heap=[]))
    read = waiting_queues(engine)
    queue._heap = [5]
    heapq.heappush(queue._heap, 1)

    assert read() == ([1, 5], [])


@pytest.mark.parametrize("missing", ["waiting", "skipped_waiting"])
def test_a_missing_queue_is_an_engine_error(missing: str) -> None:
    """A vLLM without one of the queues is not one that we know."""
    queues = {"waiting": deque(), "skipped_waiting": deque()}
    del queues[missing]

    with pytest.raises(EngineError, match=missing):
        waiting_queues(SimpleNamespace(**queues))


def test_a_missing_status_is_an_engine_error() -> None:
    """Without PREEMPTED there is no telling prompts from contexts."""
    from enum import IntEnum

    short = IntEnum("short", {name: int(status) for name, status in Status.__members__.items() if status < 6})

    with pytest.raises(EngineError, match="PREEMPTED"):
        queue_rules(Waiting, short)


def test_lengths_follow_the_property_where_its_code_is_known() -> None:
    """``len(self._all_token_ids)`` is done in C; any other property is called."""

    class Known:
        def __init__(self, tokens: list[int]) -> None:
            self._all_token_ids = tokens

        @property
        def num_tokens(self) -> int:
            return len(self._all_token_ids)

    class Changed(Known):
        @property
        def num_tokens(self) -> int:
            return len(self._all_token_ids) + 100

    for kind, expected in ((Known, [2, 3]), (Changed, [102, 103])):
        rules = queue_rules(kind, Status)
        assert rules.lengths([kind([1, 2]), kind([1, 2, 3])]) == expected


def test_unknown_statuses_count_as_prompts() -> None:
    """A status that a later vLLM adds is something that waits to run, until we know better."""
    from enum import IntEnum

    longer = IntEnum("longer", {**{n: int(s) for n, s in Status.__members__.items()}, "WAITING_FOR_TEA": 99})

    assert longer["WAITING_FOR_TEA"] in queue_rules(Waiting, longer).prompts


def test_the_contract_names_each_symbol_once() -> None:
    """One row for one name of one owner."""
    names = [(row.owner, row.name) for row in CONTRACT]

    assert len(names) == len(set(names))

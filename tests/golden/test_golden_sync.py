"""What the reference's synchroniser said among three ranks: ours says the same, from either side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.decisions import SPECS
from forwardpass.bench.sync.rounds import Coordinator, Follower, Own, RoundSpec

LINES = (Path(__file__).parent / "sync-dp3" / "messages.jsonl").read_text(encoding="utf-8").splitlines()
ROUNDS: list[dict[str, Any]] = [json.loads(line) for line in LINES]
WHOLE = [one for one in ROUNDS if one["round"] not in ("abort", "go with a failed validation")]
RANKS = (0, 1, 2)


def said(one: dict[str, Any], sender: int) -> list[dict[str, Any]]:
    """Return what a rank said in a round; rank 0 says the same to all, so once."""
    receiver = 0 if sender else 1
    return [json.loads(x["data"]) for x in one["messages"] if (x["from"], x["to"]) == (sender, receiver)]


def spec_of(one: dict[str, Any]) -> RoundSpec[Any, Any]:
    return next(spec for spec in SPECS if m.type_of(spec.report) == said(one, 1)[0]["type"])


def report_of_zero(one: dict[str, Any]) -> Any:
    """Return what rank 0 must have reported to itself; the capture's other ranks tell, but for this."""
    fields = {**said(one, 1)[0], "dp_rank": 0}
    if fields["type"] == "capacity":
        fields["capacity"] = {**fields["capacity"], "max_model_len": 2048, "kvwarm_eligible": True}
        fields["capacity"] |= {
            "usable_blocks_without_watermark": 16383,
            "usable_blocks_with_watermark": 16300,
        }
    if fields["type"] == "result" and fields["fpms"]:
        fields["fpms"] = next(x for x in said(one, 0) if x["type"] == "group")["rank_results"][0]["fpms"]
    if fields["type"] == "stage_round" and one["round"] == "stage building":
        fields |= {"phase": "done", "ok": True}
    if fields["type"] == "boundary":
        fields["stop_requested"] = False
    return m.read_from_follower(json.dumps(fields).encode())


def run_id(one: dict[str, Any]) -> str | None:
    return next((x["run_id"] for x in said(one, 0) if x["type"] == "go"), None)


def late_stop(one: dict[str, Any], rank: int) -> bool:
    return one["round"] == "result with a late stop" and rank == 2


@pytest.mark.parametrize("one", WHOLE, ids=lambda one: one["round"])
def test_our_rank_0_answers_as_the_references(one: dict[str, Any]) -> None:
    """SYNC-03: Given what the reference's ranks said, our rank 0 says what the reference's did."""
    zero: Coordinator[Any, Any] = Coordinator(spec_of(one), report_of_zero(one), Own(0, 3, run_id(one)))
    sends = list(zero.start(0.0))
    for message in one["messages"]:
        if message["from"]:
            sends += zero.receive(str(message["from"]).encode(), [message["data"].encode()], 0.0)

    assert [json.loads(payload) for _, payload in sends] == said(one, 0)
    assert all(ranks == (1, 2) for ranks, _ in sends)
    assert zero.over
    assert zero.failure is None


@pytest.mark.parametrize("rank", RANKS[1:])
@pytest.mark.parametrize("one", WHOLE, ids=lambda one: one["round"])
def test_our_other_ranks_answer_as_the_references(one: dict[str, Any], rank: int) -> None:
    """SYNC-03: Given what the reference's rank 0 said, our others say what the reference's did."""
    first = said(one, rank)[0]
    report = m.read_from_follower(json.dumps(first).encode())
    own = Own(rank, 3, None, first.get("stop_requested", False))
    other: Follower[Any, Any] = Follower(spec_of(one), report, own, stop=lambda: late_stop(one, rank))
    sends = list(other.start(0.0))
    for message in said(one, 0):
        sends += other.receive(b"0", [json.dumps(message).encode()], 0.0)

    assert [json.loads(payload) for _, payload in sends] == said(one, rank)
    assert other.over
    assert other.failure is None


def test_how_the_reference_says_that_it_failed() -> None:
    """SYNC-03, SYNC-06: The reference's abort and error are read, and ours have the same fields."""
    for one in ROUNDS:
        for message in one["messages"]:
            if message["from"] == 0:
                read: Any = m.read_from_zero(message["data"].encode())
            else:
                read = m.read_from_follower(message["data"].encode())
            assert json.loads(m.encode(read)) == json.loads(message["data"])

    assert [json.loads(x["data"])["type"] for x in ROUNDS[-1]["messages"]] == ["abort", "ready", "error"]

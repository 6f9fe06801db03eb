"""What vLLM's scheduler outputs become, on plain objects."""

from __future__ import annotations

import pytest
from vllm_shapes import Output, Row, output, prompt

from forwardpass.engines.vllm.extract import known_lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.wire.schema import ScheduledRequestMetrics
from forwardpass.wire.tally import Tally


class Source:
    """The state that a recorder keeps between passes."""

    def __init__(self) -> None:
        self.memory = RequestMemory()

    def __call__(self, out: Output) -> ScheduledRequestMetrics:
        return scheduled_metrics(out, known_lengths(out.scheduled_new_reqs), self.memory)


@pytest.fixture
def source() -> Source:
    return Source()


def decodes(count: int, total: int, variance: float = 0.0) -> ScheduledRequestMetrics:
    return ScheduledRequestMetrics(
        num_decode_requests=count, sum_decode_kv_tokens=total, var_decode_kv_tokens=variance
    )


def test_new_requests_are_prefills_of_what_is_not_cached(source: Source) -> None:
    """ENG-04: Scheduled tokens are computed, already computed ones are read, whole prompts spread."""
    out = output(new=[(prompt("a", 100, computed=64), 36), (prompt("b", 20), 20)])

    assert source(out) == ScheduledRequestMetrics(2, 56, 1600.0, 64, 0, 0, 0.0)


def test_a_wholly_cached_prompt_is_a_prefill_without_tokens_lost(source: Source) -> None:
    """ENG-04, WIRE-14: A prompt of which one token is left is still one prefill request, with KV for the
    rest.
    """
    out = output(new=[(prompt("a", 100, computed=99), 1)])

    assert source(out) == ScheduledRequestMetrics(1, 1, 0.0, 99, 0, 0, 0.0)


def test_a_chunk_after_the_first_keeps_the_whole_prompt_length(source: Source) -> None:
    """ENG-05: A request without output tokens continues its prompt; its first listing told the length."""
    source(output(new=[(prompt("a", 100), 40)]))
    out = output(Row("a", 40, 0, 60), Row("b", 7, 3))

    assert source(out) == ScheduledRequestMetrics(1, 60, 0.0, 40, 1, 7, 0.0)


def test_a_chunk_of_a_request_never_seen_has_length_zero(source: Source) -> None:
    """A source that missed the first listing counts the chunk and knows no length."""
    assert source(output(Row("a", 40, 0, 60))) == ScheduledRequestMetrics(1, 60, 0.0, 40, 0, 0, 0.0)


def test_decodes_count_their_context_before_the_pass(source: Source) -> None:
    """ENG-05: Sum and population variance are those of the lengths before the pass."""
    assert source(output(Row("a", 10, 1), Row("b", 14, 2))) == decodes(2, 24, 4.0)


def test_draft_tokens_count_nowhere(source: Source) -> None:
    """ENG-07: A speculative decode is one decode; a prefill padded with placeholders counts its own."""
    padded = output(
        Row("a", 10, 1, 4),
        new=[(prompt("b", 100, computed=99), 4)],
        drafts={"a": [1, 2, 3], "b": [-1, -1, -1]},
    )

    assert source(padded) == ScheduledRequestMetrics(1, 1, 0.0, 99, 1, 10, 0.0)


def test_a_resumed_request_is_a_prefill_until_it_is_where_it_was(source: Source) -> None:
    """ENG-06: Runner V1 lists a preempted request as cached and resumed; prompt plus output is its length,
    and chunks of the recomputation are prefill until that length is reached (D-2).
    """
    source(output(new=[(prompt("a", 50), 50)]))
    source(output(Row("a", 50, 1)))

    first = source(output(Row("a", 0, 30, 64), Row("b", 5, 5), resumed={"a"}))
    second = source(output(Row("a", 64, 30, 16), Row("b", 6, 6)))
    third = source(output(Row("a", 80, 31), Row("b", 7, 7)))

    assert first == ScheduledRequestMetrics(1, 64, 0.0, 0, 1, 5, 0.0)
    assert second == ScheduledRequestMetrics(1, 16, 0.0, 64, 1, 6, 0.0)
    assert third == decodes(2, 87, 36.5**2)
    assert source.memory.recomputing == {}


def test_a_resumed_request_whose_kv_was_kept_elsewhere_decodes_at_once(source: Source) -> None:
    """ENG-06: Nothing is computed again where another store had everything; so nothing is prefill (D-2)."""
    source(output(new=[(prompt("a", 50), 50)]))

    assert source(output(Row("a", 80, 30), resumed={"a"})) == decodes(1, 80)
    assert source.memory.recomputing == {}


def test_runner_v2_lists_a_resumed_request_as_new(source: Source) -> None:
    """ENG-06: Its record then brings all known tokens; the messages are those of runner V1 (D-2)."""
    source(output(new=[(prompt("a", 50, prefill_token_ids=[0] * 50), 50)]))
    source(output(Row("a", 50, 1)))

    first = source(output(new=[(prompt("a", 50, prefill_token_ids=[0] * 80), 64)]))
    second = source(output(Row("a", 64, 30, 16)))

    assert first == ScheduledRequestMetrics(1, 64, 0.0, 0, 0, 0, 0.0)
    assert second == ScheduledRequestMetrics(1, 16, 0.0, 64, 0, 0, 0.0)
    assert source(output(Row("a", 80, 31))) == decodes(1, 80)


def test_a_request_preempted_twice_starts_its_recomputation_again(source: Source) -> None:
    """A second preemption during recomputation replaces the first; nothing is left behind."""
    source(output(new=[(prompt("a", 50), 50)]))
    source(output(Row("a", 0, 30, 64), resumed={"a"}))
    again = source(output(Row("a", 32, 30, 48), resumed={"a"}))

    assert again == ScheduledRequestMetrics(1, 48, 0.0, 32, 0, 0, 0.0)
    assert source(output(Row("a", 80, 31))) == decodes(1, 80)


def test_a_request_preempted_in_its_prompt_resumes_as_what_it_was(source: Source) -> None:
    """Without output tokens a resumed request is a prefill of its prompt, counted once."""
    source(output(new=[(prompt("a", 100), 40)]))
    out = output(Row("a", 32, 0, 68), resumed={"a"})

    assert source(out) == ScheduledRequestMetrics(1, 68, 0.0, 32, 0, 0, 0.0)


def test_lost_kv_is_computed_again_as_a_prefill(source: Source) -> None:
    """ENG-06, CASE-15: A request whose KV failed to arrive is set back while it runs. More tokens than a
    decode computes are a prefill of what it knows (D-2), in chunks, until it is where it was; the decodes
    beside it stay decodes.
    """
    source(output(new=[(prompt("a", 100, computed=96), 4), (prompt("b", 7), 7)]))

    first = source(output(Row("a", 32, 1, 64), Row("b", 7, 1)))
    second = source(output(Row("a", 96, 1, 5), Row("b", 8, 2)))
    third = source(output(Row("a", 101, 2), Row("b", 9, 3)))

    assert first == ScheduledRequestMetrics(1, 64, 0.0, 32, 1, 7, 0.0)
    assert second == ScheduledRequestMetrics(1, 5, 0.0, 96, 1, 8, 0.0)
    assert third == decodes(2, 110, 46.0**2)
    assert source.memory.recomputing == {}


def test_lost_kv_is_found_beside_prompts_and_drafts(source: Source) -> None:
    """CASE-15: Drafts are no sign of it, and in a mixed pass each request is told apart."""
    source(output(new=[(prompt("a", 100), 100), (prompt("b", 7), 7), (prompt("c", 50), 10)]))
    mixed = output(
        Row("a", 64, 1, 40),
        Row("b", 7, 1, 4),
        Row("c", 10, 0, 20),
        new=[(prompt("d", 30), 30)],
        drafts={"a": [1, 2, 3], "b": [4, 5, 6]},
    )

    spread = Tally.of([101, 50, 30]).variance
    assert source(mixed) == ScheduledRequestMetrics(3, 37 + 20 + 30, spread, 64 + 10, 1, 7, 0.0)


def test_live_token_lists_are_read_when_the_pass_is_scheduled(source: Source) -> None:
    """The token lists in a record belong to the request and grow before its output comes."""
    record = prompt("a", 50, prefill_token_ids=[0] * 80)
    out = output(new=[(record, 64)])
    lengths = known_lengths(out.scheduled_new_reqs)
    assert record.prefill_token_ids is not None
    record.prefill_token_ids.append(1)
    scheduled_metrics(out, lengths, source.memory)

    assert source.memory.recomputing == {"a": 80}


def test_finished_requests_are_forgotten(source: Source) -> None:
    """Memory is bounded by the requests that live; an id that is used again starts afresh."""
    source(output(new=[(prompt("a", 100), 40), (prompt("b", 9), 9)]))
    source(output(new=[(prompt("a", 30), 10)], finished={"a", "b", "never seen"}))

    assert source.memory.lengths == {"a": 30}


def test_an_embedded_prompt_counts_its_rows() -> None:
    """ENG-07: Without token ids the embeddings tell the length; without both there is none (D-5)."""

    class Tensor:
        shape = (7, 64)

    records = [prompt("a", 0), prompt("b", 0)]
    for record in records:
        record.prompt_token_ids = None
    records[0].prompt_embeds = Tensor()

    assert known_lengths(records) == [(7, 7), (0, 0)]


def test_steady_decodes_are_counted_exactly(source: Source) -> None:
    """Passes of the same requests build on each other and stay exact; any other pass starts anew."""
    rows = [Row("a", 10, 1), Row("b", 14, 2), Row("c", 1000, 3)]
    for step in range(5):
        moved = [Row(row.id, row.computed + step, row.outputs + step) for row in rows]
        expected = Tally.of([row.computed for row in moved])
        assert source(output(*moved)) == decodes(3, expected.total, expected.variance)
    other = output(Row("a", 15, 6, 3), Row("b", 19, 7), Row("d", 1005, 8), drafts={"a": [1, 2]})
    expected = Tally.of([15, 19, 1005])
    assert source(other) == decodes(3, expected.total, expected.variance)


def test_a_pass_between_two_of_the_same_requests_breaks_the_chain(source: Source) -> None:
    """A mixed pass may run some of them and not others, so that the sum fits and the lengths do not."""
    source(output(Row("a", 10, 1), Row("b", 20, 1)))
    source(output(Row("a", 11, 2), new=[(prompt("x", 8), 8)]))

    assert source(output(Row("a", 12, 3), Row("b", 20, 1))) == decodes(2, 32, 16.0)

"""Workers' replies, what they amount to, and the sidecar."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_run import OUTPUT, SIDECAR, sources

from forwardpass.artifact.merge import merge_ranks
from forwardpass.artifact.names import merged_path, rank_path, sidecar_path
from forwardpass.artifact.probe import (
    ProbeFailed,
    ProbeReplies,
    ProbeSkipped,
    failure_text,
    responses_of,
)
from forwardpass.artifact.probe_view import ProbeResult, judge_probe, judge_view
from forwardpass.artifact.sidecar import (
    NoSidecar,
    Sidecar,
    applied,
    build_sidecar,
    read_sidecar,
    sidecar_beside,
    write_sidecar,
)
from forwardpass.errors import ArtifactPathError, MalformedArtifact, UnknownSchema
from forwardpass.testing.artifacts import made_run

ENGINE = {
    "attention": {},
    "parallel": {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "prefill_context_parallel_size": 1,
    },
}


def reply(rank: int = 0, worker: int = 0, **changes: Any) -> dict[str, Any]:
    """Return what a worker says."""
    return {
        "dp_rank": rank,
        "worker_rank": worker,
        "tp_rank": worker % 2,
        "pp_rank": 0,
        "pcp_rank": 0,
        "attention_backends": {"layer.0": "FLASH", "layer.1": "FLASH"},
        "capture_errors": {},
        "mla_prefill_backend": None,
        "cudagraph_mode_resolved": "FULL",
        "cudagraph_capture_sizes_resolved": [1, 2],
        **changes,
    }


ALL = [reply(rank, worker) for rank in (0, 1) for worker in (0, 1)]


def judged(result: Any, expected: Any = (0, 1), engine: dict[str, Any] = ENGINE) -> ProbeResult:
    """Judge what a call returned."""
    responses, failure = judge_probe(ProbeReplies(result))
    return judge_view(responses, failure, engine, expected)


def issues(*replies: Any) -> list[bool]:
    """Return which of the replies have an issue by themselves."""
    return [bool(response.issues) for response in responses_of(list(replies))]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "text",
        [1],
        {"dp_rank": float("nan")},
        object(),
        {1, 2},
        "\ud800",
        {key: value for key, value in reply().items() if key != "dp_rank"},
        {key: value for key, value in reply().items() if key != "attention_backends"},
        reply(dp_rank=True),
        reply(worker_rank=-1),
        reply(tp_rank=0.0),
        reply(pp_rank="0"),
        reply(pcp_rank=False),
        reply(attention_backends=["FLASH"]),
        reply(attention_backends={"layer": ""}),
        reply(attention_backends={"layer": None}),
        reply(mla_prefill_backend=3),
        reply(cudagraph_mode_resolved=["FULL"]),
        reply(cudagraph_capture_sizes_resolved=None),
        reply(cudagraph_capture_sizes_resolved=[0]),
        reply(cudagraph_capture_sizes_resolved=[True]),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value)[:60]),
)
def test_a_bad_reply_has_an_issue(bad: Any) -> None:
    """PROBE-01, PROBE-02: What is no reply is kept in a form that JSON has, with an issue; the others have
    none.
    """
    assert issues(bad, reply(5)) == [True, False]
    kept = responses_of([bad])[0].response

    assert json.loads(msgspec.json.encode(kept)) == kept


@pytest.mark.parametrize(
    "good",
    [
        reply(),
        reply(pp_rank=None, pcp_rank=None),
        reply(mla_prefill_backend="FA3", cudagraph_mode_resolved=None),
        reply(attention_backends={}, cudagraph_capture_sizes_resolved=[]),
        reply(more={"of": ["a", "newer", "worker"]}),
    ],
    ids=range(5),
)
def test_a_good_reply_has_none(good: Any) -> None:
    """PROBE-02: Null is accepted where it says that there is none; unknown fields are kept."""
    assert issues(good) == [False]
    assert responses_of([good])[0].response == good


def test_a_single_reply_is_a_list_of_one() -> None:
    """PROBE-01: A call that returns no list returned one reply; positions are kept."""
    assert [one.rpc_index for one in responses_of(reply())] == [0]
    assert [one.rpc_index for one in responses_of([reply(), None])] == [0, 1]


def test_two_replies_of_one_worker_are_both_marked() -> None:
    """PROBE-02: Neither copy is believed, wherever they stand."""
    assert issues(reply(0, 0), reply(0, 1), reply(0, 0), reply(1, 0)) == [True, False, True, False]


def test_all_workers_agree() -> None:
    """PROBE-05, PROBE-07, PROBE-08: Every worker replied once and says the same."""
    result = judged(ALL)
    probe = result.worker_probe

    assert result.resolution == "worker_probe"
    assert (result.resolved, result.resolved_scope) == (ALL[0], "representative_worker")
    assert probe.coverage.complete
    assert probe.coverage.missing_dp_ranks == []
    assert [(one["dp_rank"], one["worker_rank"]) for one in probe.coverage.observed_workers] == [
        (0, 0), (0, 1), (1, 0), (1, 1)
    ]  # fmt: skip
    assert (probe.disagreements, probe.error) == ({}, None)
    assert result.attention is not msgspec.UNSET
    assert result.attention.backend_resolved == "FLASH"
    assert result.attention.mla_prefill_backend_resolved is None


def test_one_engines_replies_are_a_part() -> None:
    """PROBE-05, PROBE-07: Two of four workers are a partial answer, and the missing rank is named."""
    result = judged(ALL[:2])

    assert result.resolution == "worker_probe_partial"
    assert not result.worker_probe.coverage.complete
    assert result.worker_probe.coverage.missing_dp_ranks == [1]


@pytest.mark.parametrize(
    ("changes", "field", "values"),
    [
        (
            {"attention_backends": {"layer.0": "TRITON"}},
            "attention_backends",
            {"layer.0": ["FLASH", "TRITON"]},
        ),
        ({"cudagraph_mode_resolved": "NONE"}, "cudagraph_mode_resolved", ["FULL", "NONE"]),
        ({"cudagraph_capture_sizes_resolved": [1]}, "cudagraph_capture_sizes_resolved", [[1, 2], [1]]),
    ],
)
def test_workers_that_differ_are_mixed(changes: dict[str, Any], field: str, values: Any) -> None:
    """PROBE-06, PROBE-07: One other value makes the answer mixed, and the values are listed."""
    result = judged([*ALL[:3], {**ALL[3], **changes}])

    assert result.resolution == "worker_probe_mixed"
    assert result.worker_probe.disagreements == {field: values}


def test_null_beside_a_name_is_no_disagreement() -> None:
    """PROBE-06, PROBE-08: A worker without a prefill backend does not contradict one with; nor is it
    resolved.
    """
    result = judged([*ALL[:3], {**ALL[3], "mla_prefill_backend": "FA3"}])

    assert result.resolution == "worker_probe"
    assert result.attention is not msgspec.UNSET
    assert result.attention.mla_prefill_backend_resolved is None


def test_layers_of_two_kinds_are_no_single_backend() -> None:
    """PROBE-08: Workers that agree on two backends for two layers resolve none, and attention is mixed."""
    result = judged([{**one, "attention_backends": {"a": "X", "b": "Y"}} for one in ALL])

    assert result.resolution == "worker_probe"
    assert result.attention is not msgspec.UNSET
    assert (result.attention.backend_resolved, result.attention.resolution) == (None, "worker_probe_mixed")


def test_ranks_that_contradict_the_sizes_are_issues_of_the_view() -> None:
    """PROBE-03, PROBE-04: A reply whose place cannot be its worker's is marked in the view, not in the
    original.
    """
    responses, failure = judge_probe(ProbeReplies([*ALL[:3], {**ALL[3], "tp_rank": 0}]))
    result = judge_view(responses, failure, ENGINE, [0, 1])

    assert [bool(one.issues) for one in result.worker_probe.responses] == [False, False, False, True]
    assert not any(one.issues for one in responses)
    assert result.resolution == "worker_probe_partial"


def test_two_workers_in_one_place_are_issues_of_the_view() -> None:
    """PROBE-03: Workers 0 and 2 of two tensor ranks and no other axis are in the same place."""
    result = judged([reply(0, 0), reply(0, 2), reply(0, 1)], [0])

    assert [bool(one.issues) for one in result.worker_probe.responses] == [True, True, False]


def test_what_is_out_of_scope_is_kept() -> None:
    """PROBE-04, PROBE-05: In a view of one rank the other's replies are kept and not counted; an issue of one
    of them makes even this view incomplete.
    """
    responses, failure = judge_probe(ProbeReplies(ALL))
    fine = judge_view(responses, failure, ENGINE, [1])
    assert (fine.resolution, len(fine.worker_probe.responses)) == ("worker_probe", 4)
    assert len(fine.worker_probe.coverage.observed_workers) == 2

    responses, failure = judge_probe(ProbeReplies([None, *ALL]))
    assert judge_view(responses, failure, ENGINE, [1]).resolution == "worker_probe_partial"


def test_layers_that_could_not_be_looked_at_are_no_whole_answer() -> None:
    """PROBE-05: A worker that reports capture errors is usable, and the answer is partial."""
    result = judged([*ALL[:3], {**ALL[3], "capture_errors": {"layer.9": "ValueError: x"}}])

    assert result.resolution == "worker_probe_partial"


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, [0, 1]),
        ({"parallel": {**ENGINE["parallel"], "pipeline_parallel_size": None}}, [0, 1]),
        (ENGINE, None),
    ],
)
def test_nothing_is_complete_where_sizes_are_unknown(engine: dict[str, Any], expected: Any) -> None:
    """PROBE-05: Without the sizes or the ranks nobody can know that everybody replied."""
    coverage = judged(ALL, expected, engine).worker_probe.coverage

    assert not coverage.complete
    assert len(coverage.observed_workers) == 4
    assert (coverage.missing_dp_ranks is None) == (expected is None)


@pytest.mark.parametrize(
    ("outcome", "resolution", "kept"),
    [
        (ProbeFailed(failure_text(TimeoutError())), "probe_failed: TimeoutError", 0),
        (ProbeFailed(failure_text(ValueError("no\nmore"))), "probe_failed: ValueError: no\nmore", 0),
        (ProbeSkipped("another extension class (a.B)"), "probe_skipped: another extension class (a.B)", 0),
        (ProbeReplies([]), "probe_failed: no worker replied", 0),
        (ProbeReplies([None, 3]), "probe_failed: every reply has issues", 2),
    ],
)
def test_a_probe_that_failed_says_so(outcome: Any, resolution: str, kept: int) -> None:
    """PROBE-07: The text of the failure or the skip is the verdict; replies that came are kept."""
    responses, failure = judge_probe(outcome)
    result = judge_view(responses, failure, ENGINE, [0])

    assert result.resolution == result.worker_probe.error == resolution
    assert len(result.worker_probe.responses) == kept
    assert (result.resolved, result.resolved_scope) == (None, None)


def test_replies_of_other_ranks_alone_are_unobserved() -> None:
    """PROBE-07: Where no reply is usable for a view, it was not observed."""
    assert judged(ALL[:2], [1]).resolution == "worker_probe_unobserved"


# --- the sidecar ------------------------------------------------------------------------------------


def merged_document(**options: Any) -> dict[str, Any]:
    return merge_ranks(sources(made_run(**options)), output=OUTPUT, sidecar=SIDECAR).document()


def sidecar_of(document: dict[str, Any], result: Any = ALL) -> Sidecar:
    sidecar = build_sidecar(document, ProbeReplies(result))
    assert sidecar is not None
    return sidecar


def test_the_sidecar_holds_every_view() -> None:
    """PROBE-03, PROBE-09: All ranks together and each by itself, under the run's id and with all files."""
    document = merged_document()
    sidecar = sidecar_of(document, ALL[:2])

    assert sidecar.run_id == document["run_id"]
    assert list(sidecar.rank_files) == document["rank_files"]
    assert sidecar.merged_output_path == str(OUTPUT)
    assert sidecar.merged.resolution == "worker_probe_partial"
    assert {rank: view.resolution for rank, view in sidecar.ranks.items()} == {
        "0": "worker_probe",
        "1": "worker_probe_unobserved",
    }
    assert sidecar.ranks["1"].rank_file == "rank1.json"


def test_without_an_engine_block_there_is_no_sidecar() -> None:
    """PROBE-09: Where nothing was captured nothing can be resolved."""
    assert build_sidecar(merged_document(engine=False), ProbeReplies(ALL)) is None


def test_a_sidecar_is_written_and_read(tmp_path: Path) -> None:
    """PROBE-09: What is written reads back to the same, and belongs to the document of its run."""
    document = merged_document()
    sidecar = sidecar_of(document)
    path = tmp_path / "m_worker_probe.json"
    write_sidecar(path, sidecar)

    assert msgspec.json.encode(read_sidecar(path)) == msgspec.json.encode(sidecar)
    beside = sidecar_beside(path, document)
    assert isinstance(beside, Sidecar)
    assert beside.merged.resolution == "worker_probe"


def test_a_sidecar_of_another_run_is_reported_and_not_used(tmp_path: Path) -> None:
    """PROBE-09: Ids that differ, no file, and a broken one are three things that are said; none is
    agreement.
    """
    document = merged_document()
    path = tmp_path / "m_worker_probe.json"
    missing = sidecar_beside(path, document)
    write_sidecar(path, sidecar_of({**document, "run_id": "f" * 32}))
    other = sidecar_beside(path, document)
    path.write_text('{"schema": "dynamo.fpm.benchmark_worker_probe", "schema_version": 1}')
    broken = sidecar_beside(path, document)

    assert isinstance(missing, NoSidecar)
    assert not missing.mismatch
    assert isinstance(other, NoSidecar)
    assert other.mismatch
    assert "f" * 32 in other.reason
    assert isinstance(broken, NoSidecar)
    assert "run_id" in broken.reason
    with pytest.raises(MalformedArtifact):
        read_sidecar(path)


def test_a_merged_file_is_no_sidecar(tmp_path: Path) -> None:
    """PROBE-09, ART-01: Another kind of file is refused by what it is."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(merged_document()))

    with pytest.raises(UnknownSchema):
        read_sidecar(path)
    with pytest.raises(ArtifactPathError):
        write_sidecar(tmp_path / "no" / "folder", sidecar_of(merged_document()))


@pytest.mark.parametrize(
    "outcome", [ProbeReplies(ALL), ProbeFailed("TimeoutError"), ProbeSkipped("x"), ProbeReplies([])], ids=str
)
def test_what_is_served_has_the_verdict(outcome: Any) -> None:
    """PROBE-10: The served copy has the merged verdict, a failure too, in its engine block and nothing else
    changed; the document itself stays as it is.
    """
    document = merged_document()
    before = copy.deepcopy(document)
    sidecar = build_sidecar(document, outcome)
    assert sidecar is not None
    served = applied(document, sidecar.merged)
    engine = served["engine"]

    assert document == before
    assert engine["resolution"] == sidecar.merged.resolution
    assert engine["worker_probe"] == json.loads(msgspec.json.encode(sidecar.merged.worker_probe))
    assert engine["attention"]["resolution"] == sidecar.merged.resolution
    for name in ("resolved", "resolved_scope", "resolution", "worker_probe"):
        engine.pop(name), before["engine"].pop(name, None)
    for name in ("backend_resolved", "mla_prefill_backend_resolved", "resolution"):
        engine["attention"].pop(name), before["engine"]["attention"].pop(name)
    assert served == before


def test_without_an_engine_block_it_is_served_as_it_is() -> None:
    """PROBE-10: Nothing is added to a document that has no engine block."""
    document = merged_document(engine=False)

    assert applied(document, sidecar_of(merged_document()).merged) == document


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
        max_leaves=15,
    ),
    st.sampled_from(sorted(reply())),
)
def test_any_reply_can_be_judged_and_written(value: Any, name: str) -> None:
    """PROBE-01, PROBE-02: Whatever comes back, and whatever one field of it is, there is a verdict, in
    JSON.
    """
    document = merged_document(ranks=1, points=1)
    for result in (value, [value], [reply(**{name: value}), reply(0, 1)]):
        sidecar = sidecar_of(document, result)

        assert json.loads(msgspec.json.encode(sidecar))["merged"]["resolution"]


def test_names_of_files() -> None:
    """ART-02, PROBE-09: The names follow from the path that was given and the launcher's lowest rank."""
    base = Path("/tmp/benchmark_results.json")

    assert rank_path(base, 0) == base
    assert rank_path(base, 3) == Path("/tmp/benchmark_results_dp3.json")
    assert merged_path(base) == Path("/tmp/benchmark_results_merged.json")
    assert merged_path(base, 2) == Path("/tmp/benchmark_results_dp2_merged.json")
    assert sidecar_path(merged_path(base)) == Path("/tmp/benchmark_results_merged_worker_probe.json")
    assert rank_path(Path("/tmp/out"), 1) == Path("/tmp/out_dp1")

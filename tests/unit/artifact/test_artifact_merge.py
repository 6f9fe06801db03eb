"""Ranks that merge: the reference's own, and the laws that hold for every run."""

from __future__ import annotations

import copy
import gzip
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_run import OUTPUT, SIDECAR, broken, everywhere, sources

from forwardpass.artifact.check_merged import check_merged
from forwardpass.artifact.merge import Merge, merge_ranks
from forwardpass.artifact.model import MergedArtifact, RankArtifact
from forwardpass.artifact.read import parse_artifact
from forwardpass.artifact.run import BytesSource, PathSource, examine
from forwardpass.artifact.split import rank_evidence
from forwardpass.errors import ArtifactPathError, MergeError, UnknownSchema
from forwardpass.testing.artifacts import GRID, made_run

GOLDEN = Path(__file__).parents[2] / "golden"
RUNS = [
    ("vllm-cpu-moe-dp2-bench-agg", 2),
    ("vllm-cpu-bench-agg", 1),
    ("vllm-cpu-bench-defaultgrid", 1),
    ("vllm-cpu-bench-points", 1),
]


def golden(folder: str, name: str) -> bytes:
    """Return a file of the reference."""
    (path,) = (GOLDEN / folder).glob(f"{name}.json*")
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def golden_sources(folder: str, ranks: int) -> list[BytesSource]:
    """Return the rank files of a run of the reference, under the names that it wrote them to."""
    names = ["benchmark_results", *(f"benchmark_results_dp{rank}" for rank in range(1, ranks))]
    return [BytesSource(f"/bench/{name}.json", golden(folder, name), rank) for rank, name in enumerate(names)]


def merged(documents: list[dict[str, Any]], **options: Any) -> Merge:
    """Merge documents."""
    return merge_ranks(sources(documents), output=OUTPUT, sidecar=SIDECAR, **options)


@pytest.mark.parametrize(("folder", "ranks"), RUNS)
def test_we_merge_as_the_reference_does(folder: str, ranks: int) -> None:
    """MERGE-14, MERGE-18: The rank files of each of the reference's runs merge into its merged file.

    ai-dynamo 1.6.1 differs in two places from what its later versions write: it keeps the first rank's
    ``parallel.data_parallel_rank`` in the merged engine block, and names no ``worker_probe_path``.
    """
    theirs = json.loads(golden(folder, "benchmark_results_merged"))
    output = Path("/bench/benchmark_results_merged.json")
    sidecar = Path("/bench/benchmark_results_merged_worker_probe.json")
    ours = merge_ranks(golden_sources(folder, ranks), output=output, sidecar=sidecar).document()

    assert ours.pop("worker_probe_path") == str(sidecar)
    assert theirs["engine"]["parallel"].pop("data_parallel_rank") == 0
    assert ours["engine"]["parallel"].pop("data_parallel_rank") is None
    assert ours == theirs


@pytest.mark.parametrize(("folder", "ranks"), RUNS)
def test_the_references_files_keep_all_rules(folder: str, ranks: int) -> None:
    """ART-11, MERGE-02, EVID-03: Files without protocol, evidence or probe have no problem of any level,
    neither those of ranks nor the merged one.
    """
    run = examine(golden_sources(folder, ranks), full=True)
    file = parse_artifact(golden(folder, "benchmark_results_merged"), "merged")

    assert [one.text() for one in run.findings.problems] == []
    assert [one.text() for one in check_merged(file).problems] == []


@pytest.mark.parametrize(("folder", "ranks"), RUNS)
def test_the_typed_view_of_the_references_files_says_the_same(folder: str, ranks: int) -> None:
    """ART-09, ART-11: What the structs take from the reference's files is all that is in them, and nothing is
    made up for the evidence that they lack.
    """
    for kind, data in (
        (RankArtifact, golden(folder, "benchmark_results")),
        (MergedArtifact, golden(folder, "benchmark_results_merged")),
    ):
        typed = msgspec.json.decode(data, type=kind)

        assert json.loads(msgspec.json.encode(typed)) == json.loads(data)
        assert typed.measurement_protocol is msgspec.UNSET


@pytest.mark.parametrize(
    ("folder", "rules"),
    [
        ("vllm-cpu-bench-infeasible", ["run", "status", "group-ids"]),
        ("vllm-cpu-bench-timeout", ["outcome", "group-ids"]),
    ],
)
def test_the_references_failures_are_refused(folder: str, rules: list[str]) -> None:
    """ART-04, ART-07: A run that failed, and one stopped before its first point, are read and not merged."""
    with pytest.raises(MergeError) as caught:
        merge_ranks(golden_sources(folder, 1), output=OUTPUT, sidecar=SIDECAR)

    assert [text.split("[")[-1].split(",")[0] for text in caught.value.problems] == rules


def test_what_a_merged_file_holds() -> None:
    """MERGE-14: Two of three ranks, merged: all global ranks' results by id and rank, counts times three,
    the slowest rank's timing, and a ledger of each rank, unavailable for the one whose file was not read.
    """
    documents = made_run(ranks=3, points=2)
    document = merged(documents[1:]).document()

    assert document["artifact_type"] == "merged"
    assert document["dp"] == {"ranks": [0, 1, 2], "source_ranks": [1, 2], "managed_size": 2, "global_size": 3}
    assert [(row["point"]["benchmark_id"], row["point"]["dp_rank"]) for row in document["results"]] == [
        (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)
    ]  # fmt: skip
    assert ["kv_seed_regime" in row for row in document["results"][:3]] == [False, True, True]
    assert document["coverage"] == {"expected_points": 6, "completed_points": 6, "skipped_points": 0}
    assert document["timing"] == {
        **documents[2]["timing"],
        "rank_benchmark_elapsed_seconds": {"1": 63.0, "2": 64.0},
    }
    assert document["rank_files"] == ["rank0.json", "rank1.json"]
    assert document["merged_output_path"] == str(OUTPUT)
    assert document["worker_probe_path"] == str(SIDECAR)
    assert document["rank_warmup_evidence"]["0"] == {
        "status": "unavailable",
        "records": [],
        "reason": "rank_artifact_not_loaded",
    }
    assert document["rank_warmup_evidence"]["2"] == documents[2]["warmup_evidence"]
    assert "warmup_evidence" not in document
    assert document["iteration_groups"] == documents[1]["iteration_groups"]
    assert document["limits"] == documents[1]["limits"]


def test_the_typed_view_says_the_same() -> None:
    """ART-09, ART-11: What the structs take from our merged file is all that is in it."""
    merge = merged(made_run())
    typed = msgspec.convert(merge.document(), MergedArtifact)

    assert json.loads(msgspec.json.encode(typed)) == merge.document()
    assert check_merged(parse_artifact(b"".join(merge.chunks()), "merged")).problems == []


def test_unknown_fields_and_numbers_survive() -> None:
    """ART-11, MERGE-15: What is not known here arrives unchanged, and numbers keep their text."""
    text = json.dumps(everywhere(made_run(ranks=1), lambda document: document.update(new={"a": [1]}))[0])
    text = text.replace('"worker_id": "4192"', '"worker_id": "4192", "new_in_pass": 1.50e+0')
    source = BytesSource("rank0.json", text.encode())
    merge = merge_ranks([source], output=OUTPUT, sidecar=SIDECAR)

    assert merge.document()["new"] == {"a": [1]}
    assert b"1.50e+0" in b"".join(merge.chunks())


def test_a_regime_comes_from_the_file_alone() -> None:
    """MERGE-14: A row without a KV regime gets none."""
    documents = made_run()
    for group in documents[1]["results"]:
        del group["kv_seed_regime"]
    rows = merged(documents).document()["results"]

    assert ["kv_seed_regime" in row for row in rows[:4]] == [True, False, True, False]


def test_what_a_merge_takes_for_granted() -> None:
    """MERGE-09, MERGE-14: Without status, stop_reason, error or the lists of what is amiss a rank's file
    means what the others say in words, and the merged file lists no skipped points.
    """
    documents = made_run()
    for name in ("status", "stop_reason", "error", "missing_phases", "skipped_points"):
        del documents[0][name]
    document = merged(documents).document()

    assert document["skipped_points"] == []
    assert "status" not in document


# --- engines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engines", "errors", "model"),
    [
        (["same", "same"], None, "m"),
        (["none", "none"], "absent", None),
        (["failed", "same"], {"0": "ValueError: no"}, "m"),
        (["same", "none"], {"1": "missing engine block"}, "m"),
        (["failed", "none"], {"0": "ValueError: no", "1": "missing engine block"}, "partial"),
        (["none", "failed"], {"0": "missing engine block", "1": "ValueError: no"}, None),
    ],
)
def test_engines_that_could_not_be_looked_at(engines: list[str], errors: Any, model: str | None) -> None:
    """MERGE-10, MERGE-18: Ranks without a good block are named and not compared; the block is that of the
    first rank, or of the first good one, or what the first rank has.
    """
    documents = made_run()
    for document, kind in zip(documents, engines, strict=True):
        if kind == "none":
            del document["engine"]
        elif kind == "failed":
            document["engine"] = {"model": {"model": "partial"}, "capture_error": "ValueError: no"}
    merge = merged(documents)
    engine = merge.document().get("engine")

    if errors == "absent":
        assert engine is None
        assert not merge.has_engine
        assert "worker_probe_path" not in merge.document()
        return
    assert engine is not None
    assert engine.get("capture_errors") == errors
    assert engine.get("model", {}).get("model") == model
    assert merge.capture_errors == (errors or {})
    assert "parallel" not in engine or engine["parallel"]["data_parallel_rank"] is None


def test_what_workers_resolve_is_not_compared() -> None:
    """MERGE-10: Resolved backends, probes and the rank itself may differ."""
    documents = made_run()
    engine = documents[1]["engine"]
    engine.update(resolved={"a": 1}, resolved_scope="x", resolution="worker_probe", worker_probe={})
    engine["attention"].update(
        backend_resolved="X", mla_prefill_backend_resolved="Y", resolution="worker_probe"
    )
    engine["parallel"]["data_parallel_rank"] = 7

    assert merged(documents).document()["engine"]["model"] == {**documents[0]["engine"]["model"]}


def test_all_divergences_of_engines_are_named() -> None:
    """MERGE-10, MERGE-17: Each part that differs is named with both values; the reference names the first."""
    documents = made_run(ranks=3)
    documents[1]["engine"]["model"]["dtype"] = "float16"
    documents[2]["engine"]["attention"]["backend_requested"] = "X"
    del documents[2]["engine"]["model"]
    with pytest.raises(MergeError) as caught:
        merged(documents)
    with pytest.raises(MergeError) as first:
        merged(documents, first_only=True)

    assert len(caught.value.problems) == 2
    assert (first.value.field, first.value.ranks) == ("engine.model.dtype", (0, 1))
    assert first.value.values == ('"bfloat16"', '"float16"')
    assert len(first.value.problems) == 1


def test_a_missing_part_of_an_engine_is_a_key_set() -> None:
    """MERGE-10: Where only keys differ, that is said, with the keys that one side alone has."""
    documents = made_run()
    del documents[1]["engine"]["resolution"], documents[1]["engine"]["model"]
    with pytest.raises(MergeError) as caught:
        merged(documents)

    assert (caught.value.field, caught.value.values) == ("engine", ('["model"]', "[]"))


# --- refusals ---------------------------------------------------------------------------------------


def test_the_error_carries_the_facts() -> None:
    """MERGE-09, ART-12: The error has field, ranks and both values of the first problem, and all problems."""
    documents = made_run(ranks=3)
    documents[2]["run_id"] = "f" * 32
    documents[1]["grid_digest"] = "0" * 64
    with pytest.raises(MergeError) as caught:
        merged(documents)
    error = caught.value

    assert (error.field, error.ranks) == ("grid_digest", (0, 1))
    assert error.values == (f'"{GRID}"', f'"{"0" * 64}"')
    assert any("$.run_id (rank 0, 2)" in text for text in error.problems)
    assert str(error).endswith(f"(and {len(error.problems) - 1} more)")


def test_the_reference_stops_where_it_does() -> None:
    """MERGE-17: With faults of every step the reference names that of its earliest step, and within the
    groups the first group's.
    """
    documents = made_run()
    faults: list[tuple[str, Any]] = [
        ("timing.started_at", lambda: documents[0]["timing"].update(started_at=None)),
        ("iteration_groups", lambda: documents[0]["iteration_groups"][2].update(benchmark_id=9)),
        ("iteration_groups[1].wall_time", lambda: documents[0]["iteration_groups"][1].update(wall_time=9.0)),
        ("iteration_groups[0].complete", lambda: documents[0]["iteration_groups"][0].update(complete=False)),
        ("valid", lambda: documents[0].update(valid=False)),
        ("warmup_evidence", lambda: documents[1].pop("warmup_evidence")),
        (
            "measurement_protocol.content_seed",
            lambda: documents[1]["measurement_protocol"].update(content_seed="1"),
        ),
        ("run_id", lambda: documents[0].update(run_id=None)),
    ]
    for number, (field, break_it) in enumerate(faults):
        break_it()
        if number == 1:
            continue  # an id that does not follow is also another group's fault
        with pytest.raises(MergeError) as caught:
            merged(documents, first_only=True)

        assert caught.value.field == field


def test_nothing_is_not_merged() -> None:
    """MERGE-01: No files are no run."""
    with pytest.raises(MergeError, match="no rank's file"):
        merge_ranks([], output=OUTPUT, sidecar=SIDECAR)


def test_a_merged_file_is_no_rank() -> None:
    """ART-01: A merged file among the ranks is refused by what it is."""
    data = b"".join(merged(made_run()).chunks())

    with pytest.raises(UnknownSchema) as caught:
        merge_ranks([BytesSource("m.json", data)], output=OUTPUT, sidecar=SIDECAR)
    assert caught.value.schema == "merged"


def test_files_of_the_wrong_ranks_are_refused() -> None:
    """MERGE-04: A launcher that knows its ranks gets files of others named."""
    documents = made_run(ranks=3)
    with pytest.raises(MergeError) as caught:
        merged(documents[:2], expected=[1, 2])

    assert (caught.value.field, caught.value.values) == ("dp.rank", ("0", "1, its rank"))


# --- files ------------------------------------------------------------------------------------------


def written(folder: Path, documents: list[dict[str, Any]]) -> list[Path]:
    paths = [folder / f"r{number}.json" for number in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document))
    return paths


def test_a_merge_writes_one_file_and_removes_a_stale_sidecar(tmp_path: Path) -> None:
    """MERGE-16, ART-03: The merged file is written, an old sidecar goes before, inputs stay as they are."""
    paths = written(tmp_path, made_run())
    before = [path.read_bytes() for path in paths]
    output, sidecar = tmp_path / "m.json", tmp_path / "m_worker_probe.json"
    sidecar.write_text("{}")
    merge = merge_ranks([PathSource(path) for path in paths], output=output, sidecar=sidecar)
    size = merge.write()

    assert output.stat().st_size == size
    assert json.loads(output.read_bytes()) == merge.document()
    assert not sidecar.exists()
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "r0.json", "r1.json"]


def test_a_merge_that_fails_writes_nothing(tmp_path: Path) -> None:
    """MERGE-16: Neither the old merged file nor a sidecar nor an input is touched."""
    documents = made_run()
    documents[1]["run_id"] = "x"
    paths = written(tmp_path, documents)
    output, sidecar = tmp_path / "m.json", tmp_path / "m_worker_probe.json"
    output.write_text("old")
    sidecar.write_text("old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(MergeError):
        merge_ranks([PathSource(path) for path in paths], output=output, sidecar=sidecar)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_input_is_not_written_over(tmp_path: Path) -> None:
    """MERGE-16: An output that is one of the inputs, by whatever name, is refused."""
    paths = written(tmp_path, made_run())
    (tmp_path / "link").symlink_to(paths[1])
    for output, sidecar in ((paths[0], tmp_path / "s"), (tmp_path / "m", tmp_path / "link")):
        merge = merge_ranks([PathSource(path) for path in paths], output=output, sidecar=sidecar)
        with pytest.raises(ArtifactPathError, match="one of the files"):
            merge.write()
    assert all(json.loads(path.read_text())["artifact_type"] == "rank" for path in paths)


def test_the_merged_file_has_its_name_of_the_lowest_rank(tmp_path: Path) -> None:
    """ART-02: Without a path the merged file and the sidecar are named as a launcher would name them."""
    documents = made_run(ranks=3)
    names = ["res.json", "res_dp1.json", "res_dp2.json"]
    for name, document in zip(names, documents, strict=True):
        (tmp_path / name).write_text(json.dumps(document))
    every = merge_ranks([PathSource(tmp_path / name) for name in names])
    some = merge_ranks([PathSource(tmp_path / name) for name in names[1:]])

    assert (every.output.name, every.sidecar.name) == ("res_merged.json", "res_merged_worker_probe.json")
    assert some.output == tmp_path / "res_dp1_merged.json"


# --- laws -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(1, 5), points=st.integers(1, 4), seed=st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_matter(ranks: int, points: int, seed: random.Random) -> None:
    """MERGE-16: The text of the merged file is the same for every order of the files, also where what is
    guessed of a file's rank before reading is wrong, and where files are written in another style.
    """
    documents = made_run(ranks=ranks, points=points)
    files = [(f"rank{rank}.json", json.dumps(document).encode()) for rank, document in enumerate(documents)]
    wanted = b"".join(
        merge_ranks(
            [BytesSource(name, data, rank) for rank, (name, data) in enumerate(files)],
            output=OUTPUT,
            sidecar=SIDECAR,
        ).chunks()
    )
    shuffled = []
    for name, data in seed.sample(files, len(files)):
        indent = seed.choice([None, 1, 4])
        text = json.dumps(json.loads(data), indent=indent).encode()
        shuffled.append(BytesSource(name, text, seed.randrange(10)))

    assert b"".join(merge_ranks(shuffled, output=OUTPUT, sidecar=SIDECAR).chunks()) == wanted


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 4),
    points=st.integers(1, 4),
    contract=st.booleans(),
    data=st.data(),
)
def test_merged_and_split_again_evidence_is_unchanged(
    ranks: int, points: int, contract: bool, data: st.DataObject
) -> None:
    """MERGE-15: Whatever ranks were read, each one's results and ledger come out as they went in; hashes that
    differ between ranks are no finding.
    """
    documents = made_run(ranks=ranks, points=points, contract=contract)
    read = data.draw(st.lists(st.sampled_from(range(ranks)), min_size=1, unique=True))
    document = merged([documents[rank] for rank in read]).document()
    for rank in read:
        evidence = rank_evidence(document, rank)

        assert evidence.results == documents[rank]["results"]
        if contract:
            assert evidence.warmup_evidence == documents[rank]["warmup_evidence"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all leaves."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in places(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for at, inner in enumerate(value) for leaf in places(inner, (*path, at))]
    return [path]


def mutated(value: Any, kind: str) -> Any:
    """Return another value: of another type, or of the same."""
    if kind == "type":
        return [] if isinstance(value, str) else "x"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "x" if value is None else f"{value}x"


ROWS = ("results", "iteration_groups")
WHOLE = made_run(ranks=2)
LEAVES = [path for path in places(WHOLE[0]) if path[0] in ROWS]
JUDGED = (
    "status",
    "coverage",
    "run_id",
    "grid_digest",
    "dp",
    "measurement_protocol",
    "timing",
    "stop_reason",
)
HEAD_LEAVES = [
    path for path in places(WHOLE[0]) if path[0] in JUDGED and path[-1] != "benchmark_elapsed_seconds"
]


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from(LEAVES), kind=st.sampled_from(["type", "value"]), rank=st.sampled_from([0, 1]))
def test_a_mutated_row_is_found_where_it_is(path: tuple[Any, ...], kind: str, rank: int) -> None:
    """ART-12, MERGE-11, MERGE-13: Whatever value of a rank's rows changes, a merge refuses the run, and a
    problem names that row of that rank's file or of the group that it no longer equals.
    """
    documents = copy.deepcopy(WHOLE)
    here: Any = documents[rank]
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = mutated(here[path[-1]], kind)
    if len(path) == 3 and path[-1] == "kv_seed_regime":
        texts = [one.text() for one in broken(documents)]  # a merge carries it
        merged(documents)
    else:
        with pytest.raises(MergeError) as caught:
            merged(documents)
        texts = list(caught.value.problems)

    names = (f"$.{path[0]}[{path[1]}]", f"$.results[{path[1]}]", f"$.iteration_groups[{path[1]}]")
    assert any(name in text for text in texts for name in names)


@settings(max_examples=80, deadline=None)
@given(
    path=st.sampled_from(HEAD_LEAVES), kind=st.sampled_from(["type", "value"]), rank=st.sampled_from([0, 1])
)
def test_a_mutated_head_is_found_where_it_is(path: tuple[Any, ...], kind: str, rank: int) -> None:
    """ART-12, MERGE-02, MERGE-09, MERGE-12: Whatever value that ranks must agree on, or that must fit the
    rows, changes in one rank's file, it is found, and a problem names the field.
    """
    if path[0] == "timing" and kind == "value" and path[1] != "measured_iteration_seconds":
        return  # another time is a time
    documents = copy.deepcopy(WHOLE)
    here: Any = documents[rank]
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = mutated(here[path[-1]], kind)
    with pytest.raises(MergeError) as caught:
        merged(documents)

    assert any(f"$.{path[0]}" in text for text in caught.value.problems)

"""Knows what is said in words beside a benchmark's numbers: lines with a label, for a terminal and a page.

Texts of the file stand in them as they are; whoever shows them makes them harmless.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forwardpass.analyze.benchmark.overview import Noise, Overview, Warmups
from forwardpass.analyze.benchmark.run import BenchRun
from forwardpass.artifact.blocks import PointRecord
from forwardpass.artifact.shape import found
from forwardpass.bench.points import Phase
from forwardpass.cli.summary_view import counted, format_seconds

__all__ = ["facts", "percent", "point_words"]

Fact = tuple[str, str]
_MOST_RANKS = 8


def facts(run: BenchRun, view: Overview) -> list[Fact]:
    """Return label and text of everything that stands beside the numbers, most important first."""
    return [*_outcome(run, view), *_certainty(view), *_provenance(run), *_method(run, view)]


def point_words(point: PointRecord) -> str:
    """Return a point as one says it."""
    what = "prefill" if point.point_type is Phase.PREFILL else "decode"
    tokens = f" {point.total_prefill_tokens:,} tokens," if point.point_type is Phase.PREFILL else ""
    unequal = ", unequal" if point.partition is not None or len(set(point.rows or ())) > 1 else ""
    reads = f"reads {point.total_kv_read_tokens:,}"
    return f"{what}{tokens} {counted(point.batch_size, 'request')}, {reads}{unequal}"


def percent(share: float) -> str:
    """Return a share as a percentage with one digit."""
    return f"{100 * share:.1f} %"


def _outcome(run: BenchRun, view: Overview) -> Iterator[Fact]:
    words = [_words(view.status), "valid" if view.valid is True else "not valid"]
    if view.valid is not True:
        words.append("usable" if view.usable is True else "not usable")
    if view.stop_reason is not None:
        words.append(f"stopped by {_words(view.stop_reason)}")
    if view.timing_valid is False:
        words.append("its times do not add up")
    yield "status", ", ".join(words)
    if view.error is not None:
        yield "error", _words(view.error)
    points = view.points
    expected = "" if points.expected is None else f" of {points.expected:,}"
    yield "points", f"{points.measured:,}{expected} measured, {points.skipped:,} skipped"
    if view.missing_phases:
        yield "not measured", f"{_words(view.missing_phases)}: no point of it fits the engine"
    timing = run.block("timing")
    spans = [
        f"{text} {format_seconds(timing[name])}"
        for name, text in (
            ("benchmark_elapsed_seconds", "took"),
            ("measured_iteration_seconds", "measured passes"),
        )
        if type(timing.get(name)) in (int, float) and 0 <= timing[name] < 1e12
    ]
    yield "run", ", ".join([_words(view.run_id), f"from {_words(timing.get('started_at'))}", *spans])
    for one in view.unread:
        yield "not read", f"{one.where}: found {one.found}, expected {one.accepted}"


def _certainty(view: Overview) -> Iterator[Fact]:
    yield "noise", _noise(view.noise)
    apart = view.ranks_apart
    if apart is not None:
        yield (
            "between ranks",
            (
                f"the slowest takes {apart.median_ratio:.3f} times as long as the fastest (median), "
                f"at most {apart.most_ratio:.3f} times (point {apart.most_at})"
            ),
        )
    if view.warmups:
        for one in view.warmups[:_MOST_RANKS]:
            yield "warm-ups", _warmups(one)
        if len(view.warmups) > _MOST_RANKS:
            yield "warm-ups", f"and those of {len(view.warmups) - _MOST_RANKS} more ranks"
    else:
        yield "warm-ups", "not recorded"
    for reason, count in view.points.skip_reasons.items():
        yield "skipped", f"{counted(count, 'point')}: {reason}"


def _noise(noise: Noise) -> str:
    parts = []
    if noise.several_samples:
        widest = noise.widest[0]
        parts.append(
            f"{counted(noise.several_samples, 'point')} with several samples of one launch, cv "
            f"{percent(noise.median_cv or 0)} (median), at most {percent(widest.spread.cv or 0)} "
            f"(point {widest.benchmark_id}, rank {widest.rank})"
        )
    if noise.one_sample:
        parts.append(f"{counted(noise.one_sample, 'point')} with one sample, whose spread is not known")
    if noise.not_recorded:
        parts.append(f"{counted(noise.not_recorded, 'point')} without a record of samples")
    return "; ".join(parts) or "nothing was measured"


def _warmups(one: Warmups) -> str:
    if not one.recorded:
        return f"rank {one.rank}: not known{f', {one.reason}' if one.reason else ''}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in one.by_kind.items())
    words = f"rank {one.rank}: {counted(one.attempts, 'attempt')}{f' ({kinds})' if kinds else ''}"
    if one.unfinished:
        words += f", {one.unfinished} not finished"
    return words + "".join(f"; failed: {reason}" for reason in one.failed[:5])


def _provenance(run: BenchRun) -> Iterator[Fact]:
    engine = run.block("engine")
    if not engine:
        yield "engine", "not recorded"
        return
    if engine.get("capture_error") is not None:
        yield "engine", f"its capture failed: {_words(engine['capture_error'])}"
    versions = _part(engine, "versions")
    yield (
        "engine",
        ", ".join(f"{name} {_words(value)}" for name, value in versions.items() if value is not None),
    )
    model = _part(engine, "model")
    named = [_words(model.get("model")), _words(model.get("model_type")), _words(model.get("dtype"))]
    yield "model", ", ".join([*named, _quantization(engine)])
    yield "device", _words(engine["device"]) if "device" in engine else "not recorded"
    parallel = _part(engine, "parallel")
    sizes = [
        (name.removesuffix("_size"), value) for name, value in parallel.items() if name.endswith("_size")
    ]
    yield "parallel", ", ".join(f"{name} {_words(value)}" for name, value in sizes)
    cache = _part(engine, "kv_cache")
    yield (
        "KV cache",
        f"{_words(cache.get('cache_dtype'))}, blocks of {_words(cache.get('block_size'))} tokens",
    )
    if engine.get("speculative") is not None:
        yield "speculative", found(engine["speculative"], 300)
    backend = _part(engine, "attention").get("backend_requested")
    asked = "chosen by the engine" if backend is None else f"asked for {_words(backend)}"
    resolved = (run.workers or {}).get("attention")
    said = resolved.get("backend_resolved") if isinstance(resolved, dict) else None
    workers = (
        f"workers say {_words(said)}" if said else f"workers not known: {run.workers_missing or 'mixed'}"
    )
    yield "attention", f"{asked}; {workers}"


def _quantization(engine: dict[str, Any]) -> str:
    block = _part(engine, "quantization")
    if "method" not in block:
        return "quantization not said"
    return "not quantized" if block["method"] is None else f"quantization {_words(block['method'])}"


def _method(run: BenchRun, view: Overview) -> Iterator[Fact]:
    graphs = run.graphs
    if graphs is not None:
        sizes = ", ".join(map(str, graphs.capture_sizes[:40])) or "none"
        more = f" and {len(graphs.capture_sizes) - 40} more" if len(graphs.capture_sizes) > 40 else ""
        yield "graphs", f"{graphs.mode}; captured sizes: {sizes}{more}"
    if view.dispatch:
        seen = ", ".join(f"{mode} {count:,}" for mode, count in view.dispatch.items())
        yield "dispatch", f"what the engine said of samples: {seen}"
    protocol = run.block("measurement_protocol")
    if protocol:
        names = ("synthetic_content", "content_seed", "synthetic_pool_tag")
        said = ", ".join(f"{name} {found(protocol[name])}" for name in names if name in protocol)
        yield "prompts", said
        preparation = protocol.get("preparation")
        if isinstance(preparation, dict):
            yield "preparation", ", ".join(f"{name} {found(value)}" for name, value in preparation.items())
    else:
        yield "protocol", "not recorded (a writer of before there was one): samples and prompts are not known"
    yield "mode", _words(run.block("config").get("mode"))
    yield "grid", _words(view.grid_digest)


def _part(block: dict[str, Any], name: str) -> dict[str, Any]:
    value = block.get(name)
    return value if isinstance(value, dict) else {}


def _words(value: Any) -> str:
    """Return text as it is, other values as JSON, null as what it says: nothing."""
    if value is None:
        return "not said"
    return value if isinstance(value, str) else found(value, 300)

"""Knows which recorded facts of two runs differ, and which of them forbid to compare their times.

The table of effects is data; docs/spec/benchmark-reading-v1.md says why each stands where it stands.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct

from forwardpass.analyze.benchmark.run import BenchRun
from forwardpass.artifact.differences import differences
from forwardpass.artifact.shape import Path, found, path_text
from forwardpass.bench.evidence import RecordedWarmups

__all__ = ["MISSING", "Area", "Effect", "FieldDifference", "field_differences", "unrecorded"]

MISSING = "not recorded"
_SHOWN = 300


class Area(StrEnum):
    """What a field is about."""

    PROTOCOL = "protocol"
    """How it was measured."""
    PROVENANCE = "provenance"
    """What was measured."""


class Effect(StrEnum):
    """What a difference means for the times."""

    REFUSED = "refused"
    """They are not the same quantity: the times are compared on demand only."""
    CAVEAT = "caveat"
    """They may be compared, and this may be why they differ."""
    NOTE = "note"
    """Launches of the same engine differ in it as well: no finding, and no bar for a repetition."""


class FieldDifference(Struct, frozen=True, kw_only=True):
    """One field in which two runs differ."""

    area: Area
    path: str
    a: str
    """JSON text, cut; or ``not recorded``."""
    b: str
    effect: Effect
    known: bool
    """Whether both files say it; what one of them does not say is a caveat at most."""

    @property
    def is_finding(self) -> bool:
        """Whether the runs were not of the same, as far as the files tell."""
        return self.known and self.effect is not Effect.NOTE


_REFUSED: tuple[Path, ...] = (
    ("engine", "model"),
    ("engine", "quantization"),
    ("engine", "speculative"),
    ("engine", "device"),
    ("engine", "parallel", "data_parallel_size"),
    ("engine", "parallel", "tensor_parallel_size"),
    ("engine", "parallel", "pipeline_parallel_size"),
    ("engine", "parallel", "prefill_context_parallel_size"),
    ("engine", "parallel", "decode_context_parallel_size"),
    ("engine", "parallel", "enable_expert_parallel"),
    ("dp", "size"),
    ("measurement_policy",),
    ("synthetic_prompts",),
    ("kvwarm", "dataset", "sha256"),
    ("measurement_protocol", "timing_metric"),
    ("measurement_protocol", "content_identity"),
    ("measurement_protocol", "content_seed"),
    ("measurement_protocol", "synthetic_content"),
    ("measurement_protocol", "synthetic_pool_tag"),
    ("measurement_protocol", "prompt_hash_encoding"),
)
_NOTES: tuple[Path, ...] = (
    ("config", "timeout"),
    ("limits", "num_gpu_blocks"),
    ("capacity", "common", "usable_blocks_without_watermark"),
    ("capacity", "common", "usable_blocks_with_watermark"),
)
"""An engine measures its free memory at each start, and finds some blocks more or less."""
_NULL_SAYS_NONE: tuple[Path, ...] = (("engine", "quantization"), ("engine", "speculative"))
"""Where null is a fact (there is none); elsewhere in the engine block it says that it was not to be had."""

_BLOCKS: dict[str, Area] = {
    "config": Area.PROTOCOL,
    "measurement_protocol": Area.PROTOCOL,
    "measurement_policy": Area.PROTOCOL,
    "synthetic_prompts": Area.PROTOCOL,
    "recurrent_state": Area.PROTOCOL,
    "kvwarm": Area.PROTOCOL,
    "synchronization": Area.PROTOCOL,
    "engine": Area.PROVENANCE,
    "cudagraph": Area.PROVENANCE,
    "limits": Area.PROVENANCE,
    "capacity": Area.PROVENANCE,
}
_OF_A_RUN: tuple[Path, ...] = (
    ("config", "output_path"),
    ("synchronization", "port"),
    ("kvwarm", "stages"),
    ("kvwarm", "capacity_fallbacks"),
    ("kvwarm", "points_real_kv"),
    ("kvwarm", "points_fake_fallback"),
    ("kvwarm", "dataset", "path"),
    ("engine", "resolved"),
    ("engine", "resolved_scope"),
    ("engine", "resolution"),
    ("engine", "worker_probe"),
    ("engine", "capture_error"),
    ("engine", "capture_errors"),
    ("engine", "attention", "backend_resolved"),
    ("engine", "attention", "mla_prefill_backend_resolved"),
    ("engine", "attention", "resolution"),
    ("engine", "parallel", "data_parallel_rank"),
)
"""What differs from run to run or from rank to rank, and says nothing of what was measured or how."""
_WORKERS = ("attention_backends", "mla_prefill_backend", "cudagraph_mode_resolved")
"""Of what workers replied."""


def field_differences(a: BenchRun, b: BenchRun) -> list[FieldDifference]:
    """Return every field of protocol and provenance in which two runs differ, the weightiest first."""
    found_ones: dict[str, FieldDifference] = {}
    for name, area in _BLOCKS.items():
        one, other = (run.head.get(name, UNSET) for run in (a, b))
        for path, _, _ in differences(one, other, (name,)):
            _add(found_ones, area, path, a.head, b.head)
    sizes = ({"dp": {"size": run.size}} for run in (a, b))
    _add(found_ones, Area.PROVENANCE, ("dp", "size"), *sizes)
    for name in _WORKERS:
        replies = [{"workers": {name: _reply(run, name)}} for run in (a, b)]
        _add(found_ones, Area.PROVENANCE, ("workers", name), *replies)
    for rank in sorted({*a.ledgers, *b.ledgers}):
        warmups = [{"warmups": {f"rank {rank}": _warmups(run, rank)}} for run in (a, b)]
        _add(found_ones, Area.PROTOCOL, ("warmups", f"rank {rank}"), *warmups)
    return sorted(found_ones.values(), key=lambda one: list(Effect).index(one.effect))


def unrecorded(a: BenchRun, b: BenchRun) -> list[str]:
    """Return what neither file can show to be the same, in words; the tokenizer always."""
    words = ["the tokenizer: no file records it"]
    if not any("device" in run.block("engine") for run in (a, b)):
        words.append("the device: neither file records it")
    for name, what in (
        ("measurement_protocol", "how it was measured, and what its prompts were"),
        ("engine", "model, versions and settings of the engine"),
    ):
        silent = [label for label, run in (("A", a), ("B", b)) if not run.block(name)]
        if silent:
            who = "neither file says" if len(silent) == 2 else f"{silent[0]} does not say"
            words.append(f"{who} {what} (no {name})")
    for label, run in (("A", a), ("B", b)):
        error = run.block("engine").get("capture_error")
        if error:
            words.append(f"parts of {label}'s engine: its capture failed, {found(error, _SHOWN)}")
    return words


def _add(
    kept: dict[str, FieldDifference], area: Area, path: Path, a: dict[str, Any], b: dict[str, Any]
) -> None:
    """Keep a difference, if it is one; lists differ as a whole, since a place in them means nothing."""
    path = path[: next((at for at, step in enumerate(path) if isinstance(step, int)), len(path))]
    if _is_under(path, _OF_A_RUN):
        return
    values = (_value(a, path), _value(b, path))
    texts = tuple(MISSING if value is UNSET else found(value, _SHOWN) for value in values)
    if values[0] == values[1] and texts[0] == texts[1]:
        return
    null_says_none = _is_under(path, _NULL_SAYS_NONE)
    known = all(value is not UNSET and (value is not None or null_says_none) for value in values)
    where = path_text(path).removeprefix("$.")
    kept[where] = FieldDifference(
        area=area,
        path=where,
        a=texts[0],
        b=texts[1],
        effect=_effect(path, known),
        known=known,
    )


def _effect(path: Path, known: bool) -> Effect:
    if _is_under(path, _NOTES):
        return Effect.NOTE
    return Effect.REFUSED if known and _is_under(path, _REFUSED) else Effect.CAVEAT


def _is_under(path: Path, places: tuple[Path, ...]) -> bool:
    return any(path[: len(place)] == place for place in places)


def _value(document: dict[str, Any], path: Path) -> Any:
    value: Any = document
    for step in path:
        if not isinstance(value, dict) or step not in value:
            return UNSET
        value = value[step]
    return value


def _reply(run: BenchRun, name: str) -> Any:
    """Return what the representative worker replied; ``UNSET`` without a reply."""
    resolved = (run.workers or {}).get("resolved")
    return resolved.get(name, UNSET) if isinstance(resolved, dict) else UNSET


def _warmups(run: BenchRun, rank: int) -> Any:
    """Return kind and end of each attempt, in order; ``UNSET`` where it is not known what was run."""
    ledger = run.ledgers.get(rank)
    if not isinstance(ledger, RecordedWarmups):
        return UNSET
    return [f"{one.kind.value} {one.status.value}" for one in ledger.records]

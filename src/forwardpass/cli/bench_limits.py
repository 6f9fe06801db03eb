"""Knows for which engine a benchmark is planned: limits of a file, those of an artifact, or the mock's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from forwardpass.bench.config import BenchConfig, load_bench_config
from forwardpass.bench.cost import PassLoad
from forwardpass.bench.engine_config import SAMPLE_KEYS, effective_config
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.like_artifact import likeness
from forwardpass.bench.limits_file import EngineLimits, limits_from, read_document
from forwardpass.bench.points import Point
from forwardpass.cli.bench_mock import GRAPHS, mock_limits, mock_seconds
from forwardpass.config import bench_variables as v
from forwardpass.config.settings import Sources, process_environment
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.errors import ConfigError

__all__ = ["ENGINES", "Subject", "choose_subject"]

ENGINES = ("mock",)


class Subject(Struct, frozen=True):
    """What a benchmark is planned for."""

    config: BenchConfig
    limits: EngineLimits
    name: str
    seconds: Callable[[Point, PassLoad], float] | None = None
    """How long one pass lasts, where that is known."""
    digest: str | None = None
    """That of the artifact's grid."""


def choose_subject(
    limits: str | None, like: str | None, engine: str | None, flags: Mapping[str, str]
) -> Subject:
    """Return what was chosen; the mock if nothing was. Raises for two choices, and for files and settings."""
    chosen = {"--limits": limits, "--like": like, "--engine": engine}
    given = [option for option, text in chosen.items() if text is not None]
    if len(given) > 1:
        raise ConfigError(given[1], chosen[given[1]], f"no {given[0]} beside it")
    if like is not None:
        return _like(like, flags)
    config = _config(flags)
    if limits is not None:
        found = limits_from(read_document(Path(limits), "--limits"), "--limits", limits)
        return Subject(config, found, limits)
    mock = MockBenchConfig(graph=GRAPHS)
    return Subject(config, mock_limits(mock), "mock", mock_seconds(mock))


def _config(flags: Mapping[str, str]) -> BenchConfig:
    """Return the settings of options and variables; without a mode both phases are planned."""
    environment = process_environment()
    mode = environment.get(v.MODE.name) or "agg"
    sources = Sources({**environment, v.MODE.name: mode}, _moded(flags))
    config = load_bench_config(sources)
    assert config is not None
    return BenchEnvironment.load(sources).applied_to(config)


def _like(path: str, flags: Mapping[str, str]) -> Subject:
    """Return what an artifact measured, but for the options that are given."""
    found = likeness(read_document(Path(path), "--like"), "--like", path)
    said = effective_config(found.config, found.config.output_path)
    texts = {_variable(key): str(said[key]) for key in SAMPLE_KEYS}
    texts[v.MODE.name] = said["mode"]
    texts[v.COLLECT_IMBALANCED.name] = str(said["collect_imbalanced"])
    if said["max_batch_size"] is not None:
        texts[v.MAX_BATCH_SIZE.name] = str(said["max_batch_size"])
    config = load_bench_config(Sources(texts, _moded(flags)))
    assert config is not None
    if found.config.points is not None and config.points is None:
        config = msgspec.structs.replace(config, points=found.config.points)
    return Subject(config, found.limits, path, digest=found.grid_digest)


def _moded(flags: Mapping[str, str]) -> dict[str, str]:
    """Return ``flags``, a blank mode refused: here it would mean nothing at all."""
    if flags.get(v.MODE.name) == "":
        raise ConfigError(v.OPTIONS[v.MODE.name], "", v.MODE.accepted)
    return dict(flags)


def _variable(key: str) -> str:
    return f"DYN_{key.upper()}"

"""Knows what can be read before an engine starts: its ``--config`` file and a local model's description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from forwardpass.errors import ConfigError

__all__ = ["ModelFacts", "describe_model", "load_config"]


class ModelFacts(Struct, frozen=True):
    """What a model directory says; the defaults mean that nothing is known."""

    architectures: tuple[str, ...] = ()
    sentence_transformer: bool = False


class _ModelConfig(Struct):
    architectures: list[str] = []


def load_config(path: str) -> Mapping[str, object]:
    """Return the mapping in an engine's ``--config`` file. Raises ``OSError`` and :class:`ConfigError`."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        document = msgspec.yaml.decode(text)
    except (msgspec.DecodeError, ImportError) as error:
        raise ConfigError("--config", path, "a readable YAML file") from error
    if not isinstance(document, dict):
        raise ConfigError("--config", path, "a YAML mapping of option names")
    return {str(key): value for key, value in document.items()}


def describe_model(model: str | None) -> ModelFacts:
    """Return what a local model directory says about itself; nothing for any other model."""
    folder = Path(model or "")
    if not model or not folder.is_dir():
        return ModelFacts()
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes(), type=_ModelConfig)
    except (OSError, msgspec.MsgspecError):  # the engine will say what is wrong with it
        config = _ModelConfig()
    return ModelFacts(tuple(config.architectures), (folder / "modules.json").is_file())

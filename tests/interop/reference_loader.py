"""Knows how NVIDIA Dynamo's own loader and reader of benchmark files are called where they are installed.

Their modules import the whole worker (vision models, a planner's regression), which is not installed beside
them. So the functions themselves are taken out of the installed files, unchanged, and are given what they use
of their module: the standard library, and names that are imported from where they import them.
"""

from __future__ import annotations

import ast
import asyncio
import copy
import importlib
import importlib.util
import json
import logging
import math
import os
import time
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["extract", "has_loader", "load"]

WORKER, PLANNER = "dynamo.vllm.worker_factory", "dynamo.planner.monitoring.perf_metrics"
WANTED = {
    WORKER: (
        "_benchmark_rank_path", "_benchmark_merged_path", "_validate_benchmark_rank_payload",
        "_merge_benchmark_rank_results", "_write_json_atomic", "_wait_and_load_benchmark",
    ),
    PLANNER: ("_extract_fpms_from_benchmark",),
}  # fmt: skip
ORIGINS = {
    "dynamo.vllm.instrumented_scheduler": False,
    "dynamo.common.forward_pass_metrics": True,
}
"""Modules of theirs that the functions use, and whether they can be imported; of the others constants are."""
STANDARD = {
    "Any": Any, "Path": Path, "_time": time, "asyncio": asyncio, "copy": copy, "json": json, "math": math,
    "os": os, "logger": logging.getLogger("reference"),
}  # fmt: skip


def has_loader() -> bool:
    """Say whether the files are installed, without importing them."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("dynamo", "dynamo.vllm"))
    except ImportError:
        return False


def source_of(module: str) -> Path:
    """Return the file of a module, which is not imported."""
    first, *rest = module.split(".")
    places = importlib.import_module(first).__path__
    files = (Path(place).joinpath(*rest).with_suffix(".py") for place in places)
    return next(path for path in files if path.exists())


def functions(module: str, **given: Any) -> dict[str, Any]:
    """Return the wanted functions of a module; ``NameError`` later if they use something that is not
    given.
    """
    source = source_of(module)
    tree = ast.parse(source.read_text(encoding="utf-8"))
    wanted: list[ast.stmt] = []
    names: dict[str, Any] = {**STANDARD, **_constants(tree)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in WANTED[module]:
            wanted.append(node)
        elif isinstance(node, ast.ImportFrom):
            names |= _imported(node, module)
    names |= given
    later = ast.parse("from __future__ import annotations").body  # they name classes that are not there
    exec(compile(ast.Module([*later, *wanted], []), str(source), "exec"), names)
    return names


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Return what a module assigns that is plain."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= {target.id: node.value.value for target in node.targets if isinstance(target, ast.Name)}
    return found


def _imported(node: ast.ImportFrom, module: str) -> dict[str, Any]:
    """Return what an import gives: constants out of the file, the rest where it can be imported at all."""
    package = module.rsplit(".", node.level)[0] if node.level else ""
    origin = ".".join(part for part in (package, node.module) if part)
    if origin not in ORIGINS:
        return {}
    constants = _constants(ast.parse(source_of(origin).read_text(encoding="utf-8")))
    names = [alias.name for alias in node.names]
    if ORIGINS[origin]:
        loaded = importlib.import_module(origin)
        return {name: getattr(loaded, name) for name in names}
    return {name: constants[name] for name in names if name in constants}


def load(base: Path, ranks: int) -> dict[str, Any]:
    """Let the reference's launcher wait for the files of all ranks, check, merge and write them."""
    names = functions(WORKER, get_dp_range_for_worker=lambda config: (0, ranks))
    config = {"output_path": str(base), "timeout": 1}
    merged: dict[str, Any] = asyncio.run(names["_wait_and_load_benchmark"](config, SimpleNamespace()))
    return merged


class _Part(Enum):
    """Stands in for the kinds of workers; theirs cannot be imported without a planner's libraries."""

    PREFILL = "prefill"
    DECODE = "decode"


def extract(document: dict[str, Any], kind: str = "") -> list[Any]:
    """Return the passes that the reference's planner takes from a served document for workers that do
    prefills, or decodes, or by default both.
    """
    names = functions(PLANNER, SubComponentType=_Part)
    part = _Part(kind) if kind else None
    found: list[Any] = names["_extract_fpms_from_benchmark"](document, part)
    return found

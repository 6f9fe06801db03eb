"""A scheduler class of the operator's that is derived from ours, given by its path: it is ours."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from forwardpass.engines.vllm.built import read_built
from forwardpass.engines.vllm.inject import Wish, plan_engine
from forwardpass.engines.vllm.launch import SCHEDULER, Asked, InstalledVllm, plan_launch

MODULE = """
class ForwardPassScheduler:  # stands for ours: no vLLM is needed to look at it
    __module__ = {module!r}

class Derived(ForwardPassScheduler):
    pass

class Stranger:
    pass

no_class = 7
"""


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an importable module of an operator's, and have one that cannot be imported."""
    module = SCHEDULER.rpartition(".")[0]
    (tmp_path / "operators_module.py").write_text(MODULE.format(module=module))
    (tmp_path / "operators_mistake.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("operators_module", "operators_mistake"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "operators_module"


def config(scheduler: str) -> SimpleNamespace:
    """Return what the plugin reads of a ``VllmConfig`` with that scheduler class."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            runner_type="generate", convert_type="none", architectures=["Qwen3ForCausalLM"],
            multimodal_config=None,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_size=1, data_parallel_rank=0, data_parallel_size_local=1
        ),
        kv_transfer_config=None, ec_transfer_config=None,
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
    )  # fmt: skip


def test_a_class_derived_from_ours_is_recorded(operators: str) -> None:
    """ENG-43: Given by its path it is no foreign one: it generates, it is recorded, it is not replaced."""
    plan = plan_engine(read_built(config(f"{operators}.Derived"), headless=False), Wish(trace=True))

    assert (plan.generate, plan.inject, plan.record, plan.warnings) == (True, False, True, ())


@pytest.mark.parametrize("name", ["Stranger", "no_class", "Missing"])
def test_another_class_in_the_same_module_is_foreign(operators: str, name: str) -> None:
    """ENG-43: What is not derived from ours stays, with a warning, and is not recorded."""
    plan = plan_engine(read_built(config(f"{operators}.{name}"), headless=False), Wish(trace=True))

    assert (plan.generate, plan.inject, plan.record) == (False, False, False)
    assert len(plan.warnings) == 1


@pytest.mark.parametrize("path", ["operators_mistake.Scheduler", "nowhere.at.all.Scheduler", "Scheduler"])
def test_what_cannot_be_imported_is_left_to_vllm(operators: str, path: str) -> None:
    """ENG-40: Whatever an operator's module raises, vLLM will meet it itself; here it is a foreign class."""
    assert not read_built(config(path), headless=False).ours


def test_a_class_of_vllms_own_is_not_imported(operators: str) -> None:
    """ENG-43: vLLM's own choice is foreign by its name."""
    assert not read_built(config("vllm.nowhere.Scheduler"), headless=False).ours
    assert "vllm.nowhere" not in sys.modules


def test_the_launcher_records_whatever_a_derived_class_sends(operators: str) -> None:
    """ENG-30: The launcher does not import it: the class stays, port and id are set, its ranks are read."""
    asked = Asked(trace=True, worker_id="7")
    arguments = ["m", "--scheduler-cls", f"{operators}.Derived"]
    launch = plan_launch(InstalledVllm("vllm", "0.32.0"), "py", arguments, asked, {})

    assert [part for part in launch.command if "Scheduler" in part or "Derived" in part] == arguments[2:]
    assert launch.streams
    assert launch.environment["DYN_FPM_WORKER_ID"] == "7"

"""What we believe about vLLM's own arguments, checked against the installed one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest

from forwardpass.engines.vllm.arguments import FLAGS, SHORT_FORMS, VALUES, read_arguments
from forwardpass.engines.vllm.role import pooling_role
from forwardpass.engines.vllm.topology import local_ranks

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]  # vLLM looks at a model in a process of its own


PARSER_MODULES = tuple(f"entrypoints.{part}.cli_args" for part in ("common", "launchers", "openai"))
"""Where the parser of ``vllm serve`` is: since 0.33, since 0.29, before."""


@pytest.fixture(scope="module")
def parser(vllm: object) -> Any:
    """Return the parser of ``vllm serve``."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for module in PARSER_MODULES:
        with suppress(ModuleNotFoundError):
            return import_module(f"vllm.{module}").make_arg_parser(FlexibleArgumentParser())
    raise AssertionError(f"vLLM's parser is in none of {PARSER_MODULES}")


@pytest.fixture(scope="module")
def actions(parser: Any) -> Mapping[str, argparse.Action]:
    """Return vLLM's options by each of their names."""
    return dict(parser._option_string_actions)


def test_options_with_a_value_take_one(actions: Mapping[str, argparse.Action]) -> None:
    """Each option in our table exists, and exactly one token follows it."""
    found = {name: (actions[name].nargs, actions[name].const) for name in sorted(VALUES)}

    assert found == dict.fromkeys(sorted(VALUES), (None, None))


def test_flags_take_none(actions: Mapping[str, argparse.Action]) -> None:
    """Each flag in our table exists and has no value."""
    assert {name: actions[name].nargs for name in sorted(FLAGS)} == dict.fromkeys(sorted(FLAGS), 0)


def test_short_forms_stand_for_what_we_think(actions: Mapping[str, argparse.Action]) -> None:
    """Each short form is another name of the same option."""
    assert {short: actions[short] for short in SHORT_FORMS} == {
        short: actions[long] for short, long in SHORT_FORMS.items()
    }


@pytest.mark.parametrize(
    "text",
    [
        "--data-parallel-size 4",
        "-dp 4 -dpl 2",
        "-dp 4 --data-parallel-size-local 2 --data-parallel-start-rank 2",
        "-dp=4 -dpl 2 -dpr 2 --data_parallel_hybrid_lb",
        "-dp 4 -tp 1 --nnodes 2 --node-rank 1",
        "-dp 4 -n 2 -r 1 -dpl 2",
    ],
)
def test_ranks_agree_with_the_engines_own_arithmetic(
    text: str, parser: Any, vllm: Any, tiny_model: str
) -> None:
    """First rank, local size and size are those of vLLM's own configuration."""
    words = text.split()
    engine_args = vllm.AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", tiny_model, *words]))
    parallel = engine_args.create_engine_config().parallel_config
    ours = local_ranks(read_arguments([tiny_model, *words]))

    assert (ours.dp_size, ours.first, ours.count) == (
        parallel.data_parallel_size,
        parallel.data_parallel_rank,
        parallel.data_parallel_size_local,
    )


def test_architectures_default_to_the_runner_that_we_think(vllm: object) -> None:
    """The end of an architecture's name says whether it generates or pools, as in vLLM's own table."""
    model = import_module("vllm.config.model")
    table = {suffix: runner for suffix, (runner, _) in model.iter_architecture_defaults()}
    ours = {suffix: pooling_role([f"Any{suffix}"]) for suffix in table}

    assert {suffix: "pooling" if role else "generate" for suffix, role in ours.items()} == table

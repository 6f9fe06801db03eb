"""Knows vLLM's own arguments just enough to place the scheduler, the ranks and the model in them.

Read in vLLM 0.32.0 (``engine/arg_utils.py``, ``entrypoints/launchers/cli_args.py``,
``utils/argparse_utils.py``); ``tests/engine/test_vllm_arguments_contract.py`` compares the table with
the installed one. Understood: ``--name value``, ``--name=value``, underscores for dashes, the short
forms, dotted JSON keys, and a ``--config`` file. Not looked into: abbreviated option names and
variables that vLLM reads itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

__all__ = ["FLAGS", "SHORT_FORMS", "VALUES", "ServeArguments", "config_arguments", "read_arguments"]

VALUES = frozenset(
    {
        "--api-server-count", "--config", "--convert", "--data-parallel-rank",
        "--data-parallel-size", "--data-parallel-size-local", "--data-parallel-start-rank",
        "--ec-transfer-config", "--kv-transfer-config", "--model", "--nnodes", "--node-rank",
        "--pipeline-parallel-size", "--prefill-context-parallel-size", "--runner", "--scheduler-cls",
        "--tensor-parallel-size",
    }
)  # fmt: skip
"""Options that we understand and that take a value."""

FLAGS = frozenset(
    {
        "--data-parallel-external-lb", "--data-parallel-multi-port-external-lb",
        "--grpc", "--headless", "--mm-encoder-only",
    }
)  # fmt: skip
"""Options that we understand and that take none."""

SHORT_FORMS = {
    "-asc": "--api-server-count",
    "-dp": "--data-parallel-size",
    "-dpe": "--data-parallel-external-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-n": "--nnodes",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-r": "--node-rank",
    "-tp": "--tensor-parallel-size",
}

_OLD_VALUES = frozenset({"--task"})
"""Options that only older releases had: the role they ask for is still understood."""


class ServeArguments(Struct, frozen=True):
    """The facts in a ``vllm serve`` command line that decide what we do. ``None`` means not given."""

    model: str | None = None
    leading_model: bool = False
    """The model is the first argument, as ``vllm serve`` wants it."""
    scheduler_cls: str | None = None
    config: str | None = None
    """Path of the YAML file that further arguments come from."""
    runner: str | None = None
    convert: str | None = None
    task: str | None = None
    kv_role: str | None = None
    ec_role: str | None = None
    mm_encoder_only: bool = False
    headless: bool = False
    grpc: bool = False
    api_server_count: int | None = None
    only_help: bool = False
    """``--help=…``: vLLM prints something and leaves."""
    data_parallel_size: int = 1
    data_parallel_rank: int | None = None
    data_parallel_start_rank: int | None = None
    data_parallel_size_local: int | None = None
    data_parallel_external_lb: bool = False
    data_parallel_multi_port: bool = False
    nnodes: int = 1
    node_rank: int = 0
    ranks_per_engine: int = 1
    """Processes of one engine: tensor × pipeline × prefill-context parallel."""


def read_arguments(arguments: Sequence[str], config: Mapping[str, object] | None = None) -> ServeArguments:
    """Return what ``arguments`` say, over what the ``config`` file's mapping says. Never raises:
    what vLLM will refuse itself is left to vLLM.
    """
    leading = bool(arguments) and not arguments[0].startswith("-")
    given = dict(_options([*config_arguments(config or {}), *arguments[leading:]]))  # the last one counts
    number = _Numbers(given)
    return ServeArguments(
        model=arguments[0] if leading else given.get("--model"),
        leading_model=leading,
        scheduler_cls=given.get("--scheduler-cls") or None,
        config=given.get("--config"),
        runner=given.get("--runner"),
        convert=given.get("--convert"),
        task=given.get("--task"),
        kv_role=_json_key(given, "--kv-transfer-config", "kv_role"),
        ec_role=_json_key(given, "--ec-transfer-config", "ec_role"),
        mm_encoder_only=_on(given, "--mm-encoder-only"),
        headless=_on(given, "--headless"),
        grpc=_on(given, "--grpc"),
        api_server_count=number.optional("--api-server-count"),
        only_help=any(argument.startswith("--help=") for argument in arguments),
        data_parallel_size=number.required("--data-parallel-size"),
        data_parallel_rank=number.optional("--data-parallel-rank"),
        data_parallel_start_rank=number.optional("--data-parallel-start-rank"),
        data_parallel_size_local=number.optional("--data-parallel-size-local"),
        data_parallel_external_lb=_on(given, "--data-parallel-external-lb"),
        data_parallel_multi_port=_on(given, "--data-parallel-multi-port-external-lb"),
        nnodes=number.required("--nnodes"),
        node_rank=number.optional("--node-rank") or 0,
        ranks_per_engine=number.required("--tensor-parallel-size")
        * number.required("--pipeline-parallel-size")
        * number.required("--prefill-context-parallel-size"),
    )


def config_arguments(config: Mapping[str, object]) -> list[str]:
    """Return a ``--config`` file's mapping as arguments, by vLLM's rules for the options we know."""
    arguments = []
    for key, value in config.items():
        name = _canonical(f"--{key}")
        if isinstance(value, bool):
            arguments.append(name if value else f"--no-{name[2:]}")
        elif isinstance(value, dict):
            arguments.append(f"{name}={msgspec.json.encode(value).decode()}")
        elif value is not None and not isinstance(value, list):
            arguments.append(f"{name}={value}")
    return arguments


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each option that we know; flags have the value ``1`` or, negated, ``0``."""
    known_values = VALUES | _OLD_VALUES
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--":
            return
        name, equals, value = _canonical(argument).partition("=")
        if name in FLAGS:
            yield name, "1"
        elif name.startswith("--no-") and f"--{name[5:]}" in FLAGS:
            yield f"--{name[5:]}", "0"
        elif name.partition(".")[0] in known_values:
            if not equals:
                if position >= len(arguments):
                    return
                value = arguments[position]
                position += 1
            yield name, value


def _canonical(argument: str) -> str:
    """Return an argument with its option name in the long form, with dashes; values stay as they are."""
    name, equals, value = argument.partition("=")
    if name.startswith("--"):
        head, dot, keys = name[2:].partition(".")
        name = f"--{head.replace('_', '-')}{dot}{keys}"
    else:
        name = SHORT_FORMS.get(name, name)
    return f"{name}{equals}{value}"


def _on(given: Mapping[str, str], name: str) -> bool:
    return given.get(name) == "1"


def _json_key(given: Mapping[str, str], name: str, key: str) -> str | None:
    """Return one text of a JSON-valued option, given whole or as ``--option.key value``."""
    dotted = given.get(f"{name}.{key}")
    if dotted is not None:
        return dotted
    try:
        document: Any = msgspec.json.decode(given.get(name, "{}"))
    except msgspec.DecodeError:  # vLLM will say so
        return None
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, str) else None


class _Numbers:
    """The integers among the given options; what is no integer counts as not given."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def optional(self, name: str) -> int | None:
        text = self._given.get(name, "").strip()
        return int(text) if text.isascii() and text.isdigit() else None

    def required(self, name: str) -> int:
        return self.optional(name) or 1

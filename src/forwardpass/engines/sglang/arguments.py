"""Knows SGLang's own arguments just enough to place its streams, and to tell its roles apart.

Read in SGLang 0.5.23 (``srt/arg_groups/fields``, ``srt/server_args.py``); the ``sglang`` tests compare the
table with the installed one. Understood: ``--name value``, ``--name=value``, the long forms, and a
``--config`` file. Not looked into: abbreviated option names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

__all__ = ["FLAGS", "VALUES", "LaunchArguments", "config_arguments", "read_arguments"]

VALUES: Mapping[str, str] = {
    "--attention-data-parallel-size": "--attn-dp-size",
    "--attn-dp-size": "--attn-dp-size",
    "--config": "--config",
    "--data-parallel-size": "--dp-size",
    "--disaggregation-mode": "--disaggregation-mode",
    "--dllm-algorithm": "--dllm-algorithm",
    "--dp-size": "--dp-size",
    "--forward-pass-metrics-ipc-name": "--forward-pass-metrics-ipc-name",
    "--forward-pass-metrics-worker-id": "--forward-pass-metrics-worker-id",
    "--model": "--model-path",
    "--model-path": "--model-path",
    "--nnodes": "--nnodes",
    "--node-rank": "--node-rank",
    "--pipeline-parallel-size": "--pp-size",
    "--pp-size": "--pp-size",
    "--tensor-parallel-size": "--tp-size",
    "--tokenizer-worker-num": "--tokenizer-worker-num",
    "--tp-size": "--tp-size",
}
"""Options that we understand and that take a value, with their usual name."""

FLAGS = frozenset(
    {
        "--enable-dp-attention", "--enable-forward-pass-metrics", "--enable-multimodal", "--encoder-only",
        "--is-embedding",
    }
)  # fmt: skip
"""Options that we understand and that take none."""


class LaunchArguments(Struct, frozen=True):
    """The facts in the arguments of ``sglang.launch_server`` that decide what we do. ``None``: not given."""

    model: str | None = None
    config: str | None = None
    """Path of the YAML file that further arguments come from."""
    only_help: bool = False
    switched_on: bool = False
    """``--enable-forward-pass-metrics`` is there."""
    worker_id: str | None = None
    ipc_name: str | None = None
    disaggregation_mode: str = "null"
    is_embedding: bool = False
    encoder_only: bool = False
    enable_multimodal: bool = False
    dllm_algorithm: str | None = None
    tokenizer_workers: int = 1
    dp_size: int = 1
    attn_dp_size: int = 1
    """Ranks of attention data parallelism; ``--dp-size N --enable-dp-attention`` means N of them."""
    tp_size: int = 1
    pp_size: int = 1
    nnodes: int = 1
    node_rank: int = 0


def read_arguments(arguments: Sequence[str], config: Mapping[str, object] | None = None) -> LaunchArguments:
    """Return what ``arguments`` say, over what the ``config`` file's mapping says. Never raises: what
    SGLang will refuse itself is left to SGLang.
    """
    given = dict(_options([*config_arguments(config or {}), *arguments]))  # the last one counts
    dp_size, attn_dp_size = _number(given, "--dp-size", 1), _number(given, "--attn-dp-size", 1)
    if "--enable-dp-attention" in given and attn_dp_size == 1:
        dp_size, attn_dp_size = 1, dp_size
    return LaunchArguments(
        model=given.get("--model-path"),
        config=given.get("--config"),
        only_help=any(argument in ("-h", "--help", "--version") for argument in arguments),
        switched_on="--enable-forward-pass-metrics" in given,
        worker_id=given.get("--forward-pass-metrics-worker-id"),
        ipc_name=given.get("--forward-pass-metrics-ipc-name"),
        disaggregation_mode=given.get("--disaggregation-mode", "null"),
        is_embedding="--is-embedding" in given,
        encoder_only="--encoder-only" in given,
        enable_multimodal="--enable-multimodal" in given,
        dllm_algorithm=given.get("--dllm-algorithm"),
        tokenizer_workers=_number(given, "--tokenizer-worker-num", 1),
        dp_size=dp_size,
        attn_dp_size=attn_dp_size,
        tp_size=_number(given, "--tp-size", 1),
        pp_size=_number(given, "--pp-size", 1),
        nnodes=_number(given, "--nnodes", 1),
        node_rank=_number(given, "--node-rank", 0),
    )


def config_arguments(config: Mapping[str, object]) -> list[str]:
    """Return a ``--config`` file's mapping as arguments, by SGLang's rules for the options we know."""
    arguments = []
    for key, value in config.items():
        name = f"--{key.replace('_', '-')}"
        if name in FLAGS:
            arguments += [name] if value is True else []
        elif name in VALUES and value is not None and not isinstance(value, bool | list | dict):
            arguments.append(f"{name}={value}")
    return arguments


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (usual name, value) of each option that we know; the value of a flag is empty."""
    position = 0
    while position < len(arguments):
        name, equals, value = arguments[position].partition("=")
        position += 1
        if name in FLAGS:
            yield name, ""
        elif name in VALUES:
            if not equals:
                if position >= len(arguments):
                    return
                value = arguments[position]
                position += 1
            yield VALUES[name], value


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    """Return an integer; what is none counts as not given."""
    text = given.get(name, "").strip()
    number = int(text) if text.isascii() and text.isdigit() else default
    return number if number or not default else default

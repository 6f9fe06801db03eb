"""Every vLLM role with and without a port, a trace and a scheduler of the operator's: the whole matrix."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import pytest

from forwardpass.engines.activation import decide_activation
from forwardpass.engines.roles import Backend, find_role
from forwardpass.engines.vllm.launch import SCHEDULER, Asked, InstalledVllm, LaunchPlan, plan_launch
from forwardpass.engines.vllm.role import ModelFacts

PORT = 21000
FOREIGN = "mine.Scheduler"

COMMANDS = {
    "aggregated": "m",
    "prefill": 'm --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_producer"}',
    "decode": 'm --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_consumer"}',
    "embedding": "m --runner pooling --convert embed",
    "classify": "m --runner pooling --convert classify",
    "multimodal encode": "m --mm-encoder-only",
    "headless": "m --headless",
}
"""A command for each role that one can ask for."""

RECORDED = ("aggregated", "prefill", "decode")
UNRECORDED = ("embedding", "classify", "multimodal encode", "headless", "realtime")


class Expected(NamedTuple):
    """What a worker does."""

    injects: bool
    relays: bool
    records: bool
    warns_of: tuple[str, ...]
    """What the warnings name, in order."""


def expected(role: str, port: int | None, trace: bool, cls: str | None) -> Expected:
    """Return what the specification's table says, one row after the other."""
    if port is None and not trace:
        return Expected(False, False, False, ())
    if role in RECORDED:
        if cls == FOREIGN:
            return Expected(False, True, trace, (FOREIGN,))
        return Expected(cls is None, True, trace, ())
    if port is None:  # a trace alone: activation is off for this worker
        return Expected(False, False, False, (f"role {role!r}",))
    if cls == FOREIGN:
        return Expected(False, False, False, (FOREIGN, f"role {role!r}") if trace else (FOREIGN,))
    return Expected(cls is None, False, False, (f"role {role!r}",))


def plan(role: str, port: int | None, trace: bool, cls: str | None) -> LaunchPlan:
    """Plan the launch of a command that asks for ``role``."""
    arguments = [*COMMANDS[role].split(), *(["--scheduler-cls", cls] if cls else [])]
    asked = Asked(trace=trace, trace_flag=trace or None, explicit_port=port, worker_id="7")
    return plan_launch(InstalledVllm("vllm", "0.33.0"), "py", arguments, asked, {}, model=ModelFacts())


MATRIX = list(product((None, PORT), (False, True), (None, FOREIGN, SCHEDULER)))


@pytest.mark.parametrize(("port", "trace", "cls"), MATRIX)
@pytest.mark.parametrize("role", COMMANDS)
def test_the_launch_follows_the_table(role: str, port: int | None, trace: bool, cls: str | None) -> None:
    """ENG-30, ENG-31, ENG-32, TRAP-24: Injection, relays, recording and warnings of every command are those
    of the table; a class of the operator's is never replaced, and ours is not put in twice.
    """
    want, launch = expected(role, port, trace, cls), plan(role, port, trace, cls)

    assert (f"--scheduler-cls={SCHEDULER}" in launch.command) is want.injects
    assert bool(launch.streams) is want.relays
    assert launch.activation.persist is want.records
    assert len(launch.activation.warnings) == len(want.warns_of)
    for line, named in zip(launch.activation.warnings, want.warns_of, strict=True):
        assert named in line


@pytest.mark.parametrize(("port", "trace", "cls"), [row for row in MATRIX if row[2] != SCHEDULER])
@pytest.mark.parametrize("role", [*RECORDED, *UNRECORDED])
def test_the_decision_follows_the_table(role: str, port: int | None, trace: bool, cls: str | None) -> None:
    """ENG-30, ENG-31, D-17: So is the decision itself, for roles that no command asks for as well; the port
    is the one that was set, or 20380.
    """
    want = expected(role, port, trace, cls)
    found = decide_activation(
        find_role(Backend.VLLM, role), explicit_port=port, trace=trace, foreign_scheduler=cls
    )

    assert (found.inject_scheduler, found.relay, found.persist) == want[:3]
    assert found.generate is found.inject_scheduler
    assert found.base_port == (port or 20380)
    assert [named in line for line, named in zip(found.warnings, want.warns_of, strict=True)] == [True] * len(
        want.warns_of
    )


@pytest.mark.parametrize("role", UNRECORDED)
def test_nothing_is_generated_unheard(role: str) -> None:
    """TRAP-24, D-17: Whenever a role without a relay generates, a line says that nobody records it."""
    found = decide_activation(find_role(Backend.VLLM, role), explicit_port=PORT, trace=False)

    assert (found.generate, found.relay) == (True, False)
    assert ["nothing publishes or records" in line for line in found.warnings] == [True]

"""The table of roles and the decision what is on for a worker."""

from __future__ import annotations

import pytest

from forwardpass.engines.activation import Activation, decide_activation
from forwardpass.engines.roles import ROLES, Backend, Carrier, Role, find_role
from forwardpass.wire.ports import DEFAULT_BASE_PORT

SUPPORTED = ("aggregated", "prefill", "decode")
UNSUPPORTED = ("embedding", "classify", "pooling", "multimodal encode", "headless", "realtime")
SGLANG = ("aggregated", "prefill", "decode", "LLM diffusion", "multimodal")
NO_SGLANG = ("embedding", "rerank", "multimodal encoder", "image diffusion", "video generation", "snapshot")
TRTLLM = ("aggregated", "prefill", "decode")
SWITCHED = [
    *(find_role(Backend.SGLANG, name) for name in SGLANG),
    *(find_role(Backend.TRTLLM, name) for name in TRTLLM),
]


def vllm(name: str) -> Role:
    """Return a row of the table for vLLM."""
    return find_role(Backend.VLLM, name)


def switches(activation: Activation) -> tuple[bool, bool, bool, bool]:
    """Return (generate, inject, relay, persist)."""
    return (
        activation.generate,
        activation.inject_scheduler,
        activation.relay,
        activation.persist,
    )


def test_the_table_has_every_role_of_the_specification_once() -> None:
    """ENG-30: each backend and role is one row, and no other row exists."""
    expected = {(Backend.VLLM, name) for name in (*SUPPORTED, *UNSUPPORTED)}
    expected |= {(Backend.SGLANG, name) for name in (*SGLANG, *NO_SGLANG, "gateway")}
    expected |= {(Backend.TRTLLM, name) for name in TRTLLM} | {(Backend.MOCK, "simulated")}

    assert expected == {(role.backend, role.name) for role in ROLES}
    assert len(expected) == len(ROLES)


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_trace_turns_a_supported_role_on_at_the_default_port(name: str) -> None:
    """Tracing generates, injects, relays and records where a relay exists, without a warning."""
    activation = decide_activation(vllm(name), explicit_port=None, trace=True)

    assert switches(activation) == (True, True, True, True)
    assert activation.base_port == DEFAULT_BASE_PORT
    assert activation.warnings == ()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_trace_is_off_in_an_unsupported_role_and_a_warning_names_it(name: str) -> None:
    """Without a relay nothing is injected either (D-17), and the operator learns why."""
    activation = decide_activation(vllm(name), explicit_port=None, trace=True)

    assert switches(activation) == (False, False, False, False)
    (warning,) = activation.warnings
    assert repr(name) in warning
    assert "serving goes on" in warning


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_port_alone_generates_and_relays_but_persists_nothing(name: str) -> None:
    """The older opt-in wins with its own port and never turns persistence on."""
    activation = decide_activation(vllm(name), explicit_port=21000, trace=False)

    assert switches(activation) == (True, True, True, False)
    assert activation.base_port == 21000
    assert activation.warnings == ()


@pytest.mark.parametrize("name", SUPPORTED)
def test_an_explicit_port_wins_over_the_default_of_a_trace(name: str) -> None:
    """Port and trace together generate at that port and record."""
    activation = decide_activation(vllm(name), explicit_port=21000, trace=True)

    assert switches(activation) == (True, True, True, True)
    assert activation.base_port == 21000


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_port_generates_in_any_role_but_cannot_create_a_relay(name: str, trace: bool) -> None:
    """Whenever generation is on without a relay, a warning says so (D-17)."""
    activation = decide_activation(vllm(name), explicit_port=21000, trace=trace)

    assert switches(activation) == (True, True, False, False)
    (warning,) = activation.warnings
    assert repr(name) in warning
    assert "21000" in warning


@pytest.mark.parametrize("name", [*SUPPORTED, *UNSUPPORTED])
def test_nothing_is_on_that_was_not_asked_for(name: str) -> None:
    """Neither port nor trace: stock vLLM, silently; a foreign scheduler is nobody's business then."""
    for foreign in (None, "mine.Scheduler"):
        activation = decide_activation(vllm(name), explicit_port=None, trace=False, foreign_scheduler=foreign)

        assert switches(activation) == (False, False, False, False)
        assert activation.warnings == ()


@pytest.mark.parametrize(("port", "persist"), [(None, True), (21000, True), (21000, False)])
@pytest.mark.parametrize("name", SUPPORTED)
def test_a_foreign_scheduler_is_kept_and_its_relay_too(name: str, port: int | None, persist: bool) -> None:
    """The operator's class stays; one warning names it; the relay is harmless and stays."""
    activation = decide_activation(
        vllm(name), explicit_port=port, trace=persist, foreign_scheduler="mine.Scheduler"
    )

    assert (False, False, True, persist) == switches(activation)
    (warning,) = activation.warnings
    assert "mine.Scheduler" in warning


def test_a_foreign_scheduler_in_an_unsupported_role_gets_one_warning_for_each_fact() -> None:
    """With a port set, the class is named; with a trace, the role is; neither is said twice."""
    by_trace = decide_activation(
        vllm("embedding"), explicit_port=None, trace=True, foreign_scheduler="mine.Scheduler"
    )
    by_port = decide_activation(
        vllm("embedding"), explicit_port=21000, trace=False, foreign_scheduler="mine.Scheduler"
    )

    assert ["embedding" in line for line in by_trace.warnings] == [True]
    assert ["mine.Scheduler" in line for line in by_port.warnings] == [True]
    assert switches(by_port) == (False, False, False, False)


@pytest.mark.parametrize("trace", [False, True])
def test_the_mock_always_generates_and_persists_only_a_trace(trace: bool) -> None:
    """The simulated engine publishes itself, so it needs neither relay nor injection."""
    activation = decide_activation(find_role(Backend.MOCK, "simulated"), explicit_port=None, trace=trace)

    assert (True, False, False, trace) == switches(activation)
    assert activation.role.carrier is Carrier.DIRECT
    assert activation.warnings == ()


@pytest.mark.parametrize("role", SWITCHED, ids=lambda role: f"{role.backend}-{role.name}")
def test_an_engine_with_a_switch_is_switched_on_by_a_trace_or_by_the_variable(role: Role) -> None:
    """ROLE-02: Where the engine has no ports of ours, the port's variable opts in by being set: passes are
    generated and carried on, and only a trace records them. No scheduler is put in place.
    """
    by_variable = decide_activation(role, opted_in=True, trace=False)
    by_trace = decide_activation(role, trace=True)
    nothing = decide_activation(role, trace=False)
    relayed = role.carrier is Carrier.RELAY

    assert switches(by_variable) == (True, False, relayed, False)
    assert switches(by_trace) == (True, False, relayed, True)
    assert switches(nothing) == (False, False, False, False)
    assert (by_variable.switch_on, by_trace.switch_on, nothing.switch_on) == (True, True, False)
    assert (by_variable.warnings, by_trace.warnings, nothing.warnings) == ((), (), ())


@pytest.mark.parametrize(("opted_in", "trace"), [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("name", NO_SGLANG)
def test_an_sglang_role_that_cannot_be_observed_is_named(name: str, opted_in: bool, trace: bool) -> None:
    """ROLE-01: Nothing is switched on in such a role, whatever asked for it, and one line names the role."""
    activation = decide_activation(find_role(Backend.SGLANG, name), opted_in=opted_in, trace=trace)

    assert switches(activation) == (False, False, False, False)
    assert (activation.switch_on, activation.refusal) == (False, "")
    (warning,) = activation.warnings
    assert repr(name) in warning
    assert "serving goes on" in warning


@pytest.mark.parametrize(("opted_in", "trace"), [(False, True), (True, False), (False, False)])
def test_an_sglang_gateway_is_refused_with_forward_passes_on_alone(opted_in: bool, trace: bool) -> None:
    """ROLE-03: Several tokenizer processes and forward passes do not go together; without them they do."""
    activation = decide_activation(find_role(Backend.SGLANG, "gateway"), opted_in=opted_in, trace=trace)

    assert bool(activation.refusal) is (opted_in or trace)
    assert switches(activation) == (False, False, False, False)
    assert activation.warnings == ()


def test_an_unknown_role_is_an_error_of_the_caller() -> None:
    """The table is the only place where roles exist."""
    with pytest.raises(KeyError):
        find_role(Backend.MOCK, "embedding")


@pytest.mark.parametrize("foreign", [None, "mine.Scheduler"])
@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("port", [None, 21000])
@pytest.mark.parametrize("role", ROLES, ids=lambda role: f"{role.backend}-{role.name}")
def test_laws_of_every_row(role: Role, port: int | None, trace: bool, foreign: str | None) -> None:
    """For every combination: injection implies generation, persistence implies a carrier, and
    generation without any carrier is never silent (D-17).
    """
    activation = decide_activation(role, explicit_port=port, trace=trace, foreign_scheduler=foreign)

    assert activation.generate or not activation.inject_scheduler
    assert trace or not activation.persist
    assert role.supported or not (activation.relay or activation.persist)
    assert activation.switch_on is (activation.generate and role.switched)
    asked = port is not None or trace
    assert role.supported or not asked or activation.warnings or activation.refusal
    carried = activation.relay or role.carrier is Carrier.DIRECT
    assert carried or not activation.generate or activation.warnings
    assert activation.base_port == (port or DEFAULT_BASE_PORT)

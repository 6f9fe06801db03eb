"""Which of vLLM's schedulers ours behaves as, with stand-ins for both."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forwardpass.engines.vllm.order import follow_engine


class Plain:
    """As vLLM's plain scheduler: it knows no placeholders."""

    def __init__(self, asynchronous: bool) -> None:
        self.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous))

    def account(self) -> str:
        return "known tokens"

    def schedule(self) -> str:
        return f"schedules by {self.account()}"


class Asynchronous(Plain):
    """As vLLM's asynchronous one."""

    def account(self) -> str:
        return f"{super().account()} and placeholders"

    def only_here(self) -> str:
        return "extra"


class Ours(Asynchronous):
    """A subclass that delegates."""

    def schedule(self) -> str:
        return f"{super().schedule()}, observed"


@pytest.mark.parametrize(
    ("asynchronous", "account"), [(True, "known tokens and placeholders"), (False, "known tokens")]
)
def test_the_scheduler_accounts_as_its_engine_runs(asynchronous: bool, account: str) -> None:
    """ENG-01: Only an asynchronous engine gets the asynchronous class's methods; our own always stay."""
    scheduler = Ours(asynchronous)
    follow_engine(scheduler, Asynchronous)

    assert scheduler.schedule() == f"schedules by {account}, observed"
    assert isinstance(scheduler, Ours)
    assert type(scheduler).__name__ == "Ours"
    assert scheduler.only_here() == "extra"


def test_the_class_itself_is_left_alone() -> None:
    """Another engine in the same process may be asynchronous."""
    follow_engine(Ours(False), Asynchronous)
    other = Ours(True)
    follow_engine(other, Asynchronous)

    assert other.account() == "known tokens and placeholders"

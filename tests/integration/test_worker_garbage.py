"""The garbage collector of a model worker, from the import of its extension class to the server's call;
and the thread that freezes meanwhile.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.garbage import hold_garbage
from forwardpass.config.settings import Sources

SCRIPT = """
import gc, json, threading
def state():
    freezing = sum(thread.name == "forwardpass-freeze" for thread in threading.enumerate())
    return [gc.isenabled(), list(gc.get_threshold()), gc.get_freeze_count() > 1000, freezing]
before = state()
from forwardpass.engines.vllm.worker_extension_gc import ForwardPassGcWorkerExtension
from forwardpass.engines.vllm.worker_extension import ForwardPassWorkerExtension
during = state()
class Worker(ForwardPassGcWorkerExtension):
    pass
replies = [Worker().fpm_gc_stop() for _ in range(2)]
usual = issubclass(ForwardPassGcWorkerExtension, ForwardPassWorkerExtension)
print(json.dumps([before, during, state(), replies, usual]))
"""


def said(**variables: str) -> Any:
    """Import the class in a process of its own, as a worker does, and call it twice."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=kept | variables, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_the_import_holds_and_the_call_lets_go() -> None:
    """BCONF-15, PIT-15: With the policy the import freezes and raises the threshold; the call restores it,
    ends the thread, and leaves frozen what serves.
    """
    before, during, after, replies, usual = said(DYN_FPM_GC_POLICY="freeze")

    assert during == [True, [*before[1][:2], 2**30], True, 1]
    assert after == [*before[:2], True, 0]
    assert replies == [{"gc_held": False}] * 2
    assert usual


def test_without_the_policy_the_import_does_nothing() -> None:
    """BCONF-15: An import in any other process has no effect, and the call none either."""
    before, during, after, replies, _ = said()

    assert before == during == after
    assert replies == [{"gc_held": False}] * 2


@pytest.mark.parametrize("text", ["thaw", "1"])
def test_a_policy_that_is_none_fails_the_import(text: str) -> None:
    """BCONF-15: A worker with another policy than the launcher's does not start."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        said(DYN_FPM_GC_POLICY=text)

    assert "DYN_FPM_GC_POLICY" in caught.value.stderr


def test_it_freezes_again_and_again() -> None:
    """BCONF-15: What came to be since is frozen at the next interval, and nothing is collected for it."""
    short = msgspec.structs.replace(
        BenchEnvironment.load(Sources({"DYN_FPM_GC_POLICY": "freeze"})), freeze_interval_seconds=0.01
    )
    hold = hold_garbage(short)
    first, collections = gc.get_freeze_count(), gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(5000)]
    deadline = time.monotonic() + 20
    while gc.get_freeze_count() < first + len(kept) and time.monotonic() < deadline:
        time.sleep(0.01)
    grown, collected = gc.get_freeze_count(), gc.get_stats()[2]["collections"]
    hold.release(freeze_again=False)
    after = gc.get_freeze_count()

    assert grown >= first + len(kept)
    assert (collected, after) == (collections, 0)

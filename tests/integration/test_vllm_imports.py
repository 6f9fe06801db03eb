"""What the engine folder loads before an engine runs."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import forwardpass.engines.vllm, forwardpass.engines.vllm.extract
import forwardpass.engines.vllm.recorder, forwardpass.engines.vllm.compat
print(sorted({"vllm", "torch", "zmq", "asyncio"} & set(sys.modules)))
import forwardpass.engines.vllm.attach
print(sorted({"vllm", "torch"} & set(sys.modules)))
"""


def test_nothing_but_the_scheduler_module_loads_vllm() -> None:
    """Extraction, recorder and the list of symbols load neither vLLM nor ZMQ; attaching loads no vLLM."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.splitlines() == ["[]", "[]"]

"""A small server in the place of vLLM's module, and ``forwardpass vllm serve`` around it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

SERVER = """
import json, os, signal, sys, time
from forwardpass.config.settings import PublisherSettings, Sources
from forwardpass.publish.publisher import open_publisher
from forwardpass.wire.schema import ForwardPassMetrics

def say(**facts):
    with open(os.environ["SERVER_LOG"], "a") as log:
        log.write(json.dumps(facts) + "\\n")

ours = {k: v for k, v in os.environ.items() if k.startswith(("DYN_", "FORWARDPASS_"))}
say(argv=sys.argv[1:], pid=os.getpid(), module=__spec__.name, environment=ours)
if os.environ.get("SERVER_FAILS"):
    sys.exit(int(os.environ["SERVER_FAILS"]))
os.environ["DYN_FPM_WORKER_ID"] = os.environ.get("SERVER_WORKER") or ours.get("DYN_FPM_WORKER_ID", "")
publisher = None
if any("ForwardPassScheduler" in argument for argument in sys.argv):
    publisher = open_publisher(PublisherSettings.load(Sources()), dp_rank=0)

def publish(count):
    for _ in range(count):
        if publisher is not None:
            publisher.publish(ForwardPassMetrics(wall_time=0.01))

def stop(number, frame):
    say(signal=signal.Signals(number).name)
    publish(100)
    if publisher is not None:
        publisher.shutdown()
    say(end=True)
    sys.exit(int(os.environ.get("SERVER_STATUS", "0")))

def joined(port):
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)  # 01: established

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
if publisher is not None and publisher.port is not None:
    deadline = time.monotonic() + 20
    while not joined(publisher.port) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)  # the relay's subscription follows its connection
publish(50)
say(up=True)
while True:
    time.sleep(0.05)
"""


class Launch:
    """A running ``forwardpass vllm serve``."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self.words = ""

    def facts(self) -> dict[str, Any]:
        """Return what the server said about itself, merged."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        merged: dict[str, Any] = {}
        for line in lines:
            merged.update(json.loads(line))
        return merged

    def wait_for(self, fact: str, seconds: float = 30.0) -> Launch:
        """Wait until the server said ``fact``."""
        deadline = time.monotonic() + seconds
        while fact not in self.facts():
            assert time.monotonic() < deadline, f"no {fact!r}; the server said {self.facts()}"
            assert self.process.poll() is None, self.finish()
            time.sleep(0.02)
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the launcher and return its status."""
        self.process.send_signal(number)
        return self.finish()

    def finish(self) -> int:
        """Wait for the end; keep what was written to stderr in ``words``."""
        self.words = self.process.communicate(timeout=60)[1]
        return self.process.returncode

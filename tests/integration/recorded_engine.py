"""A process that has a recorder beside it, as one that built a vLLM engine: publishes passes as told.

    python recorded_engine.py JSON

``{"base_port", "worker_id", "passes", "engines", "kill", "hang", "fork", "thread", "change"}``; prints
one JSON line with the recorders' pids when everything is published.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

from forwardpass.config.handover import RECORDER
from forwardpass.config.settings import PublisherSettings, TraceSettings
from forwardpass.engines.vllm import companion
from forwardpass.engines.vllm.companion import RecorderOrder, keep_recorder
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.wire.schema import ForwardPassMetrics


def joined(port: int) -> bool:
    """Say whether somebody is connected to ``port``."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def publish(order: RecorderOrder, passes: int) -> FpmPublisher:
    """Publish ``passes`` as the engine behind ``order`` would, once the recorder has joined."""
    settings = PublisherSettings(base_port=order.base_port, worker_id=order.worker_id)
    publisher = FpmPublisher(settings, dp_rank=0)
    deadline = time.monotonic() + 5
    while not joined(order.base_port) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # the subscription follows the connection
    for _ in range(passes):
        publisher.publish(ForwardPassMetrics(wall_time=0.01))
    return publisher


def main() -> None:
    """Do as the order says."""
    logging.basicConfig(format="%(message)s")
    told: dict[str, Any] = json.loads(sys.argv[1])
    port = told["base_port"]
    order = RecorderOrder(port, 0, 1, ((0, f"tcp://127.0.0.1:{port}"),), told["worker_id"], "aggregated")
    pids, marks = [], []
    for number in range(told.get("engines", 1)):
        settings = TraceSettings(max_segments=1 + number) if told.get("change") else TraceSettings()
        if told.get("thread"):  # the recorder must outlive the thread that started it
            thread = threading.Thread(target=keep_recorder, args=(order, settings))
            thread.start()
            thread.join()
            time.sleep(0.5)
        else:
            keep_recorder(order, settings)
        pids += [kept.pid for kept, _ in companion._kept.values()]
        marks.append(os.environ.get(RECORDER))
        publisher = publish(order, told.get("passes", 100))
        if number + 1 < told.get("engines", 1):
            publisher.shutdown()
    # as vLLM ends its engines: by a finalizer that is younger than the recorder's
    weakref.finalize(publish_late, publish_late, publisher, told.get("late", 0))
    print(json.dumps({"pids": pids, "marks": marks}), flush=True)
    if told.get("kill"):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if told.get("fork") and os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    if told.get("hang"):
        time.sleep(60)


def publish_late(publisher: FpmPublisher, passes: int) -> None:
    """Publish what an engine does at its very end, and close."""
    for _ in range(passes):
        publisher.publish(ForwardPassMetrics(wall_time=0.02))
    publisher.shutdown()


if __name__ == "__main__":
    main()

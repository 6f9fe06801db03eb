"""What a reader loses that stalls for 10 s while 20,000 messages a second come: ours against ZMQ's defaults.

Two streams at once in one run, each with a sender and a reader in processes of their own: our socket and
source (100,000 messages may wait on either side), and plain PUB and SUB sockets as the library makes them
(1,000). The reader's *thread* stalls, as for a full disk: libzmq goes on receiving behind its back. In the
second part the whole reader process is stopped (``SIGSTOP``), so that only the sender's side can keep
anything. Memory is what each process grew by at most, from before the stall.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forwardpass.testing.ports import free_port
from harness import Result, from_rounds, is_quick, run_script

RATE = 20_000
TICK_SECONDS = 0.005
STALL_SECONDS = 10.0
QUICK_STALL_SECONDS = 1.5
LEAD_SECONDS = 1.0
"""Seconds of ordinary reading before the stall, and after it."""
QUIET_SECONDS = 2.0
"""A reader that has heard nothing for so long has everything that it will get."""
DEFAULT, OURS = "zmq's defaults", "forwardpass"


def resident_bytes() -> int:
    """Return this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- the processes ------------------------------------------------------------------------------------


def send(way: str, port: int, seconds: float) -> dict[str, int]:
    """Send at the rate for ``seconds``; return how many messages, and how much memory it took."""
    from usual_payload import PAYLOAD

    send_one = _sender(way, port)
    time.sleep(LEAD_SECONDS)  # the reader is there
    before = peak = resident_bytes()
    begin, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed * RATE)
        for seq in range(sent, due):
            send_one(seq, PAYLOAD)
        if due // RATE > sent // RATE:  # once a second
            peak = max(peak, resident_bytes())
        sent = due
        time.sleep(TICK_SECONDS)
    peak = max(peak, resident_bytes())
    time.sleep(STALL_SECONDS / 2 + QUIET_SECONDS)  # what is queued here goes out
    return {"sent": sent, "grown": peak - before}


def _sender(way: str, port: int) -> Any:
    if way == OURS:
        from forwardpass.config.settings import PublisherSettings
        from forwardpass.publish.zmq_pub import PubSocket

        ours = PubSocket("127.0.0.1", port, send_hwm=PublisherSettings().send_hwm)
        ours.open()
        return ours.send
    import zmq

    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.bind(f"tcp://127.0.0.1:{port}")

    def send_one(seq: int, payload: bytes) -> None:
        socket.send_multipart((b"", seq.to_bytes(8, "big"), payload), zmq.NOBLOCK)

    return send_one


def receive(way: str, port: int, stall_seconds: float) -> dict[str, int]:
    """Read, stall after a second of it, read on until nothing comes; return what was received."""
    drain = _receiver(way, port)
    received, stalled, begun = 0, not stall_seconds, 0.0
    before = peak = resident_bytes()
    last = time.monotonic() + 30.0  # the sender may take a while to start
    while time.monotonic() - last < QUIET_SECONDS:
        got = drain()
        now = time.monotonic()
        if got:
            received += got
            begun, last = begun or now, now
        else:
            time.sleep(TICK_SECONDS)
        if begun and not stalled and now - begun > LEAD_SECONDS:
            stalled, before = True, resident_bytes()
            time.sleep(stall_seconds)
            peak, last = max(peak, resident_bytes()), time.monotonic()
    return {"received": received, "grown": max(0, peak - before)}


def _receiver(way: str, port: int) -> Any:
    """Return a function that receives what is there, and returns how many messages that were."""
    if way == OURS:
        from forwardpass.relay.zmq_source import ZmqSource

        source = ZmqSource(f"tcp://127.0.0.1:{port}")
        return lambda: len(source.receive_many(256))
    import zmq

    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(f"tcp://127.0.0.1:{port}")

    def drain() -> int:
        try:
            socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return 0
        return 1

    return drain


# --- the run ------------------------------------------------------------------------------------------


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start one of the processes above."""
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def run(stall_seconds: float, *, whole_process: bool) -> dict[str, dict[str, int]]:
    """Run both streams at once; return what each sent, received and grew by."""
    seconds = stall_seconds + 2 * LEAD_SECONDS
    readers, senders = {}, {}
    for way in (DEFAULT, OURS):
        port = free_port()
        readers[way] = start("receive", way, port, 0.0 if whole_process else stall_seconds)
        senders[way] = start("send", way, port, seconds)
    try:
        if whole_process:
            time.sleep(3 * LEAD_SECONDS)
            for reader in readers.values():
                reader.send_signal(signal.SIGSTOP)
            time.sleep(stall_seconds)
            for reader in readers.values():
                reader.send_signal(signal.SIGCONT)
        said = {way: _answer(senders[way]) for way in senders}
        for way, reader in readers.items():
            answer = _answer(reader)
            said[way] |= {"received": answer["received"], "reader": answer["grown"]}
        return said
    finally:
        for process in (*readers.values(), *senders.values()):
            process.kill()
            process.wait(10)


def _answer(process: subprocess.Popen[str]) -> dict[str, int]:
    out, _ = process.communicate(timeout=120)
    answer: dict[str, int] = json.loads(out)
    return answer


def compared(said: dict[str, dict[str, int]], what: str) -> list[Result]:
    """Return what was lost, in percent, and the memory of both ends, in MB."""
    lost = {way: [100 * (1 - each["received"] / each["sent"])] for way, each in said.items()}
    rate = ", ".join(f"{way} {each['sent']} sent" for way, each in said.items())
    return [
        from_rounds(f"{what}: lost", lost, unit="%", note=rate),
        from_rounds(f"{what}: sender grew", {w: [e["grown"] / 1e6] for w, e in said.items()}, unit="MB"),
        from_rounds(f"{what}: reader grew", {w: [e["reader"] / 1e6] for w, e in said.items()}, unit="MB"),
    ]


def main() -> list[Result]:
    """Stall the reader's thread, then the whole reader."""
    stall = QUICK_STALL_SECONDS if is_quick() else STALL_SECONDS
    results = compared(run(stall, whole_process=False), f"reader's thread stalled for {stall:g} s")
    return results + compared(run(stall, whole_process=True), f"reader's process stopped for {stall:g} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        print(json.dumps(send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))), flush=True)
    elif sys.argv[1:2] == ["receive"]:
        print(json.dumps(receive(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))), flush=True)
    else:
        run_script(main, __doc__)

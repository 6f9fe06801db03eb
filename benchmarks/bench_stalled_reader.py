"""What a reader loses that stalls for 10 s while 20,000 messages a second come: ours against ZMQ's defaults.

Two streams at once in one run, each with a sender and a reader in processes of their own: our socket and
source (100,000 messages may wait at the sender and 300,000 at the reader), and plain PUB and SUB sockets as
the library makes them (1,000). The reader's *thread* stalls, as for a full disk: libzmq goes on receiving
behind its back. In the second part the whole reader process is stopped (``SIGSTOP``), so that only the
sender's side can keep anything. Memory is what each process grew by at most, from before the stall.
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
START_SECONDS = 30.0
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
    """Read, stall after a second of it, read on until nothing comes.

    Returns how many messages were received, the first one's number, and how much memory it took.
    """
    drain = _receiver(way, port)
    print("ready", flush=True)
    received, first, stalled, begun = 0, 0, False, 0.0
    before = peak = resident_bytes()
    idle = 0.0  # not by the clock: this process may have been stopped
    while idle < (QUIET_SECONDS if begun else START_SECONDS):
        got, number = drain()
        now = time.monotonic()
        if got:
            first = first if received else number
            received += got
            begun, idle = begun or now, 0.0
        else:
            time.sleep(TICK_SECONDS)
            idle += TICK_SECONDS
        if begun and not stalled and now - begun > LEAD_SECONDS:
            print("reading", flush=True)
            stalled, before = True, resident_bytes()
            time.sleep(stall_seconds)
            peak = max(peak, resident_bytes())
    return {"received": received, "first": first, "grown": max(0, peak - before)}


def _receiver(way: str, port: int) -> Any:
    """Return a function that receives what is there; it returns how many messages, and the first's number."""
    if way == OURS:
        from forwardpass.relay.zmq_source import ZmqSource

        source = ZmqSource(f"tcp://127.0.0.1:{port}")

        def drain_many() -> tuple[int, int]:
            batch = source.receive_many(256)
            return len(batch), batch.sequences()[0] if batch.payloads else 0

        return drain_many
    import zmq

    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(f"tcp://127.0.0.1:{port}")

    def drain() -> tuple[int, int]:
        try:
            _, number, _ = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return 0, 0
        return 1, int.from_bytes(number, "big")

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
    ports = {way: free_port() for way in (DEFAULT, OURS)}
    stall = 0.0 if whole_process else stall_seconds
    readers = {way: start("receive", way, port, stall) for way, port in ports.items()}
    senders: dict[str, subprocess.Popen[str]] = {}
    try:
        for reader in readers.values():
            _line(reader, "ready")
        senders = {way: start("send", way, port, seconds) for way, port in ports.items()}
        for reader in readers.values():
            _line(reader, "reading")
            if whole_process:
                reader.send_signal(signal.SIGSTOP)
        if whole_process:
            time.sleep(stall_seconds)
            for reader in readers.values():
                reader.send_signal(signal.SIGCONT)
        said = {way: _answer(senders[way]) for way in senders}
        for way, reader in readers.items():
            answer = _answer(reader)
            said[way]["sent"] -= answer[
                "first"
            ]  # what was sent before the reader was there is not lost by it
            said[way] |= {"received": answer["received"], "reader": answer["grown"]}
        return said
    finally:
        for process in (*readers.values(), *senders.values()):
            process.kill()
            process.wait(10)


def _line(process: subprocess.Popen[str], expected: str) -> None:
    """Wait until the process says that it is so far."""
    said = process.stdout.readline() if process.stdout is not None else ""
    if said.strip() != expected:
        raise RuntimeError(f"expected {expected!r}, got {said!r}")


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

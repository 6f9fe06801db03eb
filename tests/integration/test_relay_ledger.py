"""What happens to a real stream on its way, as the ledger tells it: sockets, relay, recorder, report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import zmq
from trace_files import payload, trace_settings

from forwardpass.analyze.causes import Cause
from forwardpass.analyze.gap_report import GapReport, report_gaps
from forwardpass.relay.relay import Relay
from forwardpass.relay.supervisor import RelayGroup
from forwardpass.relay.targets import RelayTarget
from forwardpass.relay.witness import STALL_SECONDS
from forwardpass.testing.ports import free_port
from forwardpass.trace.ledger import EventKind
from forwardpass.trace.ledger_reader import read_ledger
from forwardpass.trace.reader import find_segments
from forwardpass.trace.registry import TraceHandle, TraceRegistry
from forwardpass.wire.frames import join
from forwardpass.wire.keys import Endpoint


class Publisher:
    """A plain PUB socket at a port of its own, which can go away and come back."""

    def __init__(self) -> None:
        self.port = free_port()
        self._context = zmq.Context()
        self.open()

    def open(self) -> None:
        """Bind, once ZMQ has let go of the port."""
        self._socket = self._context.socket(zmq.PUB)
        self._socket.linger = 1000
        for _ in range(1000):
            try:
                self._socket.bind(f"tcp://127.0.0.1:{self.port}")
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                time.sleep(0.01)
        raise AssertionError(f"port {self.port} is not set free")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, *counters: int) -> None:
        """Publish messages with these numbers."""
        for counter in counters:
            self._socket.send_multipart(join(counter, payload(counter)))

    def end(self) -> None:
        """Close everything."""
        self.close()
        self._context.term()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds, or fail."""
    for _ in range(4000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen in time")


class Recorder:
    """A relay group with its trace, in full mode."""

    def __init__(self, folder: Path, publisher: Publisher) -> None:
        self.publisher = publisher
        self._registry = TraceRegistry(trace_settings(folder))
        handle = self._registry.acquire("77", Endpoint())
        assert handle is not None
        self.trace: TraceHandle = handle
        self.group = RelayGroup([RelayTarget(f"tcp://127.0.0.1:{publisher.port}", 0)], trace=handle)

    async def start(self, first: int = 0) -> int:
        """Begin, and publish until the first message has come; return the next number."""
        await self.group.start()
        number = first
        while not self.trace.counts().offered:
            self.publisher.send(number)
            number += 1
            await asyncio.sleep(0.02)
        await self.has(number - first, at_most=True)
        return number

    async def has(self, offered: int, *, at_most: bool = False) -> None:
        """Wait until so many messages have come (or none comes any more)."""
        if at_most:
            await asyncio.sleep(0.3)
        else:
            await until(lambda: self.trace.counts().offered >= offered)

    async def connected(self, connects: int) -> None:
        """Wait until the relay has connected so many times."""
        await until(lambda: self.group.stats()[0].reconnects >= connects - 1)

    async def stop(self) -> None:
        """Drain and close."""
        await self.group.stop(5.0)
        await asyncio.to_thread(self.trace.release)


def explained(folder: Path) -> GapReport:
    """Explain the trace."""
    return report_gaps(find_segments(folder))


def test_numbers_skipped_while_connected_are_the_socket(tmp_path: Path) -> None:
    """LEDGER-08, LEDGER-10: A publisher whose socket dropped messages has used up their numbers."""
    publisher = Publisher()

    async def main() -> int:
        recorder = Recorder(tmp_path, publisher)
        number = await recorder.start()
        before = recorder.trace.counts().offered
        publisher.send(number, number + 5, number + 6)
        await recorder.has(before + 3)
        await recorder.stop()
        return number

    number = asyncio.run(main())
    publisher.end()

    (gap,) = explained(tmp_path).gaps
    assert (gap.first, gap.last, gap.cause) == (number + 1, number + 4, Cause.SOCKET)


def test_numbers_skipped_across_a_new_connection_are_the_wire(tmp_path: Path) -> None:
    """LEDGER-08, LEDGER-10: A publisher that was away for a moment went on counting meanwhile."""
    publisher = Publisher()

    async def main() -> int:
        recorder = Recorder(tmp_path, publisher)
        number = await recorder.start()
        before = recorder.trace.counts().offered
        publisher.close()
        publisher.open()
        await recorder.connected(2)
        await asyncio.sleep(0.3)  # its subscription has arrived
        publisher.send(number + 7, number + 8)
        await recorder.has(before + 2)
        await recorder.stop()
        return number

    number = asyncio.run(main())
    publisher.end()

    (gap,) = explained(tmp_path).gaps
    assert (gap.first, gap.last, gap.cause) == (number, number + 6, Cause.WIRE)
    (run,) = read_ledger(find_segments(tmp_path)).runs
    kinds = [event.kind for event in run.events]
    assert kinds[:2] == [EventKind.CONNECTED, EventKind.DISCONNECTED]
    assert kinds.count(EventKind.WIRE_GAP) == 1


def test_a_publisher_that_begins_again_is_a_restart(tmp_path: Path) -> None:
    """LEDGER-08, LEDGER-10: Its first numbers came before the relay had connected again."""
    publisher = Publisher()

    async def main() -> None:
        recorder = Recorder(tmp_path, publisher)
        number = await recorder.start(first=100)
        before = recorder.trace.counts().offered
        publisher.close()
        publisher.open()
        await recorder.connected(2)
        await asyncio.sleep(0.3)
        publisher.send(3, 4)
        await recorder.has(before + 2)
        await recorder.stop()
        assert number > 100

    asyncio.run(main())
    publisher.end()

    found = explained(tmp_path)
    (gap,) = found.gaps
    assert (gap.first, gap.last, gap.cause) == (0, 2, Cause.RESTART)
    assert "its last number was 1" in gap.evidence


def test_a_recorder_that_stood_still_says_so(tmp_path: Path) -> None:
    """LEDGER-08: A relay that is not at work for seconds tells how long, and the report repeats it."""
    publisher = Publisher()

    async def main() -> None:
        recorder = Recorder(tmp_path, publisher)
        number = await recorder.start()
        before = recorder.trace.counts().offered
        relay: Relay = recorder.group._relays[0]
        now = recorder.group._clock.monotonic()
        relay.turn(now + STALL_SECONDS + 1.0, 1024)  # as if the event loop had been away until then
        publisher.send(number + 2)
        await recorder.has(before + 1)
        await recorder.stop()

    asyncio.run(main())
    publisher.end()

    (gap,) = explained(tmp_path).gaps
    assert gap.cause is Cause.SOCKET
    assert "had stood still for 3." in gap.evidence

"""Knows discovery through etcd: records under a lease, and watches that survive the server's absence.

A record lives on a lease of its own that is refreshed three times in its length; where the lease was lost
(the server was away for longer, or was set up anew) the record is written again. A watch that breaks lists
everything again, so no change is missed. The stubs of the library are used rather than its client, whose
watch does not say when it is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

from forwardpass.errors import ConfigError, MissingExtra, PlaneUnavailable
from forwardpass.plane.discovery.base import MAX_RECORD_BYTES, MAX_RECORDS, MAX_WATCH_BYTES
from forwardpass.plane.discovery.changes import RecordChanges
from forwardpass.quiet import QuietLog

__all__ = ["EtcdDiscovery", "parse_servers"]

logger = logging.getLogger(__name__)

CALL_SECONDS = 5.0
"""Longest wait for one answer."""
CLOSE_SECONDS = 1.0
RETRY_SECONDS = (0.2, 5.0)
"""First and longest wait before a failed call is made again."""
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_WATCH_BYTES),  # 4 MiB by default: some dozens of model cards
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),  # two minutes by default: no watch for so long
    ("grpc.keepalive_time_ms", 10_000),  # a watch is silent for hours, and so is a cut cable
    ("grpc.keepalive_timeout_ms", 5_000),
)
_SERVER = re.compile(r"(?:http://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})/?\Z")
_ACCEPTED = "etcd servers as http://HOST:PORT, with commas between them (TLS is not supported)"


def parse_servers(text: str, variable: str) -> tuple[str, ...]:
    """Return ``HOST:PORT`` of each server; raises :class:`ConfigError` naming ``variable``."""
    servers = []
    for one in text.split(","):
        match = _SERVER.match(one.strip())
        if match is None or not 0 < int(match["port"]) < 65536:
            raise ConfigError(variable, text, _ACCEPTED)
        servers.append(f"{match['host']}:{match['port']}")
    return tuple(servers)


def _rpc() -> Any:
    try:
        from aetcd import rpc
    except ImportError as error:
        raise MissingExtra("aetcd", "etcd") from error
    return rpc


class EtcdDiscovery:
    """Discovery in the etcd at the first of ``servers`` that answers. Raises :class:`MissingExtra`."""

    def __init__(self, servers: tuple[str, ...], lease_seconds: int) -> None:
        self._rpc = _rpc()
        self._servers = servers
        self._lease_seconds = lease_seconds
        self._warnings = QuietLog(logger)
        self._channel: Any = None
        self._left: list[Any] = []
        self._registrations: list[_EtcdRegistration] = []
        self._watches: list[RecordChanges] = []

    async def register(self, bucket: str, path: str, value: bytes) -> _EtcdRegistration:
        """Write a record under a lease and keep it. Raises as the protocol says."""
        await self._connect()
        registration = _EtcdRegistration(self, f"{bucket}/{path}".encode(errors="surrogatepass"), value)
        try:
            await registration.write(fresh=True)
        except self._rpc.AioRpcError as error:
            await registration.close()  # the answer may be what was lost
            raise self._unavailable(error) from error
        registration.start()
        self._registrations.append(registration)
        return registration

    async def watch(self, bucket: str, prefix: str) -> RecordChanges:
        """Watch the records under ``prefix``. Raises as the protocol says."""
        await self._connect()
        watch = _EtcdWatch(self, f"{bucket}/", prefix)
        try:
            revision = await watch.list()
        except self._rpc.AioRpcError as error:
            raise self._unavailable(error) from error
        watch.start(revision)
        self._watches.append(watch.changes)
        return watch.changes

    async def close(self) -> None:
        """Take every record away and end every watch. Idempotent."""
        await asyncio.gather(*(registration.close() for registration in self._registrations))
        for changes in self._watches:
            await changes.close()
        channels, self._left = [*self._left, self._channel], []
        self._channel = None
        for channel in filter(None, channels):
            await channel.close()

    # --- for the records and watches below ---------------------------------------------------------

    @property
    def rpc(self) -> Any:
        """The library's messages and stubs."""
        return self._rpc

    @property
    def lease_seconds(self) -> int:
        """Length of a lease that is asked for."""
        return self._lease_seconds

    def stub(self, name: str) -> Any:
        """Return a client of one of etcd's services."""
        return getattr(self._rpc, f"{name}Stub")(self._channel)

    async def recover(self, error: Exception) -> None:
        """Say, seldom, that a call failed, and turn to another server if this one does not answer."""
        self._warnings.warning("etcd", str(self._unavailable(error)))
        if len(self._servers) == 1 or self._channel is None or await self._answers(self._channel) is None:
            return
        with contextlib.suppress(PlaneUnavailable):
            left = self._channel
            self._channel = await self._first_that_answers()
            self._left.append(left)  # closed at the end: closing cancels those who still wait for it

    async def _connect(self) -> None:
        """Open a channel to the first server that answers; raises :class:`PlaneUnavailable`."""
        if self._channel is None:
            self._channel = await self._first_that_answers()

    async def _first_that_answers(self) -> Any:
        failure: Exception | None = None
        for server in self._servers:
            channel = self._rpc.insecure_channel(server, options=_CHANNEL_OPTIONS)
            failure = await self._answers(channel)
            if failure is None:
                return channel
            await channel.close()
        raise self._unavailable(failure)

    async def _answers(self, channel: Any) -> Any:
        """Return why the server does not answer, or ``None`` if it does."""
        try:
            await self._rpc.MaintenanceStub(channel).Status(
                self._rpc.StatusRequest(), timeout=CALL_SECONDS / len(self._servers)
            )
        except self._rpc.AioRpcError as error:
            return error
        return None

    def _unavailable(self, error: Exception | None) -> PlaneUnavailable:
        reason = error.code().name if isinstance(error, self._rpc.AioRpcError) else type(error).__name__
        return PlaneUnavailable(f"etcd at {', '.join(self._servers)}: {reason}")


class _EtcdRegistration:
    """One record under a lease of its own."""

    def __init__(self, etcd: EtcdDiscovery, key: bytes, value: bytes) -> None:
        self._etcd = etcd
        self._key = key
        self._value = value
        self._lease = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def write(self, *, fresh: bool = False) -> None:
        """Grant a lease and put the record under it; a ``fresh`` one must not be there yet."""
        rpc = self._etcd.rpc
        granted = await self._etcd.stub("Lease").LeaseGrant(
            rpc.LeaseGrantRequest(TTL=self._etcd.lease_seconds), timeout=CALL_SECONDS
        )
        self._lease = granted.ID  # before the record is there: a close in between gives back both
        put = rpc.PutRequest(key=self._key, value=self._value, lease=granted.ID)
        absent = rpc.Compare(key=self._key, target=rpc.Compare.VERSION, result=rpc.Compare.EQUAL, version=0)
        answer = await self._etcd.stub("KV").Txn(
            rpc.TxnRequest(compare=[absent] if fresh else [], success=[rpc.RequestOp(request_put=put)]),
            timeout=CALL_SECONDS,
        )
        if not answer.succeeded:
            await self._revoke()
            raise PlaneUnavailable(f"etcd has a record {self._key.decode(errors='replace')!r} already")

    def start(self) -> None:
        """Keep the lease alive from now on."""
        self._task = asyncio.create_task(self._keep(), name="forwardpass etcd lease")

    async def close(self) -> None:
        """Give the lease back, and with it the record. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._revoke()

    async def _revoke(self) -> None:
        rpc = self._etcd.rpc
        with contextlib.suppress(rpc.AioRpcError):  # then it ends by itself
            await self._etcd.stub("Lease").LeaseRevoke(
                rpc.LeaseRevokeRequest(ID=self._lease), timeout=CLOSE_SECONDS
            )

    async def _keep(self) -> None:
        pause = self._etcd.lease_seconds / 3
        wait = pause
        while True:
            await asyncio.sleep(wait)
            try:
                if not await self._refreshed():
                    await self.write()
                wait = pause
            except self._etcd.rpc.AioRpcError as error:
                await self._etcd.recover(error)
                wait = min(pause, 1.0)

    async def _refreshed(self) -> bool:
        """Refresh the lease; False where the server does not know it any more."""
        rpc = self._etcd.rpc
        call = self._etcd.stub("Lease").LeaseKeepAlive(
            iter([rpc.LeaseKeepAliveRequest(ID=self._lease)]), timeout=CALL_SECONDS
        )
        try:
            async for answer in call:
                return bool(answer.TTL > 0)
            return False
        finally:
            call.cancel()


class _EtcdWatch:
    """One watched prefix."""

    def __init__(self, etcd: EtcdDiscovery, bucket: str, prefix: str) -> None:
        self.changes = RecordChanges(self._stop)
        self._etcd = etcd
        self._bucket = bucket
        self._first = f"{bucket}{prefix}".encode(errors="surrogatepass")
        # the first key that does not begin so: no path ends in 0xff, which is not in UTF-8
        self._end = self._first[:-1] + bytes([self._first[-1] + 1])
        self._task: asyncio.Task[None] | None = None

    async def list(self) -> int:
        """Take note of everything that is there; returns the revision that shows it."""
        rpc = self._etcd.rpc
        answer = await self._etcd.stub("KV").Range(
            rpc.RangeRequest(key=self._first, range_end=self._end, limit=MAX_RECORDS), timeout=CALL_SECONDS
        )
        self.changes.replace_all(
            {self._path(kv.key): kv.value for kv in answer.kvs if len(kv.value) <= MAX_RECORD_BYTES}
        )
        return int(answer.header.revision)

    def start(self, revision: int) -> None:
        """Watch from what ``list`` returned on."""
        self._task = asyncio.create_task(self._run(revision), name="forwardpass etcd watch")

    async def _run(self, revision: int) -> None:
        wait, longest = RETRY_SECONDS
        while True:
            try:
                await self._follow(revision + 1)
            except self._etcd.rpc.AioRpcError as error:
                await self._etcd.recover(error)
            try:
                await asyncio.sleep(wait)
                revision = await self.list()
                wait = RETRY_SECONDS[0]
            except self._etcd.rpc.AioRpcError as error:
                await self._etcd.recover(error)
                wait = min(longest, wait * 2)

    async def _follow(self, revision: int) -> None:
        """Take note of changes until the stream of them ends."""
        rpc = self._etcd.rpc
        create = rpc.WatchCreateRequest(key=self._first, range_end=self._end, start_revision=revision)
        asked = asyncio.Event()  # never set: ending the requests would end the watch

        async def requests() -> AsyncIterator[Any]:
            yield rpc.WatchRequest(create_request=create)
            await asked.wait()

        async for answer in self._etcd.stub("Watch").Watch(requests()):
            for event in answer.events:
                if event.type == rpc.Event.DELETE:
                    self.changes.remove(self._path(event.kv.key))
                elif len(event.kv.value) <= MAX_RECORD_BYTES:
                    self.changes.put(self._path(event.kv.key), event.kv.value)
            if answer.canceled:  # by compaction: what was missed is seen by listing again
                return

    def _path(self, key: bytes) -> str:
        return key.decode("utf-8", "replace").removeprefix(self._bucket)

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

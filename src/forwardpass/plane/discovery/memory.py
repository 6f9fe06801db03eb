"""Knows discovery inside one process: ``mem:NAME``. For tests, and where all programs share a process."""

from __future__ import annotations

from weakref import WeakValueDictionary

from forwardpass.errors import PlaneUnavailable
from forwardpass.plane.discovery.changes import RecordChanges

__all__ = ["MemoryDiscovery", "MemoryStore", "memory_store"]

_stores: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()


class MemoryStore:
    """The records of one name. It lives as long as someone holds it."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], bytes] = {}
        self._watches: list[tuple[str, str, RecordChanges]] = []

    def add(self, bucket: str, path: str, value: bytes) -> None:
        """Write a record; raises :class:`PlaneUnavailable` where the path is taken."""
        if (bucket, path) in self._records:
            raise PlaneUnavailable(f"discovery has a record {path} already")
        self._records[bucket, path] = value
        for changes in self._watching(bucket, path):
            changes.put(path, value)

    def drop(self, bucket: str, path: str) -> None:
        """Take a record away."""
        self._records.pop((bucket, path), None)
        for changes in self._watching(bucket, path):
            changes.remove(path)

    def attach(self, bucket: str, prefix: str, changes: RecordChanges) -> None:
        """Tell ``changes`` of the records under ``prefix``, now and from now on."""
        self._watches.append((bucket, prefix, changes))
        for (home, path), value in self._records.items():
            if home == bucket and path.startswith(prefix):
                changes.put(path, value)

    def detach(self, changes: RecordChanges) -> None:
        """Tell ``changes`` nothing more."""
        self._watches = [watch for watch in self._watches if watch[2] is not changes]

    def _watching(self, bucket: str, path: str) -> list[RecordChanges]:
        return [
            changes for home, prefix, changes in self._watches if home == bucket and path.startswith(prefix)
        ]


def memory_store(name: str) -> MemoryStore:
    """Return the store called ``name`` of this process, made on first use."""
    store = _stores.get(name)
    if store is None:
        store = _stores[name] = MemoryStore()
    return store


class _MemoryRegistration:
    def __init__(self, store: MemoryStore, bucket: str, path: str) -> None:
        self._store = store
        self._where = bucket, path
        self._closed = False

    async def close(self) -> None:
        """Take the record away. Idempotent."""
        if not self._closed:
            self._closed = True
            self._store.drop(*self._where)


class MemoryDiscovery:
    """A client of one :class:`MemoryStore`."""

    def __init__(self, name: str) -> None:
        self._store = memory_store(name)
        self._registrations: list[_MemoryRegistration] = []
        self._watches: list[RecordChanges] = []

    async def register(self, bucket: str, path: str, value: bytes) -> _MemoryRegistration:
        """Write a record. Raises as the protocol says."""
        self._store.add(bucket, path, value)
        registration = _MemoryRegistration(self._store, bucket, path)
        self._registrations.append(registration)
        return registration

    async def watch(self, bucket: str, prefix: str) -> RecordChanges:
        """Watch the records under ``prefix``."""

        async def stop() -> None:
            self._store.detach(changes)

        changes = RecordChanges(stop)
        self._store.attach(bucket, prefix, changes)
        self._watches.append(changes)
        return changes

    async def close(self) -> None:
        """Take every record away and end every watch. Idempotent."""
        for registration in self._registrations:
            await registration.close()
        for changes in self._watches:
            await changes.close()

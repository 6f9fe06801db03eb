"""Knows which discovery backend a text or the environment names, and opens it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from forwardpass.config import plane_variables as v
from forwardpass.errors import ConfigError
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery.base import Discovery
from forwardpass.plane.discovery.etcd import EtcdDiscovery, parse_servers
from forwardpass.plane.discovery.file import FileDiscovery
from forwardpass.plane.discovery.memory import MemoryDiscovery

__all__ = ["ACCEPTED", "open_discovery"]

ACCEPTED = "file[:FOLDER], etcd[:HOST:PORT,…] or mem:NAME"
_NO_KUBERNETES = (
    "etcd, file or mem. Kubernetes discovery is not supported: use the NATS plane (DYN_EVENT_PLANE=nats), or "
    "name the publishers' addresses (FORWARDPASS_PLANE=zmq+tcp://HOST:PORT)"
)


def open_discovery(text: str, context: PlaneContext) -> Discovery:
    """Return a client of the backend in ``text`` (see ``ACCEPTED``); nothing is contacted yet.

    What ``text`` leaves out, the whole backend included, is taken from the variables of Dynamo:
    ``DYN_DISCOVERY_BACKEND`` (etcd by default), ``DYN_FILE_KV``, ``ETCD_ENDPOINTS``. Raises
    :class:`ConfigError`.
    """
    if not text:
        text = context.sources.value(v.DISCOVERY_BACKEND) or "etcd"
        if text == "kubernetes":
            raise ConfigError(v.DISCOVERY_BACKEND.name, text, _NO_KUBERNETES)
    backend, _, rest = text.partition(":")
    if backend == "file":
        return FileDiscovery(_folder(rest, context), context.clock)
    if backend == "etcd":
        return _etcd(rest, context)
    name = rest.strip("/ ") or ("dynamo" if text == "mem" else "")
    if backend == "mem" and name:
        return MemoryDiscovery(name)
    raise ConfigError("discovery", text, ACCEPTED)


def _folder(rest: str, context: PlaneContext) -> Path:
    given = rest.removeprefix("//") or context.sources.value(v.FILE_KV)
    if "\0" in given:
        raise ConfigError("discovery", rest, "a folder")
    return Path(given) if given else Path(tempfile.gettempdir()) / "dynamo_store_kv"


def _etcd(rest: str, context: PlaneContext) -> EtcdDiscovery:
    given = rest.removeprefix("//")
    servers = given or context.sources.value(v.ETCD_ENDPOINTS)
    variable = "discovery" if given else v.ETCD_ENDPOINTS.name
    return EtcdDiscovery(parse_servers(servers, variable), context.sources.value(v.ETCD_LEASE_TTL))

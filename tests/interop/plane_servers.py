"""Runs the servers that the ZMQ plane may need: etcd, and plain brokers. Each is killed at the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from forwardpass.testing.ports import free_port

PROXY = Path(__file__).parent / "peers" / "zmq_proxy.py"
START_SECONDS = 30.0
ETCD = shutil.which("etcd", path=sysconfig.get_path("scripts"))


class Etcd:
    """One etcd server on ports of its own; what it holds lasts from one start to the next."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> str:
        """Its address, ``HOST:PORT``."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert ETCD is not None
        client, other = (f"http://127.0.0.1:{port}" for port in (self._port, self._port + 1))
        words = (
            f"--data-dir={self._folder} --listen-client-urls={client} --advertise-client-urls={client} "
            f"--listen-peer-urls={other} --initial-advertise-peer-urls={other} "
            f"--initial-cluster=default={other} --log-level=error"
        )
        self._process = subprocess.Popen(
            [ETCD, *words.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_SECONDS
        while not _is_healthy(f"{client}/health"):
            assert time.monotonic() < until, "etcd does not answer"
            assert self._process.poll() is None, "etcd ended"
            time.sleep(0.05)

    def revoke_all_leases(self) -> None:
        """Forget every lease, and with it the records under it."""
        assert ETCD is not None
        control = [str(Path(ETCD).with_name("etcdctl")), f"--endpoints={self.server}", "lease"]
        env = {"ETCDCTL_API": "3"}
        listed = subprocess.run([*control, "list"], env=env, capture_output=True, text=True, check=True)
        for lease in listed.stdout.splitlines()[1:]:  # the first line counts them
            subprocess.run([*control, "revoke", lease], env=env, capture_output=True, check=True)

    def stop(self) -> None:
        """Kill it. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None


def _is_healthy(url: str) -> bool:
    try:
        with urlopen(url, timeout=1.0) as answer:
            return b"true" in answer.read()
    except (URLError, OSError):
        return False


@contextmanager
def brokers(count: int = 1) -> Iterator[str]:
    """Run brokers side by side; yields what ``DYN_ZMQ_BROKER_URL`` says of them."""
    first = free_port(2 * count)
    pairs = [(first + 2 * number, first + 2 * number + 1) for number in range(count)]
    running: list[subprocess.Popen[str]] = []
    try:
        for pair in pairs:
            process = subprocess.Popen(
                [sys.executable, str(PROXY), *map(str, pair)], stdout=subprocess.PIPE, text=True
            )
            running.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        xsub, xpub = (";".join(f"tcp://127.0.0.1:{pair[side]}" for pair in pairs) for side in (0, 1))
        yield f"xsub={xsub} , xpub={xpub}"
    finally:
        for process in running:
            process.kill()
            process.wait(START_SECONDS)
            assert process.stdout is not None
            process.stdout.close()

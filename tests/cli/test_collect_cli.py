"""``forwardpass collect`` as a process: what it says, writes and returns."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats")

import nats

from forwardpass.config.settings import Sources
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import subject
from forwardpass.plane.nats.consumer import open_consumer
from forwardpass.plane.nats.stream import StreamSettings
from forwardpass.testing.nats_server import NatsServer, find_nats_server, nats_server
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import TraceReader
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics

pytestmark = pytest.mark.skipif(find_nats_server() is None, reason="nats-server is not installed")


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """Run a server with JetStream and a password."""
    with nats_server(jetstream=True, config='authorization { user: me, password: "hunter2" }') as running:
        yield running


def url_of(server: NatsServer) -> str:
    """Return the URL with the password."""
    return f"nats://me:hunter2@127.0.0.1:{server.port}"


def command(*arguments: str) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "forwardpass", "collect", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)


def make_stream(server: NatsServer) -> None:
    """Make stream and consumer, as the first collector does."""

    async def make() -> None:
        consumer = await open_consumer(url_of(server), StreamSettings(), PlaneContext(Sources({})))
        await consumer.close()

    asyncio.run(make())


def publish(server: NatsServer, publisher: int, numbers: range, component: str = "c") -> None:
    """Send messages into the stream that is there."""

    async def send() -> None:
        client = await nats.connect(url_of(server))
        for number in numbers:
            body = encode(ForwardPassMetrics(worker_id=f"w{publisher}", counter_id=number, wall_time=0.1))
            where = subject(Endpoint("ns", component, "gen"))
            await client.publish(where, encode_envelope(publisher, number, 1, body))
        await client.close()

    asyncio.run(send())


def test_it_ends_in_good_order(server: NatsServer, tmp_path: Path) -> None:
    """COLLECT-09: SIGTERM lets the last batch be written and acknowledged; what was done is JSON on stdout,
    and no password is anywhere.
    """
    words = tmp_path / "words"
    arguments = ["--nats", url_of(server), "--output", str(tmp_path / "t"), "--name", "a", "--json"]
    with words.open("w") as stderr:
        process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        end = time.monotonic() + 30
        while "Ctrl-C stops" not in words.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        publish(server, 1, range(100))
        while not list(tmp_path.glob("t.a.*")):
            assert time.monotonic() < end
            time.sleep(0.02)
        publish(server, 1, range(100, 150))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    document: dict[str, Any] = json.loads(out)

    assert process.returncode == 0
    assert document["received"] == document["written"] == document["acknowledged"] >= 100
    assert len(document["files"]) == 1
    assert len(list(TraceReader(tmp_path / "t"))) == document["written"]
    assert "nats://***@127.0.0.1" in words.read_text()
    assert "hunter2" not in words.read_text() + out


def test_the_rest_is_left_to_the_next(server: NatsServer, tmp_path: Path) -> None:
    """COLLECT-09: Nothing arrived is code 1; what came later is collected by the next one, with a line that
    says what was done.
    """
    arguments = ["--nats", url_of(server), "--output", str(tmp_path / "t"), "--until-empty"]
    empty = run(*arguments)
    publish(server, 1, range(10))
    full = run(*arguments)

    assert empty.returncode == 1
    assert full.returncode == 0
    assert full.stderr.splitlines()[-1] == "received 10; wrote 10 rows in 1 file; acknowledged 10"


def test_parquet(server: NatsServer, tmp_path: Path) -> None:
    """COLLECT-10: A dataset has the rows in folders by endpoint and date, with the message of each; a query
    drops what stands in it twice.
    """
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    arguments = ["--nats", url_of(server), "--format", "parquet", "--output", str(tmp_path / "set")]
    make_stream(server)
    publish(server, 1, range(10), "c/1")
    publish(server, 2, range(10), "d")
    first = run(*arguments, "--until-empty", "--name", "a", "--json")
    known = run(*arguments, "--until-empty", "--name", "b", "--durable", "other", "--json")
    elsewhere = [*arguments[:-1], str(tmp_path / "set2"), "--until-empty", "--durable", "third", "--json"]
    run(*elsewhere)
    (tmp_path / "set2").rename(tmp_path / "set" / "copy")  # as if two hosts had written the same messages
    pattern = str(tmp_path / "set" / "**" / "*.parquet")
    query = (
        "SELECT worker_id, count(*), count(DISTINCT counter_id) FROM "
        "(SELECT DISTINCT ON (producer_id, message_sequence) * FROM "
        f"read_parquet('{pattern}', hive_partitioning = false)) GROUP BY 1 ORDER BY 1"
    )

    assert json.loads(first.stdout)["written"] == 20
    assert json.loads(known.stdout)["duplicates"] == 20
    folders = sorted(
        path.parent.relative_to(tmp_path / "set").parts for path in (tmp_path / "set").glob("n*/*/*/*")
    )
    assert [parts[:2] for parts in folders] == [
        ("namespace=ns", "component=c%2F1"),
        ("namespace=ns", "component=d"),
    ]
    assert duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{pattern}', hive_partitioning = false)"
    ).fetchall() == [(40,)]
    assert duckdb.sql(query).fetchall() == [("w1", 10, 10), ("w2", 10, 10)]


def test_a_disk_that_refuses(server: NatsServer, tmp_path: Path) -> None:
    """COLLECT-02: Rows that cannot be written are not acknowledged, and code 4 says that some were left."""
    arguments = ["--nats", url_of(server), "--output", str(tmp_path / "t"), "--json"]
    make_stream(server)
    publish(server, 1, range(200))

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))  # enough for the probe, not for rows

    full = subprocess.run(
        command(*arguments, "--seconds", "1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=small_disk,
    )
    document = json.loads(full.stdout)

    assert full.returncode == 4
    assert document["received"] == document["not_written"] == 200
    assert (document["written"], document["acknowledged"]) == (0, 0)
    assert "cannot be written" in full.stderr


def test_what_cannot_be_reached_or_written(server: NatsServer, tmp_path: Path) -> None:
    """An absent server, a wrong password and a folder that is a file end with code 3 and one line."""
    (tmp_path / "file").write_text("")
    good = ["--output", str(tmp_path / "t"), "--quiet"]
    absent = run("--nats", f"nats://127.0.0.1:{free_port()}", *good)
    wrong = run("--nats", f"nats://me:other@127.0.0.1:{server.port}", *good)
    nowhere = run("--nats", url_of(server), "--output", str(tmp_path / "file" / "t"))

    assert (absent.returncode, wrong.returncode, nowhere.returncode) == (3, 3, 3)
    for done, words in ((absent, "no NATS server"), (wrong, "uthorization"), (nowhere, "is not a folder")):
        (line,) = done.stderr.splitlines()
        assert words in line
    assert "other" not in wrong.stderr

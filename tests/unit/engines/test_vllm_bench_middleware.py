"""The middleware that holds a server until its engine is measured, spoken to as an ASGI server does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_client import Client, leave_files, order

from forwardpass.bench.handover import Handover, Outcome, Verdict
from forwardpass.config.handover import BENCH_FOLDER
from forwardpass.engines.vllm.bench_middleware import PATHS, SelfBenchmark

STARTED, FAILED = "lifespan.startup.complete", "lifespan.startup.failed"


class App:
    """The application behind it: says what reached it, and how."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope.get("path", scope["type"]))
        if scope["type"] == "lifespan":
            message = await receive()
            await send({"type": f"{message['type']}.complete"})


async def start(middleware: SelfBenchmark, client: Any) -> list[dict[str, Any]]:
    """Announce a start and return what was answered."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    app = SimpleNamespace(state=SimpleNamespace(engine_client=client))
    await middleware({"type": "lifespan", "app": app}, receive, send)
    return sent


async def ask(middleware: SelfBenchmark, path: str, method: str = "GET", root: str = "") -> tuple[int, bytes]:
    """Send a request and return status and body; status 0 if the application got it."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing is read of a request")

    async def send(message: Any) -> None:
        sent.append(message)

    await middleware({"type": "http", "path": path, "method": method, "root_path": root}, receive, send)
    return (sent[0]["status"], sent[1]["body"]) if sent else (0, b"")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Handover:
    """Return the folder of a launch, with an order and the rank's file."""
    place = tmp_path / "launch"
    place.mkdir()
    monkeypatch.setenv(BENCH_FOLDER, str(place))
    handover = Handover(place)
    handover.give(order(tmp_path / "bench.json"))
    return handover


def test_a_server_without_a_benchmark_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """BVLLM-43: It starts, serves, and says at the paths that there is nothing."""
    monkeypatch.delenv(BENCH_FOLDER, raising=False)

    async def run() -> None:
        app = App()
        middleware = SelfBenchmark(app)
        assert [message["type"] for message in await start(middleware, Client())] == [STARTED]
        assert (await ask(middleware, "/v1/models"))[0] == 0
        status, body = await ask(middleware, "/fpm/perf_metrics")
        assert (status, json.loads(body)["status"]) == (404, "error")
        assert app.seen == ["lifespan", "/v1/models"]

    asyncio.run(run())


def test_the_start_is_held_and_the_result_served(folder: Handover, tmp_path: Path) -> None:
    """BVLLM-42, BVLLM-43: The start goes on when the files are there; both paths have the document."""

    async def run() -> None:
        app, client = App(), Client()
        middleware = SelfBenchmark(app)
        starting = asyncio.create_task(start(middleware, client))
        await asyncio.sleep(0.3)
        assert folder.led
        assert not app.seen
        leave_files(tmp_path / "bench.json")
        assert [message["type"] for message in await starting] == [STARTED]
        bodies = [await ask(middleware, path) for path in sorted(PATHS)]
        assert {status for status, _ in bodies} == {200}
        assert len({body for _, body in bodies}) == 1
        assert (
            json.loads(bodies[0][1])["engine"]["resolution"] == "worker_probe_partial"
        )  # made up: sizes unknown
        assert await ask(middleware, "/proxy/fpm/perf_metrics", root="/proxy") == bodies[0]
        assert await ask(middleware, "/fpm/perf_metrics", "HEAD") == (200, b"")
        assert (await ask(middleware, "/fpm/perf_metrics", "POST"))[0] == 405

    asyncio.run(run())
    outcome = folder.outcome()
    assert outcome is not None
    assert outcome.serving


def test_one_of_several_servers_leads(folder: Handover, tmp_path: Path) -> None:
    """BVLLM-42, PIT-42: The others wait for its word, serve the same, and drop the statistics of their
    own.
    """
    leave_files(tmp_path / "bench.json")

    async def run() -> None:
        clients = [Client(), Client(), Client()]
        servers = [SelfBenchmark(App()) for _ in clients]
        answers = await asyncio.gather(*map(start, servers, clients))
        assert [[message["type"] for message in answer] for answer in answers] == [[STARTED]] * 3
        assert len({body for _, body in [await ask(server, "/fpm/perf_metrics") for server in servers]}) == 1
        assert sorted(len(client.calls) for client in clients) == [0, 0, 2]
        assert all(each.cudagraph_logging is None for client in clients for each in client.loggers)

    asyncio.run(run())


def test_a_server_that_is_not_to_serve_says_why(folder: Handover, tmp_path: Path) -> None:
    """BVLLM-45: The ASGI server is told that the start failed, in words; the application never starts."""
    leave_files(tmp_path / "bench.json", status="failed", error="it was too hot")

    async def run() -> None:
        app = App()
        (answer,) = await start(SelfBenchmark(app), Client())
        assert answer["type"] == FAILED
        assert "it was too hot" in answer["message"]
        assert not app.seen

    asyncio.run(run())


def test_a_mistake_of_ours_does_not_serve_either(folder: Handover) -> None:
    """BVLLM-45: Whatever is raised, the start has failed, and the other servers need not wait for ever."""

    async def run() -> None:
        (answer,) = await start(SelfBenchmark(App()), object())
        assert answer["type"] == FAILED

    asyncio.run(run())
    outcome = folder.outcome()
    assert outcome is not None
    assert (outcome.verdict, outcome.serving) == (Verdict.FAILED, False)


def test_a_server_that_starts_again_measures_nothing(folder: Handover) -> None:
    """BVLLM-40: Once it has ended nobody measures, and what was found is served."""
    folder.conclude(Outcome(Verdict.COMPLETE, serving=True), b'{"kept":true}')

    async def run() -> None:
        client = Client()
        middleware = SelfBenchmark(App())
        assert [message["type"] for message in await start(middleware, client)] == [STARTED]
        assert await ask(middleware, "/fpm/perf_metrics") == (200, b'{"kept":true}')
        assert client.calls == []

    asyncio.run(run())
    assert folder.order() is None

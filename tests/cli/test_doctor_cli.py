"""``forwardpass doctor`` beside real streams: who speaks at which port, and why nothing arrives."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from click.testing import CliRunner, Result

from forwardpass.cli.doctor import doctor
from forwardpass.cli.main import Exit
from forwardpass.config.settings import PublisherSettings
from forwardpass.config.variables import TABLE
from forwardpass.errors import ConfigError
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.testing.ports import free_port
from forwardpass.wire.schema import ForwardPassMetrics

CLEAN = dict.fromkeys((variable.name for variable in TABLE), None)
Publish = Callable[..., FpmPublisher]


def free_base() -> int:
    """Return a port with free ones next door, where the command looks as well."""
    return free_port(60) + 20


@pytest.fixture
def publish() -> Iterator[Publish]:
    """Return a function that starts a real stream, with quick heartbeats so that it speaks at once."""
    running: list[FpmPublisher] = []

    def start(base: int, rank: int = 0, worker_id: str = "4192", **settings: Any) -> FpmPublisher:
        chosen = PublisherSettings(
            base_port=base, worker_id=worker_id, heartbeat_interval_seconds=0.05, **settings
        )
        running.append(FpmPublisher(chosen, dp_rank=rank))
        return running[-1]

    yield start
    for publisher in running:
        publisher.shutdown()


def run(*arguments: object, environment: dict[str, str] | None = None) -> Result:
    """Run the command with none of our variables set but those given."""
    return CliRunner().invoke(
        doctor,
        [str(argument) for argument in arguments],
        env={**CLEAN, **(environment or {})},
        standalone_mode=False,
        catch_exceptions=False,
    )


def diagnose(
    *arguments: object, environment: dict[str, str] | None = None
) -> tuple[int, dict[str, list[dict[str, str]]], list[dict[str, Any]]]:
    """Return exit code, checks by name, and streams of the JSON output."""
    result = run("--json", *arguments, environment=environment)
    report = json.loads(result.stdout)
    checks: dict[str, list[dict[str, str]]] = {}
    for check in report["checks"]:
        checks.setdefault(check["name"], []).append(check)
    assert report["ok"] is (result.return_value == Exit.DONE)
    return result.return_value, checks, report["streams"]


def test_a_healthy_worker_passes(publish: Publish, tmp_path: Path) -> None:
    """Two ranks that speak, separate ports, a writable path: everything is ok, exit code 0."""
    base = free_base()
    publish(base, 0)
    publish(base, 1)

    code, checks, streams = diagnose("--port", base, "--ranks", 2, "--output", tmp_path / "fpm", "--wait", 3)

    assert code == Exit.DONE
    assert checks[f"rank 1, port {base + 1}"][0]["status"] == "ok"
    assert "worker 4192 reports rank 1" in checks[f"rank 1, port {base + 1}"][0]["found"]
    assert sorted((stream["port"], stream["dp_rank"]) for stream in streams) == [(base, 0), (base + 1, 1)]
    assert list(tmp_path.iterdir()) == []


def test_silence_is_a_finding_with_a_remedy() -> None:
    """Nothing listens and nothing was asked for: exit code 1, and the words to fix it."""
    base = free_base()

    code, checks, streams = diagnose("--port", base, "--wait", 0.2)

    assert code == Exit.FINDING
    assert streams == []
    assert checks["arrival"][0]["next_step"].startswith("start it with `forwardpass vllm serve MODEL")


def test_the_program_that_holds_the_port_is_named() -> None:
    """A listener that is no publisher is called by name and process id."""
    base = free_base()
    with socket.create_server(("127.0.0.1", base)):
        code, checks, _ = diagnose("--port", base, "--wait", 0.2)

    assert code == Exit.FINDING
    assert "(pid " in checks[f"rank 0, port {base}"][0]["found"]
    assert "whatever holds the port sends no forward passes" in checks["arrival"][0]["found"]


def test_a_stream_next_door_is_found(publish: Publish) -> None:
    """An engine on other ports than expected is found, and the right base port is proposed."""
    base = free_base()
    publish(base + 5, 0)

    code, checks, _ = diagnose("--port", base, "--wait", 1.5)

    assert code == Exit.FINDING
    assert f"DYN_FORWARDPASS_METRIC_PORT={base + 5}" in checks["arrival"][0]["next_step"]


def test_workers_whose_blocks_overlap_are_told_apart(publish: Publish) -> None:
    """A worker at the port of our synchroniser, or among our ranks, is a finding (D-14)."""
    base = free_base()
    publish(base, 0, worker_id="1")
    publish(base, 1, worker_id="1")
    publish(base + 2, 0, worker_id="2")

    code, checks, _ = diagnose("--port", base, "--ranks", 2, "--wait", 3)

    assert code == Exit.FINDING
    assert "worker 2" in checks["port blocks"][0]["found"]
    assert checks[f"synchroniser, port {base + 2}"][0]["status"] == "fail"


def test_a_rank_of_another_worker_at_our_port_is_a_finding(publish: Publish) -> None:
    """The rank that a stream reports has to be that of its port."""
    base = free_base()
    publish(base - 3, 3, worker_id="2")

    code, checks, _ = diagnose("--port", base, "--wait", 1.5)

    assert code == Exit.FINDING
    assert f"base port {base - 3}" in checks[f"rank 0, port {base}"][0]["found"]


def test_a_stream_bound_to_every_address_is_a_warning(publish: Publish) -> None:
    """It works, so the exit code stays 0, but whoever reaches the host can read it (D-9)."""
    base = free_base()
    publish(base, 0, bind_host="*")

    code, checks, _ = diagnose("--port", base, "--wait", 3)

    assert code == Exit.DONE
    assert checks["bind host"][0]["status"] == "warn"


def test_garbage_is_no_stream() -> None:
    """A publisher of something else is counted, not believed."""
    base = free_base()
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        other.setsockopt(zmq.LINGER, 0)
        other.bind(f"tcp://127.0.0.1:{base}")
        stop = pump_garbage(other)
        code, checks, streams = diagnose("--port", base, "--wait", 1.0)
        stop()

    assert code == Exit.FINDING
    found = checks[f"rank 0, port {base}"][0]["found"]
    assert "that cannot be read" in found
    assert "; the newest: " in found
    assert streams[0]["messages"] == 0
    assert streams[0]["bad"] > 0


def pump_garbage(publisher: zmq.Socket[bytes], payload: bytes | None = None) -> Callable[[], None]:
    """Send ``payload``, or what is no forward pass, every 20 ms until the returned function is called."""
    import threading

    done = threading.Event()

    def send() -> None:
        while not done.wait(0.02):
            publisher.send_multipart([b"", (7).to_bytes(8, "big"), payload or b"\xc1"])
            if payload is None:
                publisher.send_multipart([b"one", b"two"])

    thread = threading.Thread(target=send)
    thread.start()

    def stop() -> None:
        done.set()
        thread.join(5)

    return stop


def test_an_invalid_variable_is_a_finding(publish: Publish) -> None:
    """Even with a healthy stream, a setting that turns a feature off is shown."""
    base = free_base()
    publish(base)

    code, checks, _ = diagnose(
        "--port", base, "--wait", 3, environment={"DYN_FPM_TRACE": "1", "DYN_FPM_MODE": "x"}
    )

    assert code == Exit.FINDING
    assert "DYN_FPM_MODE='x'" in checks["variables"][0]["found"]
    assert checks["output path"][0]["status"] == "warn"


def test_an_output_path_that_cannot_be_written_is_a_finding(publish: Publish, tmp_path: Path) -> None:
    """The prefix may be below a file; nothing is created by looking."""
    base = free_base()
    publish(base)
    (tmp_path / "file").write_text("")

    code, checks, _ = diagnose(
        "--port", base, "--wait", 3, "--output", tmp_path / "file" / "fpm", environment={"DYN_FPM_TRACE": "1"}
    )

    assert code == Exit.FINDING
    assert checks["output path"][0]["status"] == "fail"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_does_not_exist_yet_is_not_made_by_looking(publish: Publish, tmp_path: Path) -> None:
    """The trace makes its folder; the doctor only finds out whether it could."""
    base = free_base()
    publish(base)

    _, checks, _ = diagnose("--port", base, "--wait", 3, "--output", tmp_path / "a" / "b" / "fpm")

    assert checks["output path"][0]["status"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_the_text_shows_each_check_and_its_next_step() -> None:
    """Without ``--json`` the same checks are lines on stdout, without colour; stderr stays empty."""
    result = run("--port", free_base(), "--wait", 0.2)

    assert result.return_value == Exit.FINDING
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert any(line.startswith("fail  arrival") for line in result.stdout.splitlines())
    assert "-> start it with `forwardpass vllm serve MODEL" in result.stdout


@pytest.mark.parametrize("block", ["x", "21000:0", "21000:", ":2", "21000:2:3"])
def test_a_block_that_is_none_is_wrong_use(block: str) -> None:
    """``--block`` wants a base port and a number of ranks."""
    with pytest.raises(ConfigError, match="21000:2") as caught:
        run("--block", block)

    assert (caught.value.variable, caught.value.value) == ("--block", block)


def test_an_unknown_version_is_told_from_garbage() -> None:
    """A stream of another schema version is named as that, so that nobody looks for a stranger."""
    base = free_base()
    payload = msgspec.msgpack.encode({**msgspec.to_builtins(ForwardPassMetrics()), "version": 99})
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        other.setsockopt(zmq.LINGER, 0)
        other.bind(f"tcp://127.0.0.1:{base}")
        stop = pump_garbage(other, payload)
        _, checks, _ = diagnose("--port", base, "--wait", 1.0)
        stop()

    assert "schema version 99" in checks[f"rank 0, port {base}"][0]["found"]


def test_a_worker_id_does_not_drive_the_terminal(publish: Publish) -> None:
    """A worker id from the network is shown short and without its control characters, in every check."""
    base = free_base()
    publish(base + 1, worker_id="w\x1b[31m" + "x" * 300)
    text = run("--port", base, "--ranks", 2, "--wait", 0.6).stdout

    assert "\x1b" not in text
    assert "worker w?[31m" in text
    assert "x" * 41 not in text


@pytest.mark.parametrize("plane", ["nosuch:x", "memory:m"])
def test_the_event_plane_is_looked_up(plane: str) -> None:
    """A plane that nobody provides fails with the planes that exist; one that exists is fine."""
    _, checks, _ = diagnose("--port", free_base(), "--wait", 0.1, environment={"FORWARDPASS_PLANE": plane})
    (check,) = checks["event plane"]

    assert check["status"] == ("ok" if plane == "memory:m" else "fail")
    assert plane in check["found"]


@pytest.mark.parametrize(("value", "status"), [("zmq", "ok"), ("ZMQ", "fail")])
def test_the_event_plane_of_a_deployment(value: str, status: str) -> None:
    """PLANE-30: A plane that Dynamo's variables choose is looked up too, and the variable is named; a wrong
    value fails.
    """
    _, checks, _ = diagnose("--port", free_base(), "--wait", 0.1, environment={"DYN_EVENT_PLANE": value})
    (check,) = checks["event plane"]

    assert check["status"] == status
    assert "DYN_EVENT_PLANE" in check["found"]

"""What importing the package and asking for help does not load."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "zmq", "asyncio", "click", "rich", "vllm", "torch", "numpy", "isal", "deflate", "nats", "pyarrow",
    "duckdb", "aetcd", "grpc",
}  # fmt: skip
SHOW = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"


def loaded_by(code: str) -> set[str]:
    """Run ``code`` in a fresh interpreter and return the top-level modules it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{SHOW}"], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_is_cheap() -> None:
    """``import forwardpass`` loads neither ZMQ, asyncio, the command line's libraries nor an engine."""
    assert not loaded_by("import forwardpass") & (HEAVY | {"msgspec", "logging"})


def test_public_names_load_no_more_than_they_need() -> None:
    """Using the codec loads msgspec, and still no socket and no engine."""
    loaded = loaded_by(
        "import forwardpass; forwardpass.decode(forwardpass.encode(forwardpass.ForwardPassMetrics()))"
    )

    assert "msgspec" in loaded
    assert not loaded & HEAVY


def test_planes_and_collectors_load_their_libraries_late() -> None:
    """The modules of the NATS plane and of collecting load nats-py and pyarrow only when they are used."""
    loaded = loaded_by(
        "import forwardpass.plane.nats, forwardpass.cli.collect, forwardpass.columnar.collected"
    )

    assert not loaded & {"nats", "nkeys", "pyarrow", "duckdb"}


def test_help_loads_no_command() -> None:
    """``forwardpass --help`` loads click, but no engine, socket, asyncio or rich."""
    loaded = loaded_by(
        "import sys; sys.argv = ['forwardpass', '--help']\n"
        "from forwardpass.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
    )

    assert "click" in loaded
    assert not loaded & (HEAVY - {"click"})


def test_the_zmq_plane_loads_no_client_of_a_server() -> None:
    """A plane on ZMQ needs no library but pyzmq, as long as nobody asks for etcd."""
    loaded = loaded_by("from forwardpass.plane.urls import find_plane\nfind_plane('zmq+file:/x')")

    assert "zmq" in loaded
    assert not loaded & {"aetcd", "grpc", "nats", "click"}

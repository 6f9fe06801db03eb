"""Where the publisher binds, and what happens when it cannot."""

from __future__ import annotations

import socket as sockets

import pytest
from raw_stream import (
    SILENT,
    join,
    one_pass,
    other_process_on,
    publishing,
    reading,
    run_script,
)

from forwardpass.config.settings import PublisherSettings
from forwardpass.errors import ConfigError, PortUnavailable
from forwardpass.publish.port_owner import ephemeral_range, port_owner
from forwardpass.publish.publisher import FpmPublisher, NullPublisher, open_publisher
from forwardpass.testing.ports import free_port
from forwardpass.wire.ports import PortBlock

# --- binding --------------------------------------------------------------------------------------


def test_each_rank_binds_base_plus_rank_on_loopback_only() -> None:
    """WIRE-35, WIRE-36, TRAP-27, D-9: rank 3 is at base + 3 of 127.0.0.1, and other addresses of the machine
    do not answer.
    """
    base = free_port(4)
    publisher = FpmPublisher(PublisherSettings(base_port=base), dp_rank=3)
    try:
        assert publisher.port == base + 3
        sockets.create_connection(("127.0.0.1", base + 3), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            sockets.create_connection(("127.0.0.2", base + 3), timeout=5)
    finally:
        publisher.shutdown(5)


@pytest.mark.parametrize(("host", "address"), [("*", "127.0.0.2"), ("127.0.0.2", "127.0.0.2")])
def test_another_host_is_bound_on_request(host: str, address: str) -> None:
    """WIRE-36, D-9: `*` answers on every address, a named one on that."""
    with publishing(bind_host=host) as publisher:
        connection = sockets.create_connection((address, publisher.port or 0), timeout=5)
        peer = connection.getpeername()
        connection.close()

        assert peer == (address, publisher.port)


def test_an_ipv6_host_is_bound_on_request() -> None:
    """WIRE-36, D-9: an IPv6 address works with and without brackets."""
    try:
        with sockets.socket(sockets.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    for host in ("::1", "[::1]"):
        with publishing(bind_host=host) as publisher:
            connection = sockets.create_connection(("::1", publisher.port or 0), timeout=5)
            peer = connection.getpeername()
            connection.close()

            assert peer[:2] == ("::1", publisher.port)


def test_a_taken_port_costs_the_metrics_and_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """WIRE-38, D-13: one error line names port, rank, variable and the process that has the port; then
    nothing.
    """
    port = free_port()
    with other_process_on(port) as process:
        publisher = open_publisher(PublisherSettings(base_port=port - 2), dp_rank=2)

        assert isinstance(publisher, NullPublisher)
        assert not publisher.publish(one_pass())
        assert len(caplog.records) == 1
        record = caplog.records[0]
        assert record.levelname == "ERROR"
        for fact in (f"port {port}", "rank 2", "DYN_FORWARDPASS_METRIC_PORT", f"(pid {process.pid})"):
            assert fact in record.getMessage()
        assert "\n" not in record.getMessage()


def test_a_taken_port_stops_a_strict_start() -> None:
    """WIRE-38, D-13: with FORWARDPASS_STRICT=1 the error is raised, with the facts as attributes."""
    port = free_port()
    with other_process_on(port) as process:
        with pytest.raises(PortUnavailable) as caught:
            open_publisher(PublisherSettings(base_port=port, strict=True), dp_rank=0)

        assert (caught.value.port, caught.value.variable) == (port, "DYN_FORWARDPASS_METRIC_PORT")
        assert caught.value.holder is not None
        assert caught.value.holder.endswith(f"(pid {process.pid})")


def test_two_publishers_cannot_share_a_port(caplog: pytest.LogCaptureFixture) -> None:
    """WIRE-38, TRAP-08: The second publisher of one port is off and names this process; the first goes on."""
    port = free_port()
    first = open_publisher(PublisherSettings(base_port=port, worker_id="1"), dp_rank=0)
    try:
        with reading(port) as reader:
            second = open_publisher(PublisherSettings(base_port=port), dp_rank=0)
            join(first, reader)

            assert isinstance(second, NullPublisher)
            assert port_owner(port) is not None
            assert (port_owner(port) or "") in caplog.text
    finally:
        first.shutdown(5)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "nosuchhost.invalid"])
def test_a_foreign_host_is_the_operators_error(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """D-13: an address that is not this machine's names the variable of the host."""
    settings = PublisherSettings(base_port=free_port(), bind_host=host)
    publisher = open_publisher(settings, dp_rank=0)
    with pytest.raises(ConfigError) as caught:
        FpmPublisher(settings, dp_rank=0)

    assert isinstance(publisher, NullPublisher)
    assert caught.value.variable == "FORWARDPASS_BIND_HOST"
    assert "FORWARDPASS_BIND_HOST" in caplog.text


def test_a_rank_beyond_the_last_port_is_no_port() -> None:
    """base + rank above 65535 is refused as a port, before any socket is opened."""
    with pytest.raises(PortUnavailable) as caught:
        FpmPublisher(PublisherSettings(base_port=49_151), dp_rank=20_000)

    assert caught.value.port == 69_151


def test_the_port_is_free_after_shutdown() -> None:
    """WIRE-34: The same port can be bound again at once, and the sequence begins at 0 again."""
    settings = PublisherSettings(base_port=free_port(), worker_id="1", heartbeat_interval_seconds=SILENT)
    for _ in range(3):
        publisher = FpmPublisher(settings, dp_rank=0)
        assert publisher.shutdown(5).finished


def test_the_ephemeral_range_is_warned_of_once_per_process() -> None:
    """WIRE-37, D-14, PIT-46: one warning with the exact text, however many publishers the process opens."""
    base, ephemeral = 32_767, ephemeral_range()
    if ephemeral is None or not PortBlock(base + 1, base + 2).overlaps(ephemeral):
        pytest.skip("this machine's ephemeral range begins elsewhere")
    result = run_script(
        f"""
        from forwardpass.config.settings import PublisherSettings
        from forwardpass.publish.publisher import open_publisher
        for _ in range(2):
            open_publisher(PublisherSettings(base_port={base}), dp_rank=0, dp_size=2).shutdown(5)
        """
    )
    low, high = ephemeral

    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        f"FPM ports 32767-32769 overlap this host's ephemeral port range {low}-{high}; an outbound "
        "connection can take one of them first and the publisher bind then fails intermittently. "
        f"Set DYN_FORWARDPASS_METRIC_PORT to a base below {low}."
    ]

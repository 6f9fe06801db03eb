"""What a copy of /proc tells about ports. The texts are those of a Linux 6.1 kernel."""

from __future__ import annotations

from pathlib import Path

from forwardpass.publish.port_owner import ephemeral_range, port_owner, socket_inodes
from forwardpass.wire.ports import PortBlock

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TABLE = HEADER + (
    # 20380 is 0x4F9C: a connection from that port, one that lost its socket, then a listener
    "   0: 0100007F:4F9C 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 111 1 0\n"
    "   1: 0100007F:4F9C 0100007F:1F91 06 00000000:00000000 03:00001770 00000000     0        0 0 3 0\n"
    "   2: 0100007F:4F9C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 222 1 0\n"
    "   3: 00000000:0016 0100007F:4F9C 01 00000000:00000000 00:00000000 00000000     0        0 333 1 0\n"
)


def fake_proc(folder: Path, fds: dict[int, list[str]], names: dict[int, str], table: str = TABLE) -> Path:
    """Lay out the parts of /proc that are read."""
    (folder / "net").mkdir()
    (folder / "net/tcp").write_text(table)
    (folder / "self").mkdir()
    for pid, inodes in fds.items():
        (folder / str(pid) / "fd").mkdir(parents=True)
        (folder / str(pid) / "comm").write_text(names.get(pid, "") + "\n")
        for number, inode in enumerate(inodes):
            (folder / str(pid) / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    return folder


def test_sockets_are_found_by_their_local_port_only() -> None:
    """A remote port, and a connection whose socket is gone, do not count."""
    assert socket_inodes(TABLE, 20380) == [("111", False), ("222", True)]
    assert socket_inodes(TABLE, 20381) == []


def test_garbage_has_no_sockets() -> None:
    """Short lines, other columns and an empty text give nothing."""
    assert socket_inodes("", 20380) == []
    assert socket_inodes(HEADER + "nonsense\n\n1 2 3\n", 20380) == []


def test_the_listener_is_named_before_a_connection(tmp_path: Path) -> None:
    """Who listens is the answer, although a connection uses the same port."""
    proc = fake_proc(tmp_path, {10: ["111"], 20: ["9", "222"]}, {10: "client", 20: "python"})

    assert port_owner(20380, proc) == "python (pid 20)"


def test_a_connection_is_named_where_nobody_listens(tmp_path: Path) -> None:
    """An outgoing connection can hold a port of the ephemeral range."""
    table = "".join(TABLE.splitlines(keepends=True)[:2])
    proc = fake_proc(tmp_path, {10: ["111"]}, {10: "curl"}, table)

    assert port_owner(20380, proc) == "curl (pid 10)"


def test_an_invisible_owner_is_none(tmp_path: Path) -> None:
    """A socket of a process whose files may not be read, and a free port, have no owner to name."""
    proc = fake_proc(tmp_path, {10: ["9"]}, {10: "other"})

    assert port_owner(20380, proc) is None
    assert port_owner(4, proc) is None


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    """A system without /proc gives None, not an error."""
    assert port_owner(20380, tmp_path / "none") is None
    assert ephemeral_range(tmp_path / "none") is None


def test_a_hostile_process_name_stays_on_its_line(tmp_path: Path) -> None:
    """Control characters in a name do not reach the log."""
    proc = fake_proc(tmp_path, {20: ["222"]}, {20: "a\nERROR\x1b[2J"})

    assert port_owner(20380, proc) == "a?ERROR?[2J (pid 20)"


def test_the_ephemeral_range_is_read(tmp_path: Path) -> None:
    """Two integers of the kernel's file become a block; anything else is unknown."""
    folder = tmp_path / "sys/net/ipv4"
    folder.mkdir(parents=True)
    (folder / "ip_local_port_range").write_text("32768\t60999\n")
    known = ephemeral_range(tmp_path)
    (folder / "ip_local_port_range").write_text("what\n")

    assert known == PortBlock(32768, 60999)
    assert ephemeral_range(tmp_path) is None

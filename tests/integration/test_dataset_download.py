"""Conversations that are fetched from a real HTTP server: good ones, and everything that goes wrong."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forwardpass.bench.content.dataset import Texts, load_texts
from forwardpass.bench.content.download import DownloadLimits, cached_name, is_url, shown_source
from forwardpass.errors import ContentUnavailable
from forwardpass.testing.ports import free_port

BODIES = [f"conversation {number} " + "x" * 60 for number in range(20)]
DATA = json.dumps([{"conversations": [{"value": body}]} for body in BODIES]).encode()
DIGEST = hashlib.sha256(DATA).hexdigest()
TEXTS = tuple(body for body in BODIES if hashlib.sha256(body.encode()).digest()[0] % 2 == 0)


class Dataset(BaseHTTPRequestHandler):
    """Answers each path in its own way, and counts what was asked."""

    asked: list[str]
    hold: threading.Event

    def do_GET(self) -> None:
        """Answer one request."""
        self.asked.append(self.path)
        name = self.path.partition("?")[0].strip("/")
        getattr(self, f"_{name.partition('.')[0]}")()

    def _good(self, *, length: int | None = len(DATA), data: bytes = DATA) -> None:
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)

    def _locked(self) -> None:
        if self.headers["Authorization"] == "Basic dTpwL3c=":
            self._good()
        else:
            self.send_error(401)

    def _undeclared(self) -> None:
        self._good(length=None)

    def _cut(self) -> None:
        self._good(data=DATA[:100])

    def _cut_chunk(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"ff\r\nabc")

    def _silent(self) -> None:
        self._good(data=DATA[:100])
        self.wfile.flush()
        self.hold.wait(30)

    def _declared_large(self) -> None:
        self._good(length=10**12, data=b"")

    def _large(self) -> None:
        self._good(length=None, data=b"x" * 100_000)

    def _missing(self) -> None:
        self.send_error(404, "x\x1b[31m")

    def _moved(self) -> None:
        self._redirect("/good.json")

    def _to_file(self) -> None:
        self._redirect("file:///etc/hostname")

    def _to_ftp(self) -> None:
        self._redirect("ftp://127.0.0.1/x")

    def _to_locked(self) -> None:
        self._redirect(f"http://localhost:{self.server.server_address[1]}/locked.json")

    def _redirect(self, where: str) -> None:
        self.send_response(302)
        self.send_header("Location", where)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class SlowClock:
    """A clock on which five minutes pass whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return seconds."""
        self.now += 300
        return self.now

    def unix_ms(self) -> int:
        """Return a stamp."""
        return 0


class Server:
    """A server, and what it was asked."""

    def __init__(self, port: int, asked: list[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked = asked


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    """Run one server for all tests."""
    hold, asked = threading.Event(), list[str]()
    handler = type("Handler", (Dataset,), {"hold": hold, "asked": asked})
    port = free_port()
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Server(port, asked)
    finally:
        hold.set()
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reach the server directly, whatever proxy this machine has."""
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


def load(served: Server, name: str, folder: Path, sha256: str | None = DIGEST, **limits: float) -> Texts:
    return load_texts(
        f"{served.url}/{name}",
        sha256=sha256,
        cache_dir=str(folder),
        limits=DownloadLimits(**limits),  # type: ignore[arg-type]
    )


def test_a_file_is_fetched_once_and_kept(served: Server, tmp_path: Path) -> None:
    """CONTENT-21, PIT-23: The second time it is read from the cache, under the name it has in its URL."""
    folder = tmp_path / "a" / "b"
    first = load(served, "good.json?token=1", folder)
    asked = len(served.asked)
    second = load(served, "good.json?token=1", folder)

    assert first == second == Texts(TEXTS, str(folder / "good.json"), DIGEST)
    assert len(served.asked) == asked
    assert [path.name for path in folder.iterdir()] == ["good.json"]


def test_a_kept_file_that_is_another_is_fetched_anew(served: Server, tmp_path: Path) -> None:
    """CONTENT-21, PIT-23: A cache that was damaged heals."""
    (tmp_path / "good.json").write_bytes(DATA[:-1])

    assert load(served, "good.json", tmp_path).texts == TEXTS
    assert (tmp_path / "good.json").read_bytes() == DATA


@pytest.mark.parametrize("name", ["undeclared.json", "moved.json"])
def test_servers_may_answer_in_several_ways(served: Server, tmp_path: Path, name: str) -> None:
    """CONTENT-21: Without a declared length, or from another address, the digest says that it is whole."""
    assert load(served, name, tmp_path).texts == TEXTS


def test_a_user_in_the_url_is_told_to_the_server(served: Server, tmp_path: Path) -> None:
    """CONTENT-21: User and password of a URL open a file that is locked, and stand nowhere else."""
    url = f"http://u:p%2Fw@{served.url.removeprefix('http://')}/locked.json"
    found = load_texts(url, sha256=DIGEST, cache_dir=str(tmp_path))

    assert found.path == str(tmp_path / "locked.json")
    with pytest.raises(ContentUnavailable, match="answers 401"):
        load_texts(url.replace("locked", "to_locked"), sha256=DIGEST, cache_dir=str(tmp_path))


def test_without_a_digest_the_name_is_that_of_the_url(served: Server, tmp_path: Path) -> None:
    """CONTENT-21: Two addresses never share a kept file whose content nobody checked."""
    url = f"{served.url}/good.json"
    found = load(served, "good.json", tmp_path, None)

    assert Path(found.path).name == cached_name(url, None) != cached_name(url + "?2", None)
    assert cached_name("http://h/%2e./..", None).partition("-")[2].startswith("dataset")
    assert "/" not in cached_name("http://h/a\\..\\b/\u00e4\x1b;", "x")


BAD = [
    ("good.json", "0" * 64, {}, "expected 0000"),
    ("cut.json", DIGEST, {}, "cut off after 100 of"),
    ("cut.json", None, {}, "cut off after 100 of"),
    ("cut_chunk.json", None, {}, "IncompleteRead"),
    ("silent.json", DIGEST, {"silence_seconds": 0.2}, "timed out"),
    ("declared_large.json", None, {}, "it has 1000000000000 bytes, at most"),
    ("large.json", None, {"max_bytes": 1000}, "more than 1000 bytes"),
    ("missing.json", None, {}, "the server answers 404"),
    ("to_file.json", None, {}, ""),
    ("to_ftp.json", None, {}, "ftp"),
]


@pytest.mark.parametrize(
    ("name", "sha256", "limits", "words"), BAD, ids=[f"{one[0]}-{i}" for i, one in enumerate(BAD)]
)
def test_what_goes_wrong_is_one_reason_and_leaves_nothing(
    served: Server, tmp_path: Path, name: str, sha256: str | None, limits: dict[str, float], words: str
) -> None:
    """CONTENT-22, CONTENT-23, PIT-23: A wrong digest, a download that is cut off, silent or too large, an
    error, and a way to somewhere else than http: the reason names the address, and no file is left.
    """
    with pytest.raises(ContentUnavailable) as caught:
        load(served, f"{name}?secret=1", tmp_path, sha256, **limits)

    assert caught.value.reason == "dataset_unavailable"
    assert str(caught.value).startswith(f"dataset_unavailable: {served.url}/{name}: ")
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_takes_too_long_is_given_up(served: Server, tmp_path: Path) -> None:
    """CONTENT-22, PIT-23: The whole time is bounded too, by the clock that is given."""
    with pytest.raises(ContentUnavailable, match="more than 270 s"):
        load_texts(f"{served.url}/large.json", sha256=None, cache_dir=str(tmp_path), clock=SlowClock())

    assert list(tmp_path.iterdir()) == []


def test_nobody_listens(tmp_path: Path) -> None:
    """CONTENT-23: Nor does a folder that cannot be made, or an address that is none, crash anything."""
    url = f"http://user:secret@127.0.0.1:{free_port()}/x.json?token=secret"
    (tmp_path / "file").write_text("")
    for source, folder in (
        (url, tmp_path),
        (url, tmp_path / "file"),
        ("http://[::1", tmp_path),
        ("http://", tmp_path),
        ("http://h\n/x", tmp_path),
    ):
        with pytest.raises(ContentUnavailable) as caught:
            load_texts(source, sha256=None, cache_dir=str(folder))
        assert caught.value.reason == "dataset_unavailable"
        assert "secret" not in str(caught.value)


def test_what_is_shown_of_an_address() -> None:
    """CONTENT-23: Neither user nor password nor query; a path of this machine as it is."""
    assert shown_source("https://u:p@h:1/a/b.json?q#f") == "https://h:1/a/b.json"
    assert shown_source("/a/b.json?q") == "/a/b.json?q"
    assert (is_url("HTTP://h"), is_url("ftp://h"), is_url("/http://h")) == (True, False, False)

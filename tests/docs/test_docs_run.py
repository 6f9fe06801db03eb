"""The programs in the documentation run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READS_UNTIL_STOPPED = {"docs/how-to/read-the-raw-stream.md"}
"""Pages whose program never ends by itself: the publisher's tests run it against a stream."""


def programs() -> dict[str, str]:
    """Return every program of the pages, by page and number."""
    return {
        f"{page.relative_to(ROOT).as_posix()} #{number}": block
        for page in PAGES
        for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1)
    }


def test_programs_run_to_their_end(tmp_path: Path) -> None:
    """A block marked python is a whole program that ends without an error: the README's in a clone, where
    it may read the golden traces, the others in an empty folder.
    """
    endless = {name for name in programs() if name.split(" #")[0] in READS_UNTIL_STOPPED}
    failed: dict[str, str] = {}
    for name, program in programs().items():
        if name in endless:
            continue
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=ROOT if name.startswith("README") else tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            failed[name] = done.stderr

    assert not failed
    assert endless, "the page with the endless reader has moved"

"""The installed SGLang's options are those that our tables know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forwardpass.engines.sglang.arguments import FLAGS, VALUES

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]

PARSER = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
takes = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}
print("ANSWER", json.dumps(takes))
"""


def test_every_option_that_we_read_is_one_of_sglangs(sglang_model: str) -> None:
    """SGL-01: Each name in the tables exists and takes a value, or takes none, as the table says."""
    shims = Path(__file__).parent / "shims"
    found = subprocess.run(
        [sys.executable, "-c", PARSER],
        env={**os.environ, "PYTHONPATH": str(shims), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    takes = json.loads(found.stdout.split("ANSWER ")[1])

    assert {name: takes.get(name) for name in VALUES} == dict.fromkeys(VALUES, True)
    assert {name: takes.get(name) for name in FLAGS} == dict.fromkeys(FLAGS, False)

"""The commands in the documentation exist, with the options that are given there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from forwardpass.cli.main import cli

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```console\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Return (page, text) of every call of ours that a console block shows, without pipes and comments."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                prompt, _, text = line.strip().partition("$ ")
                words = re.split(r" [|>#] | {2,}#", text)[0]
                if not prompt and "forwardpass " in words and not words.startswith("export"):
                    found.append((page.relative_to(ROOT).as_posix(), words[words.index("forwardpass ") :]))
    return found


def unknown_options(text: str) -> list[str]:
    """Return the options in ``text`` that its command does not have. Raises ``KeyError`` for no command."""
    words = text.split()[1:]
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, words = words[0], words[1:]
        found = command.get_command(click.Context(command), name)
        if found is None:
            raise KeyError(name)
        command = found
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    ours = [word.partition("=")[0] for word in words if word.startswith("--")]
    if command.name == "serve":  # all others are the engine's
        ours = [word for word in ours if word.startswith(("--fpm-", "--no-fpm-"))]
    return [word for word in ours if word not in {*known, "--help"}]


def test_pages_show_commands() -> None:
    """The blocks are found: the tutorial and the how-tos have them."""
    pages = {page for page, _ in commands()}

    assert {"README.md", "docs/tutorials/first-stream.md", "docs/how-to/vllm.md"} <= pages


@pytest.mark.parametrize(("page", "text"), commands())
def test_every_command_shown_exists(page: str, text: str) -> None:
    """A command that a page shows is one of ours and takes the options that stand there."""
    assert unknown_options(text) == []


@pytest.mark.parametrize("text", ["forwardpass record --outputt x", "forwardpass vllm serve M --fpm-prot 1"])
def test_a_wrong_option_is_found(text: str) -> None:
    """The check sees an option that does not exist."""
    assert unknown_options(text) != []

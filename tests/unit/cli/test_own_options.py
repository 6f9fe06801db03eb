"""Telling our options from those of the program that is started."""

from __future__ import annotations

import pytest

from forwardpass.cli.own_options import split_own

VALUES = {"--fpm-mode", "--fpm-output"}
FLAGS = {"--fpm-trace", "--no-fpm-trace", "--help", "-h"}


def split(text: str) -> tuple[str, str]:
    """Split a command line written as one text; the two parts come back as texts."""
    own, rest = split_own(text.split(), values=VALUES, flags=FLAGS, prefixes=("--fpm-", "--no-fpm-"))
    return " ".join(own), " ".join(rest)


@pytest.mark.parametrize(
    ("given", "own", "rest"),
    [
        ("m --port 1", "", "m --port 1"),
        ("m --fpm-trace --port 1", "--fpm-trace", "m --port 1"),
        ("--fpm-mode full m -dp 2 --fpm-trace", "--fpm-mode full --fpm-trace", "m -dp 2"),
        ("m --fpm_mode=full --no_fpm_trace", "--fpm-mode=full --no-fpm-trace", "m"),
        ("m --fpm-output=a=b", "--fpm-output=a=b", "m"),
        ("m --served_model_name a_b", "", "m --served_model_name a_b"),
        ("--fpm-trace -- m --fpm-mode full", "--fpm-trace", "m --fpm-mode full"),
        ("m -- -- x", "", "m -- x"),
        ("m --fpm-mode", "--fpm-mode", "m"),
        ("m --help", "--help", "m"),
        ("m -h", "-h", "m"),
        ("m --help=Frontend", "", "m --help=Frontend"),
        ("m --fpm-tracee", "--fpm-tracee", "m"),
        ("m --fpm-trace=yes", "--fpm-trace=yes", "m"),
        ("", "", ""),
    ],
)
def test_ours_are_taken_out_and_the_rest_keeps_its_order(given: str, own: str, rest: str) -> None:
    """Our options are found anywhere before ``--``; every other token passes untouched."""
    assert split(given) == (own, rest)


def test_a_value_of_ours_may_look_like_anything() -> None:
    """The token after an option of ours that takes a value belongs to it."""
    assert split("m --fpm-output --port 8000") == ("--fpm-output --port", "m 8000")

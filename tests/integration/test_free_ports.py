"""The search for ports against the kernel."""

from __future__ import annotations

import random
import socket

import pytest

from forwardpass.publish.port_owner import ports_are_free
from forwardpass.testing.ports import free_port


def test_a_listener_makes_its_port_and_every_block_with_it_taken() -> None:
    """Ports are free as a block only if every one of them can be bound."""
    first = free_port(3)
    before = ports_are_free(first, 3)
    with socket.create_server(("127.0.0.1", first + 1)):
        during = [ports_are_free(first), ports_are_free(first + 1), ports_are_free(first, 3)]

    assert before
    assert during == [True, False, False]


def test_the_search_steps_over_taken_ports() -> None:
    """Of a range with one free port that one is found; in a range without any the search ends."""
    first = free_port(2)
    with socket.create_server(("127.0.0.1", first)):
        found = free_port(first=first, last=first + 1)
        with pytest.raises(RuntimeError):
            free_port(first=first, last=first)

    assert found == first + 1


def test_the_search_does_not_follow_the_seed() -> None:
    """Two runs with one seed look at different ports."""
    found = set()
    for _ in range(5):
        random.seed(1)
        found.add(free_port())

    assert len(found) > 1

"""Knows how the libraries of the extra ``analyze`` are loaded, and what to say where they are missing.

They are loaded when they are used: importing this package, or running a command that needs none of them,
must not cost what they cost.
"""

from __future__ import annotations

import importlib
from typing import Any

from forwardpass.errors import MissingExtra

__all__ = ["arrow_library", "load"]

EXTRA = "analyze"


def load(module: str) -> Any:
    """Return the library ``module``. Raises :class:`~forwardpass.errors.MissingExtra` if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(module.split(".")[0], EXTRA) from error


def arrow_library() -> Any:
    """Return ``pyarrow``, with ``pyarrow.compute`` loaded. Raises as :func:`load`."""
    pyarrow = load("pyarrow")
    load("pyarrow.compute")
    return pyarrow

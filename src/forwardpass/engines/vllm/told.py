"""Knows how a warning is given once per server, however many of its processes load the plugin."""

from __future__ import annotations

import logging

from forwardpass.config.handover import SAID, said_with, was_said
from forwardpass.config.settings import leave_to_children, process_environment

__all__ = ["warn_once"]

logger = logging.getLogger(__name__)


def warn_once(text: str) -> None:
    """Log ``text`` as a warning, unless this process or one that started it has done so."""
    said = process_environment().get(SAID)
    if not was_said(text, said):
        leave_to_children(SAID, said_with(text, said))
        logger.warning("Forward Pass Metrics: %s", text)

"""Knows how a plane URL is shown: without the credentials that may stand in it."""

from __future__ import annotations

__all__ = ["shown_url"]


def shown_url(url: str) -> str:
    """Return ``url`` with ``***`` for everything between its scheme and its last ``@``.

    A password may hold any character, also the separators of a list, so nothing before the last ``@`` is
    taken for an address.
    """
    head, at, address = url.rpartition("@")
    if not at:
        return url
    scheme, separator, _ = head.partition("://")
    return f"{scheme}{separator}***@{address}" if separator else f"***@{address}"

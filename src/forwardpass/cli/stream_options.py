"""Knows how commands that read raw streams are told which: URLs, or a base port and a number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forwardpass.config.settings import Sources
from forwardpass.config.variables import METRIC_PORT, Variable
from forwardpass.errors import ConfigError
from forwardpass.relay.targets import RelayTarget, check_url, local_targets, rank_url
from forwardpass.wire.ports import DEFAULT_BASE_PORT

__all__ = ["checked_flags", "choose_targets"]


def choose_targets(urls: Sequence[str], ranks: int | None, sources: Sources) -> tuple[RelayTarget, ...]:
    """Return the streams that ``urls`` and ``ranks`` mean.

    Without a URL: this machine's ranks from the base port on. With one and ``ranks``: that many ranks
    from this URL on. With several: exactly those. Raises :class:`ConfigError`.
    """
    if not urls:
        return local_targets(sources.value(METRIC_PORT) or DEFAULT_BASE_PORT, ranks or 1)
    if ranks is None:
        targets = tuple(RelayTarget(check_url(url)) for url in dict.fromkeys(urls))
    elif len(urls) == 1:
        targets = tuple(RelayTarget(rank_url(urls[0], rank), rank) for rank in range(ranks))
    else:
        raise ConfigError("--ranks", ranks, "one URL to count the ranks from, or no --ranks")
    return targets


def checked_flags(given: Iterable[tuple[str, Variable, str | None]]) -> dict[str, str]:
    """Return the texts of the flags that were given, by variable name.

    ``given`` has (flag, the variable it stands for, its text or ``None``). Raises :class:`ConfigError`
    that names the flag, not the variable, for a text that is not accepted.
    """
    texts: dict[str, str] = {}
    for flag, variable, text in given:
        if text is None:
            continue
        try:
            variable.parse(text)
        except ValueError as error:
            raise ConfigError(flag, text, variable.accepted) from error
        texts[variable.name] = text
    return texts

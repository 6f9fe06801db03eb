"""Knows which prompts each kind of point injects, from the streams of tokens that its salts name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forwardpass.bench.content import identity
from forwardpass.bench.content.base import TokenStream
from forwardpass.bench.content.chain import Chains

__all__ = ["PromptWriter", "Prompts"]

Prompts = list[list[int]]
"""The token ids of each request of a batch, in the order of slots."""


class PromptWriter:
    """Writes the prompts of one rank. All arguments that are sequences have one number for each slot."""

    def __init__(self, stream: TokenStream, *, seed: str, dp_rank: int) -> None:
        self._stream = stream
        self._seed = seed
        self._dp_rank = dp_rank

    def fresh(self, lengths: Sequence[int]) -> Prompts:
        """Return prompts without a prefix; also that of the global warm-up."""
        return self._streams(identity.fresh_salts(lengths), lengths)

    def fake_prefix(
        self, point_key: str, reads: Sequence[int], new: Sequence[int], *, dropped: int = 0
    ) -> tuple[Prompts, Prompts]:
        """Return seeds and the prompts that find them; the seed of a slot that reads nothing is empty.

        A seed has the tokens to read and the ``dropped`` ones, which the engine computes again.
        """
        salts = identity.fake_prefix_salts(point_key, len(reads))
        lengths = [read + count for read, count in zip(reads, new, strict=True)]
        prompts = self._streams(salts, lengths)
        seeds = [
            prompt[: read + dropped] if read else [] for prompt, read in zip(prompts, reads, strict=True)
        ]
        return seeds, prompts

    def real_prefix(self, lengths: Sequence[int]) -> Prompts:
        """Return prefixes that are computed for real; those of a slot are prefixes of each other."""
        return self._streams(identity.real_prefix_salts(len(lengths)), lengths)

    def after_real_prefix(
        self,
        point_key: str,
        reads: Sequence[int],
        new: Sequence[int],
        *,
        measured: bool,
        replica: bool = False,
        dropped: int = 0,
    ) -> Prompts:
        """Return prompts that begin with such prefixes and go on with a tail of their own.

        The ``dropped`` tokens belong to the prefix, so that exactly ``reads`` tokens of it are found.
        """
        prefixes = self.real_prefix([read + dropped if read else 0 for read in reads])
        tails = self._streams(
            identity.tail_salts(point_key, len(reads), measured=measured, replica=replica),
            [read + count - len(prefix) for read, count, prefix in zip(reads, new, prefixes, strict=True)],
        )
        return [prefix + tail for prefix, tail in zip(prefixes, tails, strict=True)]

    def decode(self, admitted: Sequence[int]) -> Prompts:
        """Return prompts of decode requests, one token longer than the contexts at admission."""
        return self._streams(identity.decode_salts(admitted), [context + 1 for context in admitted])

    def real_decode(self, chains: Chains, admitted: Sequence[int]) -> Prompts:
        """Return the same of real text: the beginning of each slot's chain."""
        return [chains.tokens(slot, context + 1) for slot, context in enumerate(admitted)]

    def _streams(self, salts: Iterable[str], lengths: Iterable[int]) -> Prompts:
        return [
            self._stream.tokens(identity.stream_key(self._seed, self._dp_rank, salt), length)
            for salt, length in zip(salts, lengths, strict=True)
        ]

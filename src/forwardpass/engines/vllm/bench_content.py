"""Knows what the prompts of a benchmark are made of on vLLM: its vocabulary, and real text in its tokens."""

from __future__ import annotations

from typing import Any

from forwardpass.bench.content.base import ContentReason, TokenStream
from forwardpass.bench.content.chain import Chains, ChainStream
from forwardpass.bench.content.dataset import load_texts
from forwardpass.bench.content.identity import ContentKind
from forwardpass.bench.content.pool import TextWindows, build_pool
from forwardpass.bench.content.synthetic import without_text
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.engines.vllm import compat
from forwardpass.errors import ContentUnavailable

__all__ = ["content_of", "vocabulary_of"]


class _Tokenizer:
    """vLLM's tokenizer, without special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def vocabulary_of(scheduler: Any) -> int | None:
    """Return the number of tokens that the model knows, ``None`` where it does not say."""
    try:
        return int(scheduler.vllm_config.model_config.get_vocab_size())
    except (AttributeError, TypeError, ValueError):
        return None


def content_of(
    scheduler: Any, environment: BenchEnvironment, dp_rank: int
) -> tuple[ContentKind, TokenStream]:
    """Return what prompts are made of, and what kind that is.

    Raises :class:`~forwardpass.errors.ContentUnavailable` where real text was asked for and cannot be had.
    """
    kind, stream = without_text(vocabulary_of(scheduler))
    if environment.prefill_content is ContentKind.RANDOM or kind is ContentKind.ZEROS:
        return kind, stream
    dataset = environment.dataset
    found = load_texts(dataset.source, sha256=dataset.sha256, cache_dir=dataset.cache_dir)
    tokenizer = _tokenizer(scheduler)
    if environment.prefill_content is ContentKind.SHAREGPT:
        return ContentKind.SHAREGPT, TextWindows(build_pool(found.texts, tokenizer), environment.pool_tag)
    chains = Chains(found.texts, tokenizer, seed=environment.content_seed, dp_rank=dp_rank)
    return ContentKind.SHAREGPT_CHAIN, ChainStream(chains)


def _tokenizer(scheduler: Any) -> _Tokenizer:
    try:
        tokenizer = compat.tokenizer(scheduler)
    except Exception as error:  # boundary: whatever a model's own code does
        raise ContentUnavailable(ContentReason.TOKENIZER, f"{type(error).__name__}: {error}") from error
    return _Tokenizer(tokenizer)

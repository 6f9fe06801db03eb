"""Knows one request of the simulated engine: its size, its content and how far it has come."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

__all__ = ["Request", "Status"]

_INDEX_BITS = 32


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    """Not yet admitted."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Lost its blocks to an older request and waits to be computed again."""
    FINISHED = "finished"


class Request:
    """A prompt and the output that will follow. All lengths are in tokens.

    Content is not stored: it is named. The first ``prefix_tokens`` of the prompt are those of every
    request with the same ``prefix_id``, the rest belongs to this request alone.
    """

    __slots__ = (
        "blocks", "computed", "final_tokens", "goal", "known", "lost", "output_tokens", "pending",
        "prefix_id", "prefix_tokens", "prompt_tokens", "status", "uid",
    )  # fmt: skip

    def __init__(
        self, uid: int, prompt_tokens: int, output_tokens: int, *, prefix_id: int = 0, prefix_tokens: int = 0
    ) -> None:
        self.uid = uid
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.final_tokens = prompt_tokens + output_tokens - 1
        """Tokens whose KV is ever needed: the last output token is never computed."""
        self.prefix_id = prefix_id
        self.prefix_tokens = prefix_tokens
        self.status = Status.WAITING
        self.known = prompt_tokens
        """Prompt plus the output that has arrived."""
        self.pending = 0
        """Output tokens that passes in flight will bring."""
        self.computed = 0
        """Tokens in the KV cache once every scheduled pass has run."""
        self.goal = prompt_tokens
        """End of the prefill: the prompt, or all tokens known on resumption."""
        self.blocks: list[int] = []
        self.lost = 0
        """What ``computed`` was when it was preempted last; 0 if it never was."""

    @property
    def remaining(self) -> int:
        """What the next pass could compute: the rest of the prefill, or one; none with the last in flight."""
        if self.computed < self.goal:
            return self.goal - self.computed
        return 1 if self.computed < self.final_tokens else 0

    def block_key(self, index: int, block_tokens: int) -> int:
        """Return what stands for the content of full block ``index`` and all before it."""
        shared = (index + 1) * block_tokens <= self.prefix_tokens
        owner = -1 - self.prefix_id if shared else self.uid
        return owner << _INDEX_BITS | index

    def cacheable_keys(self, block_tokens: int) -> Iterator[int]:
        """Yield the keys of full blocks that a cache may provide: at least one token is always computed."""
        return (self.block_key(index, block_tokens) for index in range((self.known - 1) // block_tokens))

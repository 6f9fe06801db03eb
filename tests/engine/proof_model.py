"""Knows what a made-up model answers: tokens, accepted drafts, new drafts, and what a grammar allows."""

from __future__ import annotations

import logging
import random
from concurrent.futures import Future
from functools import cache
from typing import Any

from proof_ledger import Part, State

TOKEN, STOP = 7, 9
GRAMMAR, BAD_GRAMMAR = "root ::= [ab]*", "root ::= ("


@cache
def letters(model: str) -> tuple[int, int, int, int]:
    """Return the ids of a, b, c and the end of the text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    a, b, c = (tokenizer.convert_tokens_to_ids(letter) for letter in "abc")
    return a, b, c, tokenizer.eos_token_id


class MadeUpModel:
    """Answers for each part of a pass. ``most_drafts`` is the engine's number of speculative tokens."""

    def __init__(self, rng: random.Random, most_drafts: int, structured: str | None) -> None:
        self.rng = rng
        self.most_drafts = most_drafts
        self.letters = letters(structured) if structured else (0, 0, 0, 0)
        self.kindness = rng.random()
        """How often a draft is accepted."""

    def answer(self, part: Part, drafts: list[int] | None, *, placeholders: bool) -> list[int]:
        """Return the tokens that a pass gives: accepted drafts and one more.

        ``drafts`` are those of the scheduler's output; -1 is a draft that cannot be accepted, but with
        ``placeholders`` (asynchronous order) the worker has drafts of its own.
        """
        if not part.samples:
            return []
        life, rng = part.life, self.rng
        accepted = self._accepted(part, drafts, placeholders=placeholders) if drafts else 0
        if life.resumable:
            accepted = min(
                accepted, max(0, life.turn_left - 1)
            )  # vLLM fails where a session's turn ends inside
        if life.structured:
            a, b, c, end = self.letters
            made = [draft if draft > 0 else a for draft in (drafts or [])[:accepted]]
            draw = rng.random()
            return [*made, end if draw < 0.03 else c if draw < 0.035 else b]
        made = [draft if draft > 0 else TOKEN for draft in (drafts or [])[:accepted]]
        return [*made, STOP if life.stops and rng.random() < 0.06 else TOKEN]

    def _accepted(self, part: Part, drafts: list[int], *, placeholders: bool) -> int:
        own = placeholders and not part.prefill and not part.life.structured
        possible = (
            len(drafts) if own and -1 in drafts else (drafts.index(-1) if -1 in drafts else len(drafts))
        )
        accepted = 0
        while accepted < possible and self.rng.random() < self.kindness:
            accepted += 1
        return accepted

    def draft(self, parts: list[Part]) -> Any:
        """Return drafts for every request of a pass, as a drafter gives them."""
        from vllm.v1.outputs import DraftTokenIds

        a, b, c, _ = self.letters
        names, drafts = [], []
        for part in parts:
            count = self.rng.randrange(self.most_drafts + 1)
            names.append(part.life.name)
            if part.life.structured:
                drafts.append([self.rng.choice((a, b, b, c)) for _ in range(count)])
            else:
                drafts.append([self.rng.choice((TOKEN, 11, 12)) for _ in range(count)])
        return DraftTokenIds(names, drafts)


class Grammars:
    """Compiles grammars with vLLM's manager and hands them over when a test says so."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        manager._use_async_grammar_compilation = False
        self.pending: list[tuple[Any, Any]] = []
        logging.getLogger("vllm.v1.structured_output").setLevel(logging.CRITICAL)

    def compile(self, request: Any, *, late: bool) -> None:
        """Give ``request`` its grammar, at once or by :meth:`release`; a bad one gives an error."""
        self.manager.grammar_init(request)
        if late:
            structured = request.structured_output_request
            self.pending.append((structured, structured._grammar))
            structured.grammar = Future()

    def release(self) -> None:
        """The oldest grammar that is due is ready."""
        structured, grammar = self.pending.pop(0)
        structured.grammar = grammar


def alive(parts: list[Part]) -> list[Part]:
    """Return the parts whose requests are not over."""
    return [part for part in parts if part.life.state is not State.DONE]

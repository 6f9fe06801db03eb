"""What prompts are made of, compared with a second writing of the same rules."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.bench.content import identity
from forwardpass.bench.content.base import TokenStream
from forwardpass.bench.content.chain import Chains, ChainStream
from forwardpass.bench.content.dataset import load_texts, texts_of
from forwardpass.bench.content.pool import TextWindows, build_pool
from forwardpass.bench.content.prompts import prompt_evidence, prompt_sha256
from forwardpass.bench.content.synthetic import RandomTokens, Zeros, without_text
from forwardpass.bench.content.writer import PromptWriter
from forwardpass.bench.evidence import NO_PROMPTS, Prompts
from forwardpass.errors import ContentUnavailable

TEXTS = [f"text number {number} " * (number % 7 + 1) for number in range(40)]
SEEDS = st.text(max_size=5)
RANKS = st.integers(0, 9)


class Letters:
    """A tokenizer with one token for each letter, which counts what it encodes."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, text: str) -> list[int]:
        self.calls += 1
        return [ord(letter) for letter in text]


# --- the same rules, written a second time ---------------------------------------------------------------


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def second_random(seed: str, rank: int, salt: str, length: int) -> list[int]:
    generator = random.Random("content-v1:" + seed + ":dp" + str(rank) + ":" + salt)
    return [1 + int(generator.random() * 999) for _ in range(length)]  # what choices() does


def second_list(numbers: Sequence[int]) -> str:
    return sha("[" + ",".join(str(number) for number in numbers) + "]")


def second_chain(seed: str, rank: int, index: int, length: int) -> list[int]:
    texts = list(TEXTS)
    random.Random(f"content-v1:{seed}:{rank}:{index}").shuffle(texts)
    return [ord(letter) for letter in "".join(texts)][:length]


def second_window(tag: str, key: str, length: int) -> list[int]:
    texts = list(TEXTS)
    random.Random("bench-prefill-pool").shuffle(texts)
    pool = [ord(letter) for letter in "".join(texts)]
    start = random.Random(tag + ":" + key).randrange(len(pool))
    return [pool[(start + offset) % len(pool)] for offset in range(length)]


# --- streams ---------------------------------------------------------------------------------------------


def test_the_example_of_a_stream() -> None:
    """CONTENT-02, CONTENT-10: The worked draw of five tokens."""
    key = identity.stream_key("0", 0, "x")

    assert RandomTokens(32000).tokens(key, 5) == [21608, 25544, 28119, 22824, 709]
    assert key == "content-v1:0:dp0:x"


def as_written(evidence: Prompts) -> Any:
    """Return the evidence as an artifact has it."""
    return msgspec.json.decode(msgspec.json.encode(evidence))


def test_the_example_of_a_prompt() -> None:
    """CONTENT-30: The worked hash of three ids, and the digest of a list of one prompt."""
    expected = "4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d"
    found = prompt_evidence([[1, 2, 3]])

    assert prompt_sha256([1, 2, 3]) == expected
    assert found.sha256 == sha(f'[{{"num_tokens":3,"sha256":"{expected}","slot":0}}]')
    assert as_written(found)["requests"] == [{"slot": 0, "num_tokens": 3, "sha256": expected}]


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=9), max_size=5))
def test_hashes_of_prompts(prompts: list[list[int]]) -> None:
    """CONTENT-30: Every prompt has a hash of its own, in the order of slots."""
    found = as_written(prompt_evidence(prompts))
    second = [
        {
            "num_tokens": len(ids),
            "sha256": hashlib.sha256(b"".join(struct.pack("<I", one) for one in ids)).hexdigest(),
            "slot": slot,
        }
        for slot, ids in enumerate(prompts)
    ]

    assert found["requests"] == second
    assert found["status"] == "recorded"
    assert found["sha256"] == sha(json.dumps(second, sort_keys=True).replace(" ", ""))


def test_no_record_is_no_prompt_and_no_match() -> None:
    """CONTENT-30: What was not recorded is said so; an id that does not fit is an error."""
    assert as_written(NO_PROMPTS) == {"status": "unavailable", "requests": [], "sha256": None}
    with pytest.raises(OverflowError):
        prompt_sha256([2**32])


@given(SEEDS, RANKS, st.text(max_size=8), st.integers(0, 40), st.integers(0, 40))
def test_random_tokens(seed: str, rank: int, salt: str, one: int, other: int) -> None:
    """CONTENT-02, CONTENT-10: The second writing draws the same, and a shorter draw is a prefix."""
    stream, key = RandomTokens(1000), identity.stream_key(seed, rank, salt)
    longer = stream.tokens(key, max(one, other))

    assert longer == second_random(seed, rank, salt, max(one, other))
    assert stream.tokens(key, min(one, other)) == longer[: min(one, other)]
    assert all(1 <= token < 1000 for token in longer)


def test_without_a_vocabulary_all_tokens_are_zero() -> None:
    """CONTENT-10: So an artifact says, and nothing is drawn."""
    for size in (None, 0, 1):
        kind, stream = without_text(size)
        assert (kind, stream.tokens("x", 3)) == ("zeros", [0, 0, 0])
    assert isinstance(Zeros(), Zeros)
    assert without_text(2)[1].tokens("x", 3) == [1, 1, 1]
    assert without_text(2)[0] == "random"


@given(st.text(max_size=4), st.text(max_size=8), st.integers(0, 9000), st.integers(0, 9000))
def test_windows_over_real_text(tag: str, key: str, one: int, other: int) -> None:
    """CONTENT-02, CONTENT-11: They begin where the key says, and go round, also more than once."""
    windows = TextWindows(build_pool(TEXTS, Letters(), least=1), tag)
    longer = windows.tokens(key, max(one, other))

    assert longer == second_window(tag, key, max(one, other))
    assert windows.tokens(key, min(one, other)) == longer[: min(one, other)]


def test_a_pool_ends_with_whole_texts_and_has_a_least_size() -> None:
    """CONTENT-11, CONTENT-23: No more is encoded than is needed, and too little is refused."""
    letters = Letters()
    pool = build_pool(TEXTS, letters, enough=100, least=1)

    assert 100 <= len(pool) < 100 + max(map(len, TEXTS))
    assert letters.calls < 10
    with pytest.raises(ContentUnavailable) as caught:
        build_pool(TEXTS[:3], Letters())
    assert caught.value.reason == "content_too_shallow"
    assert str(caught.value).startswith("content_too_shallow: a pool of ")


@given(
    SEEDS, RANKS, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 600)), max_size=8), st.integers(1, 900)
)
def test_chains(seed: str, rank: int, asked: list[tuple[int, int]], room: int) -> None:
    """CONTENT-12, CONTENT-14: Whatever is asked for in whatever order, and however little is kept, a chain is
    the same and what is kept stays within its bound.
    """
    chains = Chains(TEXTS, Letters(), seed=seed, dp_rank=rank, cached_tokens=room)
    for index, length in asked:
        assert chains.tokens(index, length) == second_chain(seed, rank, index, length)
        assert chains.held_tokens <= room
    chains.forget()
    assert chains.held_tokens == 0


def test_a_chain_is_only_ever_extended() -> None:
    """CONTENT-14: What was encoded is not encoded again, until it is forgotten."""
    letters = Letters()
    chains = Chains(TEXTS, letters, seed="0", dp_rank=0)
    chains.tokens(0, 500)
    once = letters.calls
    chains.tokens(0, 400)
    assert letters.calls == once
    chains.tokens(0, 600)
    assert letters.calls > once
    chains.forget()
    chains.tokens(0, 600)

    assert letters.calls > 2 * once


def test_a_chain_that_is_too_short_is_refused() -> None:
    """CONTENT-23: The texts must hold a chain as deep as the model can be asked for."""
    chains = Chains(TEXTS, Letters(), seed="0", dp_rank=0)
    chains.prove(len("".join(TEXTS)))
    with pytest.raises(ContentUnavailable) as caught:
        chains.prove(len("".join(TEXTS)) + 1)

    assert caught.value.reason == "content_too_shallow"


def test_chains_for_keys() -> None:
    """CONTENT-13: Which chain a key has follows from its hash, apart from the chains of decode."""
    chains = Chains(TEXTS, Letters(), seed="s", dp_rank=3)
    key = identity.stream_key("s", 3, "x")
    index = 20_000_000 + int(sha(key)[:8], 16) % 1_000_000

    assert ChainStream(chains).tokens(key, 300) == second_chain("s", 3, index, 300)


# --- prompts of points -----------------------------------------------------------------------------------


class Keys:
    """A stream whose tokens say where they are in which stream."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def tokens(self, key: str, length: int) -> list[int]:
        self.keys.append(key)
        start = int(sha(key)[:6], 16) * 1000
        return list(range(start, start + length))


def writer(stream: TokenStream) -> PromptWriter:
    return PromptWriter(stream, seed="7", dp_rank=2)


def test_salts_of_prompts_without_a_prefix() -> None:
    """CONTENT-01, CONTENT-03, CONTENT-04: They come from the lengths of the batch, not from the grid."""
    stream = Keys()
    assert [len(prompt) for prompt in writer(stream).fresh([5, 4, 4])] == [5, 4, 4]
    assert [len(prompt) for prompt in writer(stream).decode([5, 4])] == [6, 5]

    assert stream.keys == [
        *(f"content-v1:7:dp2:prefill:{second_list([5, 4, 4])}:slot{slot}" for slot in range(3)),
        *(f"content-v1:7:dp2:decode:{second_list([5, 4])}:slot{slot}" for slot in range(2)),
    ]


def test_seeds_are_prefixes_of_their_prompts() -> None:
    """CONTENT-03, CONTENT-05, PIT-16: Both come from one stream; the seed has what a drafter drops
    besides.
    """
    stream = Keys()
    seeds, prompts = writer(stream).fake_prefix("k", [32, 0], [20, 10], dropped=16)

    assert [len(one) for one in seeds] == [48, 0]
    assert [len(one) for one in prompts] == [52, 10]
    assert prompts[0][:48] == seeds[0]
    assert stream.keys == [f"content-v1:7:dp2:point:k:fake_prefix:slot{slot}" for slot in range(2)]


@pytest.mark.parametrize(
    ("measured", "replica", "tag"),
    [(False, False, "rswarm"), (True, False, "rsm"), (False, True, "rswarm_eager_warmup"),
     (True, True, "rsm_eager_warmup")],
)  # fmt: skip
def test_real_prefixes_and_their_tails(measured: bool, replica: bool, tag: str) -> None:
    """CONTENT-03, CONTENT-05: The prefix is the slot's in its batch size; the tail is the shot's own."""
    stream = Keys()
    deeper = writer(Keys()).real_prefix([100, 100])
    prompts = writer(stream).after_real_prefix(
        "k", [32, 0], [20, 10], measured=measured, replica=replica, dropped=16
    )

    assert [len(prompt) for prompt in prompts] == [52, 10]
    assert prompts[0][:48] == deeper[0][:48]
    assert prompts[0][48:] == Keys().tokens(f"content-v1:7:dp2:point:k:{tag}:slot0", 4)
    assert stream.keys[:2] == [f"content-v1:7:dp2:__bench_rsc_bp2_slot{slot}" for slot in range(2)]
    assert identity.real_prefix_salts(2) == ["__bench_rsc_bp2_slot0", "__bench_rsc_bp2_slot1"]


def test_real_decode_prompts_are_the_beginnings_of_chains() -> None:
    """CONTENT-04, CONTENT-12: Slot i has chain i, one token longer than it is admitted with."""
    chains = Chains(TEXTS, Letters(), seed="7", dp_rank=2)

    assert writer(Zeros()).real_decode(chains, [9, 300]) == [
        second_chain("7", 2, 0, 10),
        second_chain("7", 2, 1, 301),
    ]
    assert identity.chain_cache_salt(2, 1) == "__kvwarm_2_1"


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), RANKS)
def test_ranks_and_slots_have_tokens_of_their_own(lengths: list[int], rank: int) -> None:
    """CONTENT-01, PIT-21: The same coordinates give the same tokens again, and other ones on another rank."""

    def prompts(dp_rank: int) -> list[list[int]]:
        return PromptWriter(RandomTokens(10**6), seed="0", dp_rank=dp_rank).fresh(lengths)

    assert prompts(rank) == prompts(rank)
    assert all(one != other for one, other in zip(prompts(rank), prompts(rank + 1), strict=True))
    assert len({prompt[0] for prompt in prompts(rank)}) == len(lengths)


# --- texts -----------------------------------------------------------------------------------------------


def document(*bodies: Sequence[str]) -> bytes:
    return json.dumps(
        [{"id": "x", "conversations": [{"from": "a", "value": turn} for turn in body]} for body in bodies]
    ).encode()


def is_even(body: str) -> bool:
    return int(sha(body)[:2], 16) % 2 == 0


@given(st.lists(st.lists(st.text(alphabet="ab\u00e4\n", max_size=60), max_size=3), max_size=12))
def test_which_texts_are_used(bodies: list[list[str]]) -> None:
    """CONTENT-20: Turns joined by newlines, 64 characters at least, of an even digest, in order."""
    expected = tuple(
        text
        for text in ("\n".join(turn for turn in body if turn) for body in bodies)
        if len(text) >= 64 and is_even(text)
    )
    if expected:
        assert texts_of(document(*bodies), "f") == expected
        return
    with pytest.raises(ContentUnavailable) as caught:
        texts_of(document(*bodies), "f")

    assert (caught.value.reason, str(caught.value)) == ("dataset_empty", "dataset_empty")


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1]", b'[{"conversations": 1}]', b'[{"conversations": [{"value": 1}]}]', b"[\xff]",
     b'[{"x": ' + b"[" * 100_000, b'[{"conversations": [1]}]', b'[{"conversations": null}]'],
)  # fmt: skip
def test_what_is_no_dataset_is_unavailable(data: bytes) -> None:
    """CONTENT-20, CONTENT-23: Whatever the bytes are, there is one reason that begins with its word."""
    with pytest.raises(ContentUnavailable) as caught:
        texts_of(data, "/data/f.json")

    assert str(caught.value).startswith(("dataset_unavailable: /data/f.json: ", "dataset_empty"))


def test_halves_of_surrogate_pairs_do_not_cost_the_rest() -> None:
    """CONTENT-20: Old collections of web text have them; their text counts without them for the digest, and
    turns without a text, or with a number, are read too.
    """
    text = BODY[:40] + "\ud83d" + BODY[40:]
    turns: list[dict[str, object]] = [{"value": text}, {"value": None}, {}]
    data = json.dumps([{"conversations": turns}, {"conversations": [{"value": int("7" * 90)}]}]).encode()
    seven = "7" * 90

    assert texts_of(data, "f") == ((text, seven) if is_even(seven) else (text,))


BODY = next(text for text in (f"{number} " + "long enough " * 9 for number in range(50)) if is_even(text))


def test_a_file_of_this_machine(tmp_path: Path) -> None:
    """CONTENT-20, CONTENT-21: It is read where it is, and its digest is known; a wrong one is refused."""
    path = tmp_path / "d.json"
    path.write_bytes(document([BODY]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = load_texts(str(path), sha256=digest, cache_dir="/nonexistent")

    assert (found.texts, found.path, found.sha256) == ((BODY,), str(path), digest)
    with pytest.raises(ContentUnavailable, match="expected aaaa"):
        load_texts(str(path), sha256="a" * 64, cache_dir="/nonexistent")


@pytest.mark.parametrize("name", ["none.json", "folder", "nul\0"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """CONTENT-23: A file that is not there, or is none, is unavailable, and not a crash."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(ContentUnavailable) as caught:
        load_texts(str(tmp_path / name), sha256=None, cache_dir="/nonexistent")

    assert caught.value.reason == "dataset_unavailable"

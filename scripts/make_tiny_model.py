"""Make a tiny model for demos and tests: a random Qwen3 of 164,000 parameters with its own tokenizer.

    python scripts/make_tiny_model.py OUT [--experts N]

With ``--experts`` it is a mixture of experts, two of which compute each token. Nothing is downloaded; it
takes some seconds, and OUT (400 kB) is left alone if it is complete already.
Needs vLLM's environment (torch, transformers, tokenizers). The weights are random, so the text it
writes is nonsense; its forward passes are as real as any.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

SEED = 20_380
VOCABULARY = 1024
CONTEXT = 4096
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
NEEDED = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def complete(folder: Path) -> bool:
    """Say whether ``folder`` holds a finished model."""
    return all((folder / name).is_file() for name in NEEDED)


def made_up_text(rng: random.Random, sentences: int) -> list[str]:
    """Return sentences of made-up words, for the tokenizer to learn from."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(700)]
    return [" ".join(rng.choices(words, k=30)) + "." for _ in range(sentences)]


def save_tokenizer(folder: Path) -> tuple[int, int]:
    """Train and save a byte-level BPE tokenizer; return the ids of the stop and padding tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, START, STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(made_up_text(random.Random(SEED), 1500), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=STOP, pad_token=END, model_max_length=CONTEXT
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer.eos_token_id, tokenizer.pad_token_id


def random_model(stop_id: int, padding_id: int, experts: int) -> Any:
    """Return a model with random weights: dense, or with ``experts`` in each layer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": not experts,
        "bos_token_id": None,
        "eos_token_id": stop_id,
        "pad_token_id": padding_id,
        "dtype": "bfloat16",
    }
    if not experts:
        return Qwen3ForCausalLM(Qwen3Config(**shape))
    routed = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **routed, norm_topk_prob=True))


def save_model(folder: Path, stop_id: int, padding_id: int, experts: int) -> int:
    """Save a model with random weights; return how many parameters it has."""
    import torch

    torch.manual_seed(SEED)
    model = random_model(stop_id, padding_id, experts).to(torch.bfloat16)
    model.generation_config.eos_token_id = stop_id
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def make(out: Path, experts: int = 0) -> int:
    """Make the model beside ``out`` and move it there, so that a broken run leaves no half of one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        parameters = save_model(work, *save_tokenizer(work), experts)
        work.chmod(0o755)
        for path in work.iterdir():
            path.chmod(0o644)
        if out.exists():
            shutil.rmtree(out)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return parameters


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Make a tiny random model; nothing is downloaded.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    parser.add_argument(
        "--experts", type=int, default=0, metavar="N", help="experts in a layer (none: dense)"
    )
    given = parser.parse_args()
    out, experts = given.out, given.experts
    if experts == 1 or experts < 0:
        parser.error("--experts needs at least 2")
    if complete(out):
        print(f"{out} is there already", file=sys.stderr)
        return 0
    if out.exists() and any(out.iterdir()) and not (out / "config.json").exists():
        print(f"{out} is not empty and holds no model: not touched", file=sys.stderr)
        return 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parameters = make(out, experts)
    print(f"{out}: {parameters:,} parameters", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Knows the environment variables of the self-benchmark. All are Dynamo's; most have an option as well."""

from __future__ import annotations

from forwardpass.config import parse
from forwardpass.config.variable import BOOLEAN, Feature, Variable

__all__ = [
    "ALIASES",
    "BENCH_TABLE",
    "COLLECT_IMBALANCED",
    "COLLECT_OVERRIDE",
    "CONTENT_SEED",
    "DECODE_BATCHES",
    "DECODE_KV_READS",
    "DEFAULT_DATASET",
    "DEFAULT_DATASET_SHA256",
    "DEFAULT_OUTPUT_PATH",
    "GC_FREEZE_INTERVAL",
    "GC_POLICY",
    "GIANT_KV_REPEATS",
    "GIANT_KV_THRESHOLD",
    "HF_HOME",
    "HYBRID_LIVE_STATE",
    "KV_WARMUP",
    "KV_WARMUP_CACHE_DIR",
    "KV_WARMUP_DATASET",
    "KV_WARMUP_SHA256",
    "MAX_BATCH_SIZE",
    "MODE",
    "OPTIONS",
    "OUTPUT_OVERRIDE",
    "OUTPUT_PATH",
    "POINTS_FILE",
    "POOL_TAG",
    "PREFILL_BATCHES",
    "PREFILL_CONTENT",
    "PREFILL_KV_READS",
    "PREFILL_NEW_TOKENS",
    "PREFILL_REAL_SEED",
    "RANDOMIZE_KDA_STATE",
    "TIMEOUT",
    "WARMUP_ITERATIONS",
]

DEFAULT_OUTPUT_PATH = "/tmp/benchmark_results.json"
DEFAULT_DATASET = (
    "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main/"
    "ShareGPT_V3_unfiltered_cleaned_split.json"
)
DEFAULT_DATASET_SHA256 = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"


def _row(name: str, parser: object, default: object, accepted: str, meaning: str, **more: bool) -> Variable:
    return Variable(name, parser, default, accepted, meaning, Feature.BENCH, **more)  # type: ignore[arg-type]


def _samples(name: str, default: int, meaning: str, least: int = 2) -> Variable:
    return _row(name, parse.integer(least), default, f"an integer of at least {least}", meaning)


def _alias(name: str, replacement: Variable) -> Variable:
    return _row(
        f"DYN_BENCHMARK_{name}_GRANULARITY",
        parse.or_none(parse.integer(1, 1024)),
        None,
        "an integer in 1 … 1024",
        f"Deprecated: use {replacement.name}.",
    )


MODE = _row(
    "DYN_BENCHMARK_MODE",
    parse.exact(("", "prefill", "decode", "agg")),
    "",
    "prefill, decode or agg",
    "What the self-benchmark measures before serving; without it there is none.",
)
POINTS_FILE = _row(
    "DYN_BENCHMARK_POINTS_FILE",
    parse.text,
    "",
    "a file",
    "Points to measure instead of a generated grid; the limits of samples are then ignored.",
)
PREFILL_NEW_TOKENS = _samples(
    "DYN_PREFILL_MAX_NEW_TOKEN_SAMPLES", 64, "Most numbers of new tokens that prefill points have."
)
PREFILL_KV_READS = _samples(
    "DYN_PREFILL_MAX_KV_READ_TOKEN_SAMPLES",
    16,
    "Most prefixes for each pair of new tokens and batch size.",
)
DECODE_KV_READS = _samples(
    "DYN_DECODE_MAX_KV_READ_TOKEN_SAMPLES", 128, "Most context lengths for each batch size of decode."
)
DECODE_BATCHES = _samples("DYN_DECODE_MAX_BATCH_SIZE_SAMPLES", 128, "Most batch sizes of decode.")
PREFILL_BATCHES = _samples(
    "DYN_PREFIX_MAX_BATCH_SIZE_SAMPLES", 3, "Most batch sizes of prefill; the smallest ones stay.", 1
)
WARMUP_ITERATIONS = _row(
    "DYN_BENCHMARK_WARMUP_ITERATIONS",
    parse.integer(0),
    5,
    "an integer of at least 0",
    "Passes of the request that warms the engine up; 0 for none.",
)
OUTPUT_PATH = _row(
    "DYN_BENCHMARK_OUTPUT_PATH",
    parse.file_path,
    DEFAULT_OUTPUT_PATH,
    "a path that ends in a file name",
    "Artifact of rank 0; others' names derive from it.",
)
TIMEOUT = _row(
    "DYN_BENCHMARK_TIMEOUT",
    parse.above_zero,
    900,
    "a number of seconds above 0",
    "Seconds after which no further point is begun.",
)
MAX_BATCH_SIZE = _row(
    "DYN_BENCHMARK_MAX_BATCH_SIZE",
    parse.or_none(parse.integer()),
    None,
    "an integer of at least 1",
    "Largest batch size of decode that is generated.",
)
COLLECT_IMBALANCED = _row(
    "DYN_BENCHMARK_COLLECT_IMBALANCED",
    parse.boolean,
    False,
    BOOLEAN,
    "Also measure points of a file whose requests differ on purpose.",
)
RANDOMIZE_KDA_STATE = _row(
    "DYN_BENCHMARK_RANDOMIZE_KDA_STATE",
    parse.boolean,
    False,
    BOOLEAN,
    "Fill the recurrent states of decode requests with random numbers.",
)
HYBRID_LIVE_STATE = _row(
    "DYN_BENCHMARK_HYBRID_LIVE_STATE",
    parse.boolean,
    False,
    BOOLEAN,
    "Let decode requests begin with a copy of a live recurrent state.",
)
_OPTION_ROWS = (
    MODE, POINTS_FILE, PREFILL_NEW_TOKENS, PREFILL_KV_READS, DECODE_KV_READS, DECODE_BATCHES, PREFILL_BATCHES,
    WARMUP_ITERATIONS, OUTPUT_PATH, TIMEOUT, MAX_BATCH_SIZE, COLLECT_IMBALANCED, RANDOMIZE_KDA_STATE,
    HYBRID_LIVE_STATE,
)  # fmt: skip
ALIASES: tuple[tuple[Variable, Variable], ...] = (
    (_alias("PREFILL", PREFILL_NEW_TOKENS), PREFILL_NEW_TOKENS),
    (_alias("PREFILL_KV_READ", PREFILL_KV_READS), PREFILL_KV_READS),
    (_alias("PREFILL_BATCH", PREFILL_BATCHES), PREFILL_BATCHES),
    (_alias("DECODE_LENGTH", DECODE_KV_READS), DECODE_KV_READS),
    (_alias("DECODE_BATCH", DECODE_BATCHES), DECODE_BATCHES),
)
"""Deprecated variables, each with the one that replaced it."""
OPTIONS: dict[str, str] = {
    row.name: "--" + row.name.removeprefix("DYN_").lower().replace("_", "-")
    for row in (*_OPTION_ROWS, *(alias for alias, _ in ALIASES))
}
"""Variable -> the option that says the same. Booleans also have ``--no-…``."""

CONTENT_SEED = _row(
    "DYN_BENCH_CONTENT_SEED",
    parse.unicode_text,
    "0",
    "any UTF-8 text",
    "Seed of the tokens of synthetic prompts.",
)
PREFILL_CONTENT = _row(
    "DYN_BENCH_PREFILL_CONTENT",
    parse.text,
    "",
    "sharegpt or sharegpt_chain; anything else is random tokens",
    "What synthetic prompts are made of: windows of real text, whole real texts, or random tokens.",
)
POOL_TAG = _row(
    "DYN_BENCH_POOL_TAG",
    parse.unicode_text,
    "",
    "any UTF-8 text",
    "Another tag draws all windows of real text anew.",
)
PREFILL_REAL_SEED = _row(
    "DYN_BENCH_PREFILL_REAL_SEED",
    parse.boolean,
    False,
    BOOLEAN,
    "Compute the prefixes of prefill points for real before they are timed.",
)
KV_WARMUP = _row(
    "DYN_BENCH_KV_WARMUP",
    parse.switched_on,
    True,
    BOOLEAN,
    "Fill the KV of decode points with real text where the model makes it matter.",
)
KV_WARMUP_DATASET = _row(
    "DYN_BENCH_KV_WARMUP_DATASET",
    parse.text,
    "",
    "a file, or an http(s) URL",
    "Real conversations, a JSON list of {conversations: [{value}]}; by default the public file "
    "ShareGPT_V3_unfiltered_cleaned_split.json.",
)
KV_WARMUP_SHA256 = _row(
    "DYN_BENCH_KV_WARMUP_SHA256",
    parse.sha256,
    "",
    "64 hexadecimal digits",
    "Digest that the file of conversations must have; that of the default file is known.",
)
KV_WARMUP_CACHE_DIR = _row(
    "DYN_BENCH_KV_WARMUP_CACHE_DIR",
    parse.text,
    "",
    "a folder",
    "Where downloaded conversations are kept; fpm_datasets beside HF_HOME, or /tmp/fpm_datasets.",
)
HF_HOME = _row("HF_HOME", parse.text, "", "a folder", "Cache of Hugging Face; fpm_datasets lies beside it.")
GIANT_KV_THRESHOLD = _row(
    "DYN_BENCH_GIANT_KV_THRESHOLD",
    parse.integer(0),
    1_000_000,
    "an integer of at least 0",
    "KV tokens from which a decode point without real KV repeats its steady step.",
)
GIANT_KV_REPEATS = _row(
    "DYN_BENCH_GIANT_KV_REPEATS",
    parse.integer(0),
    3,
    "an integer of at least 0; 0 counts as 1",
    "Steady steps of a decode point that repeats them.",
)
COLLECT_OVERRIDE = _row(
    "DYN_FPM_BENCH_COLLECT_IMBALANCED",
    parse.or_none(parse.boolean),
    None,
    BOOLEAN,
    "Overrides the option of collecting points whose requests differ.",
)
OUTPUT_OVERRIDE = _row(
    "DYN_FPM_BENCHMARK_OUTPUT_PATH",
    parse.or_none(parse.file_path),
    None,
    "a path that ends in a file name",
    "Overrides the path of the artifact; the launcher sets it.",
)
GC_POLICY = _row(
    "DYN_FPM_GC_POLICY",
    parse.choice(("", "freeze")),
    "",
    "freeze",
    "Keep the garbage collector away from what was allocated before, for as long as the benchmark runs.",
)
GC_FREEZE_INTERVAL = _row(
    "DYN_FPM_GC_FREEZE_INTERVAL_S",
    parse.at_least_one,
    60,
    "a number of seconds; below 1 counts as 1",
    "Seconds between two freezes.",
    fallback=True,
)

BENCH_TABLE: tuple[Variable, ...] = (
    *_OPTION_ROWS, *(alias for alias, _ in ALIASES), CONTENT_SEED, PREFILL_CONTENT, POOL_TAG,
    PREFILL_REAL_SEED, KV_WARMUP, KV_WARMUP_DATASET, KV_WARMUP_SHA256, KV_WARMUP_CACHE_DIR, HF_HOME,
    GIANT_KV_THRESHOLD, GIANT_KV_REPEATS, COLLECT_OVERRIDE, OUTPUT_OVERRIDE, GC_POLICY, GC_FREEZE_INTERVAL,
)  # fmt: skip
"""In the order in which they are documented."""

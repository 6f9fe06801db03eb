"""Reading vLLM's own arguments, the role they ask for and the ranks they start here."""

from __future__ import annotations

import pytest

from forwardpass.engines.roles import Backend
from forwardpass.engines.vllm.arguments import FLAGS, SHORT_FORMS, VALUES, ServeArguments, read_arguments
from forwardpass.engines.vllm.role import ModelFacts, serve_role
from forwardpass.engines.vllm.topology import LocalRanks, local_ranks


def read(text: str) -> ServeArguments:
    """Read a command line written as one text."""
    return read_arguments(text.split())


@pytest.mark.parametrize(
    ("text", "model", "leading"),
    [
        ("m --port 1", "m", True),
        ("--port 1 --model m", "m", False),
        ("--model=m", "m", False),
        ("--port 1", None, False),
        ("", None, False),
    ],
)
def test_the_model_is_the_first_argument_or_an_option(text: str, model: str | None, leading: bool) -> None:
    """``vllm serve MODEL`` and ``--model MODEL`` are both understood."""
    arguments = read(text)

    assert (model, leading) == (arguments.model, arguments.leading_model)


@pytest.mark.parametrize(
    "text",
    [
        "m --scheduler-cls a.B",
        "m --scheduler-cls=a.B",
        "m --scheduler_cls a.B",
        "m --scheduler_cls=a.B",
        "m --scheduler-cls x.Y --port 8000 --scheduler-cls a.B",
    ],
)
def test_every_spelling_of_an_option_is_understood_and_the_last_wins(text: str) -> None:
    """Dashes, underscores, ``=`` and repetition behave as in vLLM's parser."""
    assert read(text).scheduler_cls == "a.B"


def test_a_value_that_looks_like_an_option_is_a_value() -> None:
    """The token after an option that takes a value is never read as an option."""
    assert read("m --runner --headless").headless is False
    assert read("m --model --headless").headless is False


def test_what_stands_after_a_double_dash_is_no_option() -> None:
    """``--`` ends the options for vLLM's parser, and for us."""
    assert read("m -- --headless").headless is False


def test_an_option_without_its_value_is_left_to_vllm() -> None:
    """A command line that ends too early is not our error to report."""
    assert read("m --scheduler-cls") == read("m")


@pytest.mark.parametrize("text", ["m --data-parallel-size two", "m -dp", "m --data-parallel-size=-1"])
def test_a_number_that_is_none_counts_as_not_given(text: str) -> None:
    """vLLM refuses such a command line itself; we do not guess."""
    assert read(text).data_parallel_size == 1


def test_a_config_file_is_read_below_the_command_line() -> None:
    """The YAML file's options count, and an option on the command line wins over them."""
    config = {
        "scheduler-cls": "a.B",
        "data_parallel_size": 4,
        "headless": True,
        "kv-transfer-config": {"kv_role": "kv_producer"},
        "served-model-name": ["a", "b"],
        "seed": None,
    }

    from_file = read_arguments(["m", "--config", "c.yaml"], config)
    overridden = read_arguments(["m", "--config", "c.yaml", "--scheduler-cls", "c.D", "-dp", "2"], config)

    assert (from_file.scheduler_cls, from_file.data_parallel_size, from_file.headless) == ("a.B", 4, True)
    assert from_file.kv_role == "kv_producer"
    assert from_file.config == "c.yaml"
    assert (overridden.scheduler_cls, overridden.data_parallel_size) == ("c.D", 2)


def test_a_flag_can_be_taken_back() -> None:
    """``--no-…`` after a flag, or ``false`` in the file, turns it off again."""
    assert read("m --mm-encoder-only --no-mm-encoder-only").mm_encoder_only is False
    assert read_arguments(["m"], {"mm-encoder-only": False}).mm_encoder_only is False


def test_the_table_of_options_is_consistent() -> None:
    """Every short form stands for an option that is understood; none is both flag and value."""
    assert set(SHORT_FORMS.values()) <= VALUES | FLAGS
    assert not VALUES & FLAGS


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("m", "aggregated"),
        ("m --runner generate", "aggregated"),
        ("m --runner auto --convert none", "aggregated"),
        ("m --runner pooling", "pooling"),
        ("m --runner=pooling --convert embed", "embedding"),
        ("m --convert classify", "classify"),
        ("m --convert reward", "pooling"),
        ("m --task embed", "embedding"),
        ("m --task score", "embedding"),
        ("m --task generate", "aggregated"),
        ("m --headless", "headless"),
        ("m --headless --runner pooling", "headless"),
        ("m --api-server-count 0", "headless"),
        ("m -asc 2", "aggregated"),
        ("m --mm-encoder-only", "multimodal encode"),
        ('m --ec-transfer-config {"ec_role":"ec_producer"}', "multimodal encode"),
        ('m --ec_transfer_config={"ec_role":"ec_consumer"}', "aggregated"),
        ("m --ec-transfer-config.ec_role ec_producer", "multimodal encode"),
        ('m --kv-transfer-config {"kv_role":"kv_producer"}', "prefill"),
        ('m --kv-transfer-config {"kv_role":"kv_consumer"}', "decode"),
        ('m --kv-transfer-config {"kv_role":"kv_both"}', "aggregated"),
        ("m --kv-transfer-config.kv_role=kv_consumer", "decode"),
        ("m --kv-transfer-config {broken", "aggregated"),
        ("m --kv-transfer-config [1]", "aggregated"),
    ],
)
def test_the_role_follows_from_the_arguments(text: str, role: str) -> None:
    """ENG-30: Each way of asking for a role leads to its row of the table."""
    found = serve_role(read(text))

    assert (Backend.VLLM, role) == (found.backend, found.name)


@pytest.mark.parametrize(
    ("architecture", "role"),
    [
        ("Qwen3ForCausalLM", "aggregated"),
        ("LlavaForConditionalGeneration", "aggregated"),
        ("BertForSequenceClassification", "classify"),
        ("ModernBertForTokenClassification", "classify"),
        ("Qwen2ForRewardModeling", "pooling"),
        ("InternLM2ForRewardModel", "pooling"),
        ("BertModel", "embedding"),
        ("Something", "aggregated"),
    ],
)
def test_the_role_follows_from_the_model_when_no_option_decides(architecture: str, role: str) -> None:
    """A local model that pools by its architecture is no generating worker, as vLLM's own default has it."""
    facts = ModelFacts(architectures=(architecture,))

    assert serve_role(read("m"), facts).name == role
    assert serve_role(read("m --runner generate"), facts).name == "aggregated"


def test_a_sentence_transformer_pools_whatever_its_architecture() -> None:
    """Some embedding models are stored as causal language models; their own file says what they are."""
    facts = ModelFacts(architectures=("Qwen3ForCausalLM",), sentence_transformer=True)

    assert serve_role(read("m"), facts).name == "embedding"


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("m", 1, [0]),
        ("m --data-parallel-size 4", 4, [0, 1, 2, 3]),
        ("m -dp 2", 2, [0, 1]),
        ("m -dp=2", 2, [0, 1]),
        ("m -dp 4 --data-parallel-size-local 2", 4, [0, 1]),
        ("m -dp 4 -dpl 2 --data-parallel-start-rank 2", 4, [2, 3]),
        ("m -dp 4 -dpl 2 -dpr 2 --data-parallel-hybrid-lb", 4, [2, 3]),
        ("m -dp 4 --data-parallel-size-local 0", 4, []),
        ("m -dp 4 --data-parallel-rank 3", 4, [3]),
        ("m -dp 4 -dpn 0", 4, [0]),
        ("m -dp 4 -dpe --data-parallel-rank 1", 4, [1]),
        ("m -dp 4 -tp 2 -dpe --nnodes 4 --node-rank 3", 4, [3]),
        ("m -dp 4 -tp 2 --nnodes 2 --node-rank 1", 4, [2, 3]),
        ("m -dp 4 -tp 2 -n 2 -r 1 -dpl 1", 4, [2]),
        ("m -dp 2 -tp 4 -pp 2 --nnodes 4 --node-rank 3", 2, [1]),
        ("m -dp 4 -dpl 2 -dpm", 4, [0, 1]),
        ("m -dp 4 -dpl 2 -dpm -dpr 2", 4, [2, 3]),
        ("m -dp 4 -dpl 2 --data-parallel-multi-port-external-lb --node-rank 1", 4, [2, 3]),
    ],
)
def test_only_ranks_with_an_engine_on_this_host_are_local(text: str, size: int, ranks: list[int]) -> None:
    """ENG-34: A relay exists for the ranks that this launch starts, by load-balancing mode (D-18)."""
    found = local_ranks(read(text))

    assert (size, ranks) == (found.dp_size, list(found.ranks))


def test_a_single_engine_is_rank_zero_of_one() -> None:
    """The default is one rank, here."""
    assert local_ranks(ServeArguments()) == LocalRanks(1, 0, 1)

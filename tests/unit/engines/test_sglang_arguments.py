"""What SGLang's own arguments say about roles, ranks and its publisher."""

from __future__ import annotations

import pytest

from forwardpass.engines.model_files import ModelFacts
from forwardpass.engines.roles import Backend, find_role
from forwardpass.engines.sglang.arguments import LaunchArguments, read_arguments
from forwardpass.engines.sglang.role import launch_role
from forwardpass.engines.sglang.topology import local_ranks


def read(text: str, **config: object) -> LaunchArguments:
    """Read a command line, over a config file's mapping."""
    return read_arguments(text.split(), config)


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("--model-path m", "aggregated"),
        ("--model-path m --disaggregation-mode null", "aggregated"),
        ("--model-path m --disaggregation-mode=prefill", "prefill"),
        ("--model-path m --disaggregation-mode decode --enable-multimodal", "decode"),
        ("--model-path m --dllm-algorithm LowConfidence", "LLM diffusion"),
        ("--model-path m --enable-multimodal", "multimodal"),
        ("--model-path m --enable-multimodal --encoder-only", "multimodal encoder"),
        ("--model-path m --is-embedding", "embedding"),
        ("--model-path m --tokenizer-worker-num 2", "gateway"),
        ("--model-path m --tokenizer-worker-num 1", "aggregated"),
    ],
)
def test_the_role_follows_from_the_arguments(text: str, role: str) -> None:
    """SGL-01: Each role that the server's arguments can ask for is told from the others."""
    assert launch_role(read(text)) is find_role(Backend.SGLANG, role)


@pytest.mark.parametrize(
    ("model", "role"),
    [
        (ModelFacts(("Qwen3ForCausalLM",)), "aggregated"),
        (ModelFacts(("BertForSequenceClassification",)), "rerank"),
        (ModelFacts(("LlamaEmbeddingModel",)), "embedding"),
        (ModelFacts(("Qwen3ForCausalLM",), sentence_transformer=True), "embedding"),
        (ModelFacts(), "aggregated"),
    ],
)
def test_the_role_follows_from_a_local_model(model: ModelFacts, role: str) -> None:
    """SGL-01: A model that says itself that it ranks or embeds has that role without an option."""
    assert launch_role(read("--model-path m"), model).name == role


def test_the_command_line_wins_over_the_config_file() -> None:
    """SGL-01: A config file's keys have underscores, and each option of the command line replaces its own."""
    facts = read(
        "--dp-size 3 --forward-pass-metrics-worker-id w",
        model_path="m",
        data_parallel_size=2,
        enable_forward_pass_metrics=True,
        is_embedding=False,
        forward_pass_metrics_ipc_name="ipc:///run/x",
        cuda_graph_bs=[1, 2],
    )

    assert (facts.model, facts.dp_size, facts.worker_id) == ("m", 3, "w")
    assert (facts.switched_on, facts.is_embedding, facts.ipc_name) == (True, False, "ipc:///run/x")


@pytest.mark.parametrize("text", ["--tp-size", "--tp-size x --nnodes=-1 --node-rank ''", "--help", "-- x"])
def test_what_sglang_will_refuse_is_left_to_it(text: str) -> None:
    """SGL-01: Reading never fails, and what is no number counts as not given."""
    facts = read(text)

    assert (facts.tp_size, facts.nnodes, facts.node_rank) == (1, 1, 0)
    assert facts.only_help is ("--help" in text)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("", (0,)),
        ("--tp-size 4", (0,)),
        ("--dp-size 3", (0, 1, 2)),
        ("--data-parallel-size 2 --tensor-parallel-size 2", (0, 1)),
        ("--tp-size 8 --dp-size 4 --enable-dp-attention", (0, 1, 2, 3)),
        ("--tp-size 8 --attn-dp-size 4", (0, 1, 2, 3)),
        ("--tp-size 16 --attn-dp-size 4 --nnodes 2 --node-rank 0", (0, 1)),
        ("--tp-size 16 --attn-dp-size 4 --nnodes 2 --node-rank 1", (2, 3)),
        ("--tp-size 8 --dp-size 8 --enable-dp-attention --nnodes 4 --node-rank 3", (6, 7)),
        ("--tp-size 16 --attn-dp-size 1 --nnodes 2 --node-rank 0", (0,)),
        ("--tp-size 16 --nnodes 2 --node-rank 1", ()),
        ("--tp-size 16 --attn-dp-size 2 --nnodes 4 --node-rank 1", ()),
        ("--pp-size 2 --nnodes 2 --node-rank 0", ()),
        ("--pp-size 2 --nnodes 2 --node-rank 1", (0,)),
        ("--pp-size 2 --tp-size 4 --attn-dp-size 2 --nnodes 4 --node-rank 2", (0,)),
        ("--pp-size 2 --tp-size 4 --attn-dp-size 2 --nnodes 4 --node-rank 3", (1,)),
        ("--pp-size 2", (0,)),
    ],
)
def test_ranks_with_a_publisher_on_this_node(text: str, ranks: tuple[int, ...]) -> None:
    """SGL-04, D-18: Attention tensor rank 0 of the last pipeline stage publishes for each data-parallel rank;
    with attention data parallelism on one stage a node has ``dp_size // nnodes`` ranks from ``node_rank``
    times that.
    """
    assert local_ranks(read(text)) == ranks

"""Knows which role a command of SGLang asks for, from its arguments and the model's own description.

Image diffusion, video generation and snapshots are workers that another program starts; no argument of
``sglang.launch_server`` asks for them.
"""

from __future__ import annotations

from forwardpass.engines.model_files import ModelFacts
from forwardpass.engines.roles import Backend, Role, find_role
from forwardpass.engines.sglang.arguments import LaunchArguments

__all__ = ["launch_role"]

_RANKS = ("ForSequenceClassification", "ForRewardModel", "RewardModel")
_EMBEDS = ("EmbeddingModel", "BertModel", "CLIPModel", "MistralModel", "ForTextEncoding")


def launch_role(arguments: LaunchArguments, model: ModelFacts | None = None) -> Role:
    """Return the row of the role table for this command.

    A model that is not a local directory cannot be looked into: unless an option says that it embeds, it
    counts as generating.
    """
    return find_role(Backend.SGLANG, _role_name(arguments, model or ModelFacts()))


def _role_name(arguments: LaunchArguments, model: ModelFacts) -> str:
    if arguments.encoder_only:
        return "multimodal encoder"
    if any(architecture.endswith(_RANKS) for architecture in model.architectures):
        return "rerank"
    if arguments.is_embedding or model.sentence_transformer:
        return "embedding"
    if any(architecture.endswith(_EMBEDS) for architecture in model.architectures):
        return "embedding"
    if arguments.tokenizer_workers > 1:
        return "gateway"
    if arguments.disaggregation_mode in ("prefill", "decode"):
        return arguments.disaggregation_mode
    if arguments.dllm_algorithm is not None:
        return "LLM diffusion"
    return "multimodal" if arguments.enable_multimodal else "aggregated"

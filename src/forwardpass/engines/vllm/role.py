"""Knows which role a vLLM command asks for, from its arguments and the model's own description."""

from __future__ import annotations

from collections.abc import Sequence

from forwardpass.engines.model_files import ModelFacts
from forwardpass.engines.roles import Backend, Role, find_role
from forwardpass.engines.vllm.arguments import ServeArguments

__all__ = ["ModelFacts", "pooling_role", "serve_role"]

_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_POOLS = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "classify",
    "ForAudioClassification": "classify",
    "ForImageClassification": "classify",
    "ForVideoClassification": "classify",
    "ClassificationModel": "classify",
    "ForRewardModeling": "pooling",
    "RewardModel": "pooling",
    "ForTextEncoding": "embedding",
    "Model": "embedding",
}
_ASKED = {
    "embed": "embedding",
    "embedding": "embedding",
    "score": "embedding",
    "classify": "classify",
    "reward": "pooling",
}


def pooling_role(architectures: Sequence[str]) -> str | None:
    """Return the pooling role that vLLM gives an architecture by the end of its name, or ``None``.

    Read in vLLM 0.32.0, ``config/model.py``: the first architecture whose name ends in a known way
    decides. vLLM's registry may know a model better; then the engine says so in its log.
    """
    for architecture in architectures:
        if architecture.endswith(_GENERATES):
            return None
        for ending, role in _POOLS.items():
            if architecture.endswith(ending):
                return role
    return None


def serve_role(arguments: ServeArguments, model: ModelFacts | None = None) -> Role:
    """Return the row of the role table for this command.

    A model that is not a local directory cannot be looked into: unless an option says that it pools,
    it counts as generating.
    """
    return find_role(Backend.VLLM, _role_name(arguments, model or ModelFacts()))


def _role_name(arguments: ServeArguments, model: ModelFacts) -> str:
    if arguments.headless or arguments.api_server_count == 0:
        return "headless"
    if arguments.mm_encoder_only or arguments.ec_role == "ec_producer":
        return "multimodal encode"
    asked = _ASKED.get(arguments.convert or "") or _ASKED.get(arguments.task or "")
    by_model = "embedding" if model.sentence_transformer else pooling_role(model.architectures)
    if arguments.runner == "pooling":
        return asked or by_model or "pooling"
    if arguments.runner in (None, "auto") and (asked or by_model):
        return asked or by_model or "pooling"
    if arguments.kv_role in ("kv_producer", "kv_consumer"):
        return "prefill" if arguments.kv_role == "kv_producer" else "decode"
    return "aggregated"

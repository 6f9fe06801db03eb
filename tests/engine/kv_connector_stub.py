"""A KV connector for tests: every prompt's KV is elsewhere and arrives when the test says so.

vLLM loads it by name from this module (``KVTransferConfig.kv_connector_module_path``). Only the
scheduler's side does anything; there is no worker in these tests.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class NoMetadata(KVConnectorMetadata):
    """Nothing for the worker."""


class RemoteEverything(KVConnectorBase_V1, SupportsHMA):
    """The decode side of a disaggregated pair: asks for the whole prompt, asynchronously."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        remote = request.num_prompt_tokens - num_computed_tokens
        return (remote, True) if request.num_output_tokens == 0 and remote > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return NoMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


class AsPlanned(RemoteEverything):
    """Loads what each request's ``kv_transfer_params`` say, and remembers what it was asked for.

    The parameters are a dictionary: ``tokens`` of the prompt are elsewhere, ``is_async`` says how they
    come, ``unknown`` is how often the answer is not known yet, ``hold`` keeps the blocks of a finished
    request until somebody has read them (the producer's side). A test may change it at any time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.started: list[tuple[str, bool, int, int]] = []
        """Loads since a test last looked: request, whether asynchronous, tokens hit here, tokens in all."""
        self.held: list[str] = []
        """Finished requests whose blocks somebody still reads."""
        self._asked: tuple[int, int] = (0, 0)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        plan = request.kv_transfer_params
        if not plan or not plan["tokens"]:
            return 0, False
        if plan["unknown"] > 0:
            plan["unknown"] -= 1
            return None, False
        most = request.num_tokens if plan["is_async"] else request.num_tokens - 1
        tokens = min(plan["tokens"], most)
        if tokens <= num_computed_tokens:
            return 0, False
        self._asked = (num_computed_tokens, tokens)
        return tokens - num_computed_tokens, plan["is_async"]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self.started.append((request.request_id, request.kv_transfer_params["is_async"], *self._asked))

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        plan = request.kv_transfer_params
        hold = bool(plan and plan["hold"]) and request.status.name in (
            "FINISHED_STOPPED",
            "FINISHED_LENGTH_CAPPED",
        )
        if hold:
            self.held.append(request.request_id)
        return hold, None


class SlowLookups(RemoteEverything):
    """Never knows yet whether KV is elsewhere, and lets other threads run while it asks."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        time.sleep(0.00005)
        return None, False

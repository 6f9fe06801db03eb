"""A KV connector for tests: every prompt's KV is elsewhere and arrives when the test says so.

vLLM loads it by name from this module (``KVTransferConfig.kv_connector_module_path``). Only the
scheduler's side does anything; there is no worker in these tests.
"""

from __future__ import annotations

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

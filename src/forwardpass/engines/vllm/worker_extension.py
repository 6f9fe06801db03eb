"""Knows what a model worker is asked after a self-benchmark: what runs in it, and to stop counting graphs.

vLLM mixes the class into its own worker class, in every worker, and asks by the names of its methods. So this
module imports nothing and has no effect, and its class has no name that a worker could have: vLLM refuses
those.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ForwardPassWorkerExtension"]


class ForwardPassWorkerExtension:
    """Methods for vLLM's ``collective_rpc``. They return plain values: other objects do not travel."""

    rank: int
    vllm_config: Any

    def fpm_disable_cudagraph_metrics(self) -> dict[str, bool]:
        """Stop recording which CUDA graph each pass runs in; the worker asks for that before every pass."""
        self.vllm_config.observability_config.cudagraph_metrics = False
        return {"cudagraph_metrics": False}

    def fpm_engine_probe(self) -> dict[str, Any]:
        """Return this worker's place, its attention backends and its graphs (specification 9.1).

        A name that this vLLM does not have fails the call: nothing is guessed.
        """
        config = self.vllm_config
        parallel, compilation = config.parallel_config, config.compilation_config
        tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        context = parallel.prefill_context_parallel_size
        layers = compilation.static_forward_context
        backends, errors = _attention_backends(layers)
        mode = compilation.cudagraph_mode
        return {
            "dp_rank": parallel.data_parallel_index,
            "worker_rank": self.rank,
            "tp_rank": self.rank % tensor,
            "pp_rank": self.rank // (tensor * context) % pipeline,
            "pcp_rank": self.rank // tensor % context,
            "attention_backends": backends,
            "capture_errors": errors,
            "mla_prefill_backend": _prefill_backend(layers),
            "cudagraph_mode_resolved": None if mode is None else mode.name,
            "cudagraph_capture_sizes_resolved": [
                int(size) for size in compilation.cudagraph_capture_sizes or ()
            ],
        }


def _attention_backends(layers: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return the backend of each attention layer, and what went wrong with those that do not say."""
    backends: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name, layer in layers.items():
        get_backend = getattr(layer, "get_attn_backend", None)
        if not callable(get_backend):
            continue
        try:
            backends[name] = str(get_backend().get_name())
        except Exception as error:  # noqa: BLE001  boundary: one layer's trouble is its own
            errors[name] = f"{type(error).__name__}: {error}"
    return backends, errors


def _prefill_backend(layers: Any) -> str | None:
    """Return the class of the layers' backend for MLA prefills if they have one, and the same one."""
    found = [getattr(layer, "prefill_backend", None) for layer in layers.values()]
    names = {
        backend.__name__ if isinstance(backend, type) else type(backend).__name__
        for backend in found
        if backend is not None
    }
    return names.pop() if len(names) == 1 else None

"""The adapter for TensorRT-LLM: its iteration statistics are asked for and mapped; none of it is imported."""

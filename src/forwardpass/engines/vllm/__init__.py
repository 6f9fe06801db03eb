"""The adapter for stock vLLM. Importing this package does not import vLLM."""

"""The adapter for SGLang, which has a publisher of its own; no SGLang is imported."""

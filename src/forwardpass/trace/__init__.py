"""Traces: bounded, crash-safe gzip-JSONL files, written and read."""

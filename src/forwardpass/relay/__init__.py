"""Relays: from an engine's raw stream into the trace, and on to an event plane."""

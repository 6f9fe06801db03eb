"""Relays: from the raw stream of each rank to the trace and the event plane."""

"""A soak of the real engine: load, restarts, witnesses, and what must hold afterwards."""

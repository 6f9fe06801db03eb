"""The raw stream: what leaves an engine process over ZMQ."""

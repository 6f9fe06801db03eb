"""Collecting the forward passes of a whole fleet from a stream of JetStream, each of them once."""

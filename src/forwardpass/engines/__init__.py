"""Engine adapters. Nothing outside this package imports an engine."""

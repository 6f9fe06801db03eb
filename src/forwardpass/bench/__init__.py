"""The self-benchmark: what is measured (pure planning), how a point is run, and what is recorded of it.

Nothing here knows an engine: an engine offers a driver of few verbs, and all above it is the same for each.
"""

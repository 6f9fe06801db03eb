"""The files of a self-benchmark: what they hold, how they are checked and merged, what workers reply.

Pure but for the files themselves; nothing here knows an engine.
"""

"""What the torture of the trace writer is made of: one check, or one idea behind the checks, per file."""

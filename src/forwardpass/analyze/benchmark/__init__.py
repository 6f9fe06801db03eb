"""What the files of self-benchmarks say: one run to look at, two to compare; pure but for the reading."""

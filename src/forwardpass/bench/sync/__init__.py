"""How the ranks of a self-benchmark agree: on a grid, when to run a point, its results, and when to stop."""

"""The mock engine: a continuous-batching scheduler with an analytic cost model instead of a GPU."""

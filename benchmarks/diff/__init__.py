"""Two versions of a join compared over one history: ``python -m benchmarks.diff``."""

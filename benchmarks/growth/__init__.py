"""How a batch's time grows: ``python -m benchmarks.growth``."""

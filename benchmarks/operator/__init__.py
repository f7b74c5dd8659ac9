"""The join operators alone, from Arrow to Arrow: ``python -m benchmarks.operator``."""

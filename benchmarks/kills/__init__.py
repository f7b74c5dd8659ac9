"""What may befall a driver, its checkpoint or its settings: ``python -m benchmarks.kills``."""

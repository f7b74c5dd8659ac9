"""What a large state costs: ``python -m benchmarks.state.sizes`` and ``checkpoint_cost``."""

"""Weeks of two Kafka topics replayed: ``python -m benchmarks.replay``; and what else is asked of topics."""

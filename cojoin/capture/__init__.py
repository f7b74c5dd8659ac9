"""Captures keys of real inputs as tests: their rows, the output for them, and a pytest file that replays them."""

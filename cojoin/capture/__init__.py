"""Captures keys of real inputs as tests: their rows, what came out of them, and a pytest file that replays them."""

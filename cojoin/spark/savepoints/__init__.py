"""Savepoints that no query has taken: made from DataFrames, or from a checkpoint without some keys."""

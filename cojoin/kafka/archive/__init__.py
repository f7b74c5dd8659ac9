"""Older records of a topic in parquet files, read as a part of the topic."""

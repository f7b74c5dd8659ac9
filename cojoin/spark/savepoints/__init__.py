"""Savepoints: a query begins with one, or one is made without a query, from DataFrames or without some keys."""

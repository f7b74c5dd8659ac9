"""Queries on Spark: ``connect``, inputs, joins, and below them all that runs a query."""

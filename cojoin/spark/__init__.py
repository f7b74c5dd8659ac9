"""Queries on Spark: ``connect``, inputs and joins, and the packages that run a query."""

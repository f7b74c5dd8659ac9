"""The sinks of a query's outputs."""

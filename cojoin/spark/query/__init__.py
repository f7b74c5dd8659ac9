"""The run of a query, from its start and its checks, through its micro-batches, to its end."""

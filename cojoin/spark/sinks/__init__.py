"""Where a query's outputs go."""

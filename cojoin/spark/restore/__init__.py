"""A new query that begins with another's state."""

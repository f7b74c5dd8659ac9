"""A Delta table as a side of a stream: how long it takes to load and to join, beside Spark's own stream-static join."""

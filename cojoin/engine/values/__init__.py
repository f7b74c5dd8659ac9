"""Values: Spark's types without Spark, rows, keys and Arrow tables, and the way to bytes and back."""

"""Values: Spark's types without Spark, rows, keys, Arrow tables, and their encoding as bytes."""

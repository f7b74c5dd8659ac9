"""The embedded way: joins of rows in memory, executed in this process by the operators that Spark's workers use."""

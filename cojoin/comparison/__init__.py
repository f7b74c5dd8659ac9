"""The comparison of two versions of a join or function over the same history, one key group at a time; no Spark."""

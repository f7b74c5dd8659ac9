"""A Spark session: its jars, its settings, its Python workers."""

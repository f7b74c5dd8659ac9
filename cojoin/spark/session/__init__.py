"""The Spark session: its jars, its settings and its Python workers."""

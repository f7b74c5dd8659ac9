"""The process that Spark forks its Python workers from, on the driver's own machine: it has what they import.

So a worker is there at once, where it would take most of a second of a core, and workers share the memory of what was
imported: some 70 MB each. ``spark_session`` asks for it where it starts a local Spark on Linux; elsewhere a worker may
be on a machine where cojoin comes later than the process, or where a fork after so many imports is not safe.
"""

from __future__ import annotations

from pyspark.daemon import manager

from cojoin.spark.session.warming import import_modules

if __name__ == "__main__":
    import_modules()
    manager()

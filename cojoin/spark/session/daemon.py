"""The Python process from which a local Spark forks its workers, with the workers' modules already imported.

A worker then starts at once instead of taking most of a second of a core, and workers share the memory of the imported
modules, some 70 MB each. ``spark_session`` uses this daemon only if it starts a local Spark on Linux. On a cluster the
daemon may start before cojoin is installed for it, and on other systems a fork after these imports may not be safe.
"""

from __future__ import annotations

from pyspark.daemon import manager

from cojoin.spark.session.warming import import_modules

if __name__ == "__main__":
    import_modules()
    manager()

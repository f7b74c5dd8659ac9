"""The Python process from which a local Spark forks its workers, with the workers' modules already imported.

A worker then starts at once instead of taking most of a second of a core, and workers share the memory of the imported
modules, some 70 MB each. After each task, a worker of Spark's collects garbage, which takes 30 milliseconds of a core
where it looks at all that was imported, and writes to that memory; so those objects are excluded (``gc.freeze``).

Spark has a daemon for each kind of worker. Those by which it looks for, makes and plans data sources import little: a
query starts three of them, one after the other.

``spark_session`` uses this daemon only if it starts a local Spark on Linux. On a cluster the daemon may start before
cojoin is installed for it, and on other systems a fork after these imports may not be safe.
"""

from __future__ import annotations

import gc
import sys

_WORKER = "pyspark.worker"
"""The module of the workers that execute tasks, by which Spark calls their daemon."""


def main() -> None:
    """Import what the workers need, and fork them as Spark asks for them."""
    from pyspark.daemon import manager  # noqa: PLC0415 - PySpark is imported only when the daemon starts

    if sys.argv[1:2] in ([], [_WORKER]):
        from cojoin.session.workers import import_modules  # noqa: PLC0415 - it imports PySpark

        import_modules()
    else:
        import cojoin.session.sealed  # noqa: F401, PLC0415 - as above
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()

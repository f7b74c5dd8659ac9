"""The Python process from which a local Spark forks its workers, with the workers' modules already imported.

A worker then starts at once instead of taking most of a second of a core, and workers share the memory of the imported
modules, some 70 MB each. After each task, a worker of Spark's collects garbage, which takes 30 milliseconds of a core
where it looks at all that was imported, and writes to that memory; so those objects are excluded (``gc.freeze``).
PySpark itself is imported from the folder where pip has installed it: Spark names an archive, without compiled modules,
which takes half a second more.

Spark has a daemon for each kind of worker. Those by which it looks for, makes and plans data sources import little: a
query starts three of them, one after the other.

``spark_session`` uses this daemon only if it starts a local Spark on Linux. On a cluster the daemon may start before
cojoin is installed for it, and on other systems a fork after these imports may not be safe.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


_WORKER = "pyspark.worker"
"""The module of the workers that execute tasks, by which Spark calls their daemon."""


def installed_folders(paths: Iterable[str]) -> list[str]:
    """Return the folders where pip has installed the PySparks whose archives are among some import paths.

    >>> installed_folders(["/opt/spark/python/lib/pyspark.zip", "/home/me/jobs"])
    []
    """
    folders = []
    for path in map(Path, paths):
        if path.parts[-4:] == ("pyspark", "python", "lib", "pyspark.zip"):
            folder = path.parents[3]
            folders += [str(folder)] if (folder / "pyspark" / "daemon.py").is_file() else []
    return folders


def main() -> None:
    """Import what the workers need, and fork them as Spark asks for them."""
    folders = installed_folders(sys.path)
    sys.path[:0] = folders
    import pyspark  # noqa: F401, PLC0415 - its other modules come from where it is found now

    del sys.path[: len(folders)]
    from pyspark.daemon import manager  # noqa: PLC0415 - as above

    if sys.argv[1:2] in ([], [_WORKER]):
        from cojoin.session.workers import import_modules  # noqa: PLC0415 - it imports PySpark

        import_modules()
    else:
        import cojoin.session.sealed  # noqa: F401, PLC0415 - as above
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()

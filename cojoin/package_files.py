"""The package's own files: how they were when this process imported it, and what is in them now.

Spark's workers import the present files when they begin. If a file was changed after a driver's import and before its
first query, they would have the new one, the driver the former one, and a digest of the present files would be theirs.
So the import of cojoin notes the size and the time of each file (``IMPORTED``), and ``session.sealed`` reads contents
only at the first query, where it compares these. That costs the import 2 milliseconds for 450 files on a local disk.

The functions travel by value to processes in which cojoin may be missing: they import nothing of it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    Stamps: TypeAlias = frozenset[tuple[str, int, int]]


def stamps(spec: Any) -> Stamps:
    """Return the name, bytes and time in nanoseconds of each file, or of the archive that holds them all."""
    if spec is None or spec.origin is None:
        return frozenset()
    archive, noted = getattr(spec.loader, "archive", None), []
    for name, path in [(os.path.basename(archive), archive)] if archive else _in_folder(os.path.dirname(spec.origin)):  # noqa: PTH119, PTH120
        try:
            known = os.stat(path)  # noqa: PTH116 - this is part of the import
        except OSError:
            continue
        noted.append((name, known.st_size, known.st_mtime_ns))
    return frozenset(noted)


def sources(spec: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the path within the package, and the content, of each source; of compiled modules where there are none."""
    archive = getattr(spec.loader, "archive", None)
    if archive:
        files = dict(_in_archive(archive, spec.loader.prefix))
    else:
        files = {name: _content(path) for name, path in _in_folder(os.path.dirname(spec.origin))}  # noqa: PTH120
    suffix = ".py" if "__init__.py" in files else ".pyc"
    for name, content in files.items():
        if name.endswith(suffix):
            yield name, content.replace(b"\r\n", b"\n") if suffix == ".py" else content


def _in_folder(root: str) -> Iterator[tuple[str, str]]:
    """Yield the path within a folder, and the path, of each source and each compiled module that stands for one."""
    folders = [root]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    # Neither caches nor what editors and notebooks keep next to the sources.
                    if entry.name.startswith(".") or entry.name == "__pycache__":
                        continue
                    if entry.name.endswith((".py", ".pyc")):
                        yield entry.path[len(root) + 1 :].replace(os.sep, "/"), entry.path
                    elif entry.is_dir():
                        folders.append(entry.path)
        except OSError:
            continue


def _in_archive(archive: str, prefix: str) -> Iterator[tuple[str, bytes]]:
    import zipfile  # noqa: PLC0415 - it would slow the import

    begin = f"{prefix}cojoin/".replace(os.sep, "/")
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            parts = name[len(begin) :].split("/")
            hidden = any(each == "__pycache__" or each.startswith(".") for each in parts)
            if name.startswith(begin) and name.endswith((".py", ".pyc")) and not hidden:
                yield "/".join(parts), opened.read(name)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        return file.read()


IMPORTED: Stamps = stamps(sys.modules["cojoin"].__spec__)
"""The files when this process imported the package."""

"""Folders of jars in the user's cache. Each is fetched once, by one process, and is either complete or absent.

A folder is filled under a temporary name, with a list of its files, and then renamed. The next process removes what a
killed process left. Other processes wait for a lock, which the operating system releases when the holder ends.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.errors import EnvironmentSetupError
from cojoin.session.jar_fetching import find_jars
from cojoin.storage.file_lock import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["cache_folder", "fetch_jars", "tell"]

_CHOSEN = "COJOIN_JARS"
_LIST = "jars.txt"
_LONGEST_NAME = 100
_FAILED, _PAUSES = "download failed", (2, 5)
"""What Ivy says where a repository breaks off, and the seconds after which it is asked again."""

# Versions that Maven and Ivy may resolve differently later: a snapshot, a range, the latest.
_CHANGING = re.compile(r"-SNAPSHOT$|^latest\.|[\[\](),+]")


def cache_folder() -> Path:
    """Return the folder of the jars: the environment variable ``COJOIN_JARS``, or a folder in the user's cache.

    The latter is ``cojoin/jars`` in ``XDG_CACHE_HOME`` (on Windows in ``LOCALAPPDATA``) or else in ``~/.cache``.
    """
    if chosen := os.environ.get(_CHOSEN):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    # The XDG Base Directory Specification requires that a relative path be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "cojoin" / "jars"


def tell(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"cojoin: {text}\n")
    sys.stderr.flush()


def fetch_jars(
    packages: Sequence[str],
    *,
    excludes: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    say: Callable[[str], None] = tell,
) -> list[Path]:
    """Return the jars of Maven packages and of their dependencies; they are fetched if they are not in the cache.

    Args:
        packages: The packages, as ``organisation:module:version``. Versions that may change, such as a snapshot, are
            resolved each time.
        excludes: The dependencies to leave out, as ``organisation:module``, where ``*`` stands for any.
        settings: The user's settings of Spark, which determine the repositories; None if there are none.
        say: Called with messages that this may take a while.

    Raises:
        EnvironmentSetupError: A package can't be fetched, or the folder can't be written.

    Example:
        ``fetch_jars(["io.delta:delta-spark_4.2_2.13:4.4.0"])``
    """
    changing = any(_CHANGING.search(package.split(":")[-1]) for package in packages)
    folder = cache_folder() / _name(packages, excludes)
    if not changing and (jars := _listed(folder)):
        return jars
    with _told(packages, folder), _one_at_a_time(folder, say) as lock:
        if not changing and (jars := _listed(folder)):
            return jars
        say(f"Fetching {', '.join(packages)} with what they need, once, which may take minutes ...")
        return _fetch(packages, excludes, settings or {}, folder, lock, changing=changing)


def _name(packages: Sequence[str], excludes: Sequence[str]) -> str:
    """Return a folder's name: readable by its modules and versions, and unique by a digest of all packages."""
    names = "+".join("-".join(package.split(":")[1:]) for package in packages)
    digest = sha256("\n".join([*sorted(packages), "", *sorted(excludes)]).encode()).hexdigest()[:12]
    plain = re.sub(r"[^\w.+-]", "_", names)
    return f"{plain[:_LONGEST_NAME]}-{digest}"


def _listed(folder: Path) -> list[Path]:
    """Return the jars that a folder lists; none if one of them is missing or has another size."""
    try:
        lines = [line.split(" ", 1) for line in (folder / _LIST).read_text(encoding="utf-8").splitlines()]
        jars = [folder / name for _, name in lines]
        whole = all(jar.stat().st_size == int(size) for (size, _), jar in zip(lines, jars, strict=True))
    except (OSError, ValueError):
        return []
    return jars if whole else []


@contextmanager
def _told(packages: Sequence[str], folder: Path) -> Iterator[None]:
    """Raise an error that says what to do if the block can't fetch the jars."""
    try:
        yield
    except EnvironmentSetupError as error:
        msg = (
            f"could not fetch {', '.join(packages)}: {error}. Without a way to Maven Central, name a mirror in "
            "spark.jars.repositories or spark.jars.ivySettings, or a proxy in spark.driver.extraJavaOptions; or copy "
            f"{folder} from a machine that has it, or put the jars into Spark's own folder jars or into spark.jars"
        )
        raise EnvironmentSetupError(msg) from error
    except OSError as error:
        msg = f"could not keep jars in {folder.parent}: {error.strerror or error}; let {_CHOSEN} name another folder"
        raise EnvironmentSetupError(msg) from error


@contextmanager
def _one_at_a_time(folder: Path, say: Callable[[str], None]) -> Iterator[int]:
    lock = folder.with_name(f"{folder.name}.lock")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, lambda: say(f"Waiting for another process that fetches {folder.name} ...")) as descriptor:
        # The lock is held, so these folders are left from processes that were killed.
        for left in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield descriptor


def _fetch(
    packages: Sequence[str],
    excludes: Sequence[str],
    settings: Mapping[str, str],
    folder: Path,
    lock: int,
    *,
    changing: bool,
) -> list[Path]:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True) as name:
        work = Path(name)
        filled = work / "filled"
        filled.mkdir()
        lines = []
        for jar in _find(packages, excludes, settings, work, lock):
            lines.append(f"{jar.stat().st_size} {jar.name}\n")
            shutil.copyfile(jar, filled / jar.name)
        (filled / _LIST).write_text("".join(lines), encoding="utf-8")
        if changing:  # running programs may use the folder of an earlier resolution
            digest = sha256(b"".join(jar.read_bytes() for jar in sorted(filled.iterdir()))).hexdigest()
            folder = folder.with_name(f"{folder.name}-{digest[:12]}")
        if not _listed(folder):
            if folder.exists():
                folder.rename(work / "damaged")
            filled.rename(folder)
    return _listed(folder)


def _find(
    packages: Sequence[str], excludes: Sequence[str], settings: Mapping[str, str], work: Path, lock: int
) -> list[Path]:
    """Return the jars from the user's own folders, which may have them all, or if that fails from the repositories.

    A repository that breaks off is asked three times in all.

    Every program that starts Spark writes into the user's folder, and two at once may damage it permanently.
    """
    home = Path(settings.get("spark.jars.ivy") or Path.home() / ".ivy2.5.2").expanduser()
    try:
        home.mkdir(parents=True, exist_ok=True)
        # Processes that fetch other packages share this folder.
        with locked(home / "cojoin.lock", lambda: None) as ours:
            return find_jars(packages, excludes, settings, home, work, (lock, ours))
    except (EnvironmentSetupError, OSError):
        pass
    pauses = iter(_PAUSES)
    while True:
        try:
            return find_jars(packages, excludes, settings, work / "ivy", work, (lock,), is_apart=True)
        except EnvironmentSetupError as error:  # noqa: PERF203 - it is asked thrice at most
            # The repository knows the jar, so it may give it a moment later; what was fetched is not fetched again.
            pause = next(pauses, None)
            if pause is None or _FAILED not in str(error):
                raise
            time.sleep(pause)

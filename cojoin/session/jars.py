"""The jars of a session: Delta's, Kafka's and the user's own, from cached folders; only filling one needs a network.

Each folder in the user's cache is fetched once, by one process, and is either complete or absent. It is filled under a
temporary name, with a list of its files, and then renamed. The next process removes what a killed process left. Other
processes wait for a lock, which the operating system releases when the holder ends.

Maven packages are resolved with Spark's launcher and the Ivy library that PySpark contains. Spark has no command that
only resolves packages, but its launcher resolves them before it runs a program. The program is ``SparkSubmit`` with
``--version``, which ends at once. So the same repositories, credentials and proxies apply as for a session.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from cojoin.errors import EnvironmentSetupError
from cojoin.session.launch_settings import find_spark_home, settings_of
from cojoin.session.versions import delta_package, has_delta, kafka_package
from cojoin.storage.local_store import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_SECONDS = 1_800  # a hundred megabytes over a slow line
_HONOURED = (
    "spark.jars.ivySettings",
    "spark.jars.repositories",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraJavaOptions",
)
_OPTIONS = "SPARK_SUBMIT_OPTS"
_RESOLVED = "Classpath elements:"
_TELLING = re.compile(
    r"(?:not found: |UNRESOLVED|unresolved dependency|download failed|Server access error|Exception)[^\n]*",
    re.IGNORECASE,
)
_SHOWN = 3
_LOGIN = re.compile(r"//[^/@\s]+@")
_CHOSEN = "COJOIN_JARS"
_LIST = "jars.txt"
_LONGEST_NAME = 100
_FAILED, _PAUSES = "download failed", (2, 5)
"""Ivy's message for a broken download, and the pauses in seconds before further attempts."""

# Versions that Maven and Ivy may resolve differently later: a snapshot, a range, the latest.
_CHANGING = re.compile(r"-SNAPSHOT$|^latest\.|[\[\](),+]")

IN_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "io.airlift:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""Dependencies of Delta and Kafka that Spark contains and loads first; excluding them saves three quarters of bytes."""


def find_jars(
    packages: Sequence[str],
    excludes: Sequence[str],
    settings: Mapping[str, str],
    home: Path,
    work: Path,
    held: Sequence[int] = (),
    *,
    is_apart: bool = False,
) -> list[Path]:
    """Return the jars of packages and of their dependencies, in the folder where Ivy has put them.

    Packages are ``organisation:module:version``; in the ``excludes``, ``*`` stands for any organisation or module.
    ``home`` is Ivy's folder, ``work`` one for the log. The launcher inherits the file descriptors in ``held``, so that
    it keeps their locks if this process is killed. With ``is_apart``, Ivy does not read the user's local Maven
    repository, which often has a package's description without its jar, so that Ivy fails. Raises
    ``EnvironmentSetupError`` with Ivy's error where a package was not found or is damaged.
    """
    log, nothing = work / "spark.log", work / "no-defaults.conf"
    nothing.touch()
    script = find_spark_home() / "bin" / ("spark-submit.cmd" if sys.platform == "win32" else "spark-submit")
    conf = {name: settings[name] for name in _HONOURED if settings.get(name)}
    conf |= {"spark.jars.packages": ",".join(packages), "spark.jars.ivy": str(home)}
    if excludes:
        conf["spark.jars.excludes"] = ",".join(excludes)
    command = [str(script), "--verbose", "--master", "local", "--driver-memory", "512m"]
    command += ["--properties-file", str(nothing)]
    command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.deploy.SparkSubmit", "spark-internal", "--version"]
    apart = {_OPTIONS: f'{os.environ.get(_OPTIONS, "")} -Duser.home="{work}"'} if is_apart else {}
    code = _run(command, log, held, apart)
    output = log.read_text(encoding="utf-8", errors="replace")
    jars = _resolved(output)
    if code != 0 or not jars:
        raise EnvironmentSetupError(_reason(output) or f"Spark's launcher ended with exit code {code}")
    for jar in jars:
        _check(jar)
    return jars


def _run(command: Sequence[str], log: Path, held: Sequence[int], more: dict[str, str]) -> int:
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - Spark's own launcher
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SPARK_CONNECT_MODE": "0"} | more,
                pass_fds=() if sys.platform == "win32" else tuple(held),
            )
        except OSError as error:
            msg = (
                f"Spark's launcher {command[0]} can't be started: {error.strerror or error}; see that this file may be "
                f"executed, or let SPARK_HOME name another Spark"
            )
            raise EnvironmentSetupError(msg) from error
        try:
            return process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            msg = f"Spark's launcher has not ended after {_SECONDS / 60:g} minutes"
            raise EnvironmentSetupError(msg) from None
        finally:
            process.kill()
            process.wait()


def _resolved(output: str) -> list[Path]:
    lines = output.partition(f"\n{_RESOLVED}\n")[2].partition("\n\n")[0].splitlines()
    return [Path(url2pathname(urlsplit(line).path)) for line in lines if line.startswith("file:")]


def _check(jar: Path) -> None:
    """Check that a jar is not damaged, since other programs may write into the same folder."""
    try:
        with zipfile.ZipFile(jar) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        damaged = str(error)
    if damaged is not None:
        msg = f"{jar} is damaged: {damaged}"
        raise EnvironmentSetupError(msg)


def _reason(output: str) -> str:
    """Return the first error lines of the launcher's log, without the logins in repository addresses."""
    lines = [_LOGIN.sub("//***@", match[0].strip()) for match in _TELLING.finditer(output)]
    return "; ".join([*dict.fromkeys(lines)][:_SHOWN])


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

    Packages whose version may change, such as a snapshot, are resolved each time. The user's ``settings`` of Spark
    determine the repositories. ``say`` is called with a message before a fetch or a long wait. Raises
    ``EnvironmentSetupError`` where a package can't be fetched, or the folder can't be written.
    """
    changing = any(_CHANGING.search(package.split(":")[-1]) for package in packages)
    folder = cache_folder() / _name(packages, excludes)
    if not changing and (jars := _listed(folder)):
        return jars
    with _explained_failures(packages, folder), _one_at_a_time(folder, say) as lock:
        if not changing and (jars := _listed(folder)):
            return jars
        say(f"Fetching {', '.join(packages)} and their dependencies, which may take minutes ...")
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
def _explained_failures(packages: Sequence[str], folder: Path) -> Iterator[None]:
    """Raise an error with the remedy if the block can't fetch the jars."""
    try:
        yield
    except EnvironmentSetupError as error:
        msg = (
            f"could not fetch {', '.join(packages)}: {error}. If Maven Central can't be reached, name a mirror in "
            "spark.jars.repositories or spark.jars.ivySettings, or a proxy in spark.driver.extraJavaOptions; or copy "
            f"{folder} from a machine that has it, put the jars into Spark's folder jars, or name them in spark.jars"
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
    """Return the jars by the user's Ivy folder, which may have them all, or if that fails by a new, empty one.

    Every program that starts Spark writes into the user's folder, and two at once may damage it permanently. With the
    empty folder, a download that breaks off is attempted three times in all.
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
        except EnvironmentSetupError as error:  # noqa: PERF203 - three times at most
            # The repository has the jar and may deliver it a moment later; Ivy's folder keeps the jars already fetched.
            pause = next(pauses, None)
            if pause is None or _FAILED not in str(error):
                raise
            time.sleep(pause)


def jar_settings(conf: Mapping[str, Any], *, kafka: bool, say: Callable[[str], None] = tell) -> dict[str, str]:
    """Return ``spark.jars`` and ``spark.jars.packages`` with a session's jars, fetched if they are not in the cache.

    They include the user's own jars and packages from ``conf``, ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``.
    They exclude Delta where it has no build for this Spark, and Delta and Kafka if Spark's own folder has them, if the
    user names them, or if ``conf`` sets ``spark.jars.packages`` to an empty string. A program that spark-submit started
    gets none. Errors are those of ``fetch_jars``.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # started by spark-submit, whose command line determines the jars
        return {}
    settings = settings_of(conf)
    jars, packages = _parts(settings, "spark.jars"), _parts(settings, "spark.jars.packages")
    excludes = _parts(settings, "spark.jars.excludes")
    names = list(_jar_names(jars, settings))
    ours = [*([delta_package()] if has_delta() else []), *([kafka_package()] if kafka else [])]
    if conf.get("spark.jars.packages") == "":
        ours = []
    ours = [each for each in ours if not _has_package(each, names, packages)]
    if not packages:
        excludes = [*excludes, *IN_SPARK]
    if wanted := [*ours, *packages]:
        jars += [str(jar) for jar in fetch_jars(wanted, excludes=excludes, settings=settings, say=say)]
    # An empty string keeps Spark from taking the packages in spark-defaults.conf again.
    return {"spark.jars": ",".join(dict.fromkeys(jars)), "spark.jars.packages": ""}


def gets_delta(conf: Mapping[str, Any]) -> bool:
    """Return whether a session is to have Delta: it has a build for this Spark, or the user names its jar or package.

    With an empty ``spark.jars.packages``, only the latter counts.
    """
    if has_delta() and conf.get("spark.jars.packages") != "":
        return True
    settings = settings_of(conf)
    names = list(_jar_names(_parts(settings, "spark.jars"), settings))
    return _has_package("io.delta:delta-spark:", names, _parts(settings, "spark.jars.packages"))


def _parts(settings: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in settings.get(name, "").split(",") if part.strip()]


def _jar_names(jars: Sequence[str], settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the jars that a session has without cojoin's."""
    yield from (jar.rsplit("/", 1)[-1] for jar in jars)
    yield from (jar.name for jar in (find_spark_home() / "jars").glob("*.jar"))
    for entry in settings.get("spark.driver.extraClassPath", "").split(os.pathsep):
        path = Path(entry)
        yield from (jar.name for jar in (path.parent.glob("*.jar") if path.name == "*" else [path]))


def _has_package(package: str, names: Sequence[str], packages: Sequence[str]) -> bool:
    """Return whether the user has a package in any version, which then takes precedence."""
    organisation, module, _ = package.split(":")
    plain = re.sub(r"(_[\d.]+)+$", "", module)  # without the versions of Spark and Scala
    jar = re.compile(rf"(?:^|_){re.escape(plain)}(?:_[\d.]+)*-\d")
    named = re.compile(rf"{re.escape(organisation)}:{re.escape(plain)}(?:_[\d.]+)*:")
    return any(jar.search(name) for name in names) or any(named.match(each) for each in packages)

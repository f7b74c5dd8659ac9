"""Seals the functions that are sent to Spark's Python workers: only a worker with the driver's cojoin opens them.

A worker imports the cojoin of its host. While hosts are upgraded one by one, it may differ from the driver's, and so
may its rows, without any error. So everything that Spark pickles for a worker is sealed: its outermost function travels
by value and imports nothing of cojoin. On the worker it compares cojoin's version, a digest of its sources, Python's
minor version and pyarrow's major version with the driver's, and only then unpickles the payload.

Python's minor version must be equal since functions by value are bytecode. pyarrow's major versions are its releases
with new behaviour, also of casts, sorts and files; later numbers are corrections, and may differ. The digest is of the
bytes of the ``.py`` files and their paths within the package, whatever their line ends: an installation that can be
edited equals a wheel or an archive of the same sources. It takes some 10 to 30 milliseconds, once in a process.

The digest is of the files as they are now, so it counts only for a process that has imported just these: before it is
remembered, the files' sizes and times are compared with those at the import (``package_files``). A refused process
remembers nothing, and may be accepted once its host is brought up to date.

The module of a user's function is compared in the same way, since an older one on another host would give different
rows. The modules that it imports are not compared. A user's function that can't be pickled is refused before it is
sealed (``check_picklable``). Checkpoints contain no pickle.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import socket
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark import cloudpickle

from cojoin import package_files
from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.package_files import sources, stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.package_files import Stamps
Function = TypeVar("Function", bound="Callable[..., Any]")
_KNOWN = "_cojoin_installed"
"""The attribute of ``sys`` with the versions of a process: functions that travel have no module to keep them in."""

_KNOWN_MODULES = "_cojoin_users_modules"
"""The attribute with the digests of users' modules, by name; a module that was imported stays as it was."""

_VERSION = re.compile(rb'^__version__ = "([^"\n]+)"', re.MULTILINE)
_UNKNOWN = "of an unknown version"
_PLACES = (
    "install the same in the Python of every host (spark.pyspark.python, PYSPARK_PYTHON), or send all of them one "
    "environment (spark.archives), and start the query again"
)

_AGAIN = (
    "its files were changed while a process had them imported: start the driver's process again (with Spark "
    "Connect, its server, too), which starts new workers"
)

_SEND = (
    "send it with spark.sparkContext.addPyFile(...) (with Spark Connect: spark.addArtifacts(..., pyfile=True)) before "
    "the query is built, name it in spark.submit.pyFiles, or install it in the Python of every host"
)

_ON_HOST = re.compile(r"\(TID \d+\) \((?P<host>\S+) executor ")
_MISSING = re.compile(r"^(?:\w+\.)*ModuleNotFoundError: (?P<reason>No module named '(?P<name>[^']+)'.*)$", re.MULTILINE)
_OTHER_PYTHON = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version: (\S+) than (?:\D*)(\S+),"
)


def check_picklable(function: KeyedCoProcessFunction) -> None:
    """Raise ``ConfigurationError``, with the attribute at fault, if a function can't be sent to the workers."""
    error = pickling_error(function)
    if error is None:
        return
    name = type(function).__name__
    for attribute, value in vars(function).items():
        reason = pickling_error(value)
        if reason is not None:
            msg = (
                f"function {name}: its attribute {attribute!r} (a {type(value).__name__}) can't be sent to the workers"
                f": {reason}; make it in open(), which runs on the workers, and close it in close()"
            )
            raise ConfigurationError(msg)
    msg = (
        f"function {name} can't be sent to the workers: {error}; something that its methods name can't be pickled: "
        f"make it in open(), which runs on the workers"
    )
    raise ConfigurationError(msg)


def pickled(value: Any) -> bytes:
    """Return a value as bytes; what a worker can't import, such as a class of ``__main__``, by its code."""
    return bytes(cloudpickle.dumps(value))


def pickling_error(value: Any) -> str | None:
    """Return why a value can't be sent to the workers; None if it can."""
    try:
        pickled(value)
    except Exception as error:  # noqa: BLE001 - pickling runs the value's own code
        return f"{type(error).__name__}: {error}"
    return None


class Sealed:
    """A function that is itself, also on a worker that opens it; ``user`` is the user's object in it, or None.

    Workers import the module of the user's object. Raises ``EnvironmentSetupError`` where cojoin was exchanged on the
    disk since this process has imported it.
    """

    def __init__(self, function: Callable[..., Any], user: object = None) -> None:
        ours()  # now, since Spark would report its error as one of pickling
        self._function, self._modules = function, {} if user is None else _modules_of(type(user))

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the sealed call from which a worker gets the function itself."""
        return sealed_call(_itself, self._function, modules=self._modules)


def for_workers(function: Function, user: object = None) -> Function:
    """Return a function of one to three positional arguments sealed for Spark's workers; ``user`` as for ``Sealed``."""
    sealed = Sealed(function, user)

    # Spark counts the arguments. Without annotations, which it would take for a choice of how the function is called.
    def one(rows):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return sealed(rows)

    def two(first, second):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return sealed(first, second)

    def three(key, rows, state):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return sealed(key, rows, state)

    sendable: Any = (one, two, three)[len(inspect.signature(function).parameters) - 1]
    # Spark shows the name in its plans.
    sendable.__name__ = getattr(function, "__name__", type(function).__name__)
    return cast("Function", sendable)


def sealed_call(make: Callable[..., Any], *arguments: Any, modules: Mapping[str, str] | None = None) -> tuple[Any, ...]:
    """Return what ``__reduce__`` returns of an object that ``make`` makes on a worker only if it has this cojoin.

    ``modules`` has the digests of the users' modules, which the worker's must equal.
    """
    # Pickled when Spark pickles, so that it finds the broadcast variables that a user's function holds.
    payload = pickled((make, arguments))
    return _opened, (ours(), dict(modules or {}), payload, _pickled_check())


@cache
def _pickled_check() -> bytes:
    return pickled(_carefully)


def _modules_of(kind: type) -> dict[str, str]:
    """Return the digests of the modules that a worker imports for a user's class and its bases."""
    by_value = cloudpickle.list_registry_pickle_by_value()
    digests = {}
    for base in kind.__mro__:
        top = base.__module__.partition(".")[0]
        is_sent = top == "__main__" or "<locals>" in base.__qualname__ or base.__module__ in by_value
        # Python's own modules are those of its minor version.
        is_known = top == "cojoin" or top in sys.stdlib_module_names
        if not is_sent and not is_known and (digest := _module_digest(base.__module__)) is not None:
            digests[base.__module__] = digest
    return digests


def ours() -> dict[str, str]:
    """Return the versions of this process, which all workers must have (``installed``).

    Raises ``EnvironmentSetupError`` where cojoin was exchanged on the disk since this process has imported it.
    """
    if _KNOWN in vars(sys):
        return installed()
    present = installed()
    # After the digest, which so is of the imported files.
    changed = _changed(stamps(_spec()))
    if changed is not None:
        msg = (
            f"this process has imported cojoin {sys.modules['cojoin'].__version__}, and {changed} of {present['path']} "
            f"was changed since, which has cojoin {present['cojoin'] or 'none'} now: workers would import the latter; "
            f"start this process again"
        )
        raise EnvironmentSetupError(msg)
    setattr(sys, _KNOWN, present)
    return present


def worker_trouble(text: str) -> str | None:
    """Return, with host and remedy, which module or version a worker lacks by Spark's text; None for other errors."""
    hosts = list(_ON_HOST.finditer(text))
    where = f"host {hosts[-1]['host']}: " if hosts else ""
    if (python := _OTHER_PYTHON.search(text)) is not None:
        return f"{where}expected Python {python[2]}, as of the driver, found {python[1]} on a Python worker: {_PLACES}"
    missing = list(_MISSING.finditer(text))
    # Without a lost task, the module is missing in this process.
    if not missing or not hosts:
        return None
    name, reason = missing[-1]["name"], missing[-1]["reason"]
    if name.partition(".")[0] in {"cojoin", "pandas", "pyarrow", "numpy"}:
        return f"{where}a Python worker lacks what it needs: {reason}; {_PLACES}"
    return f"{where}a Python worker lacks a module of the query's functions: {reason}; {_SEND}"


# All below, and what it names, travels by value to processes in which cojoin may be missing or another one: it imports
# nothing of cojoin.


def refusal(expected: dict[str, str]) -> str | None:
    """Return why this process must not run what a driver has sent, by the driver's ``installed``; None if it may."""
    return _refusal(expected, stamps(_spec()), installed())


def _refusal(expected: dict[str, str], files: Stamps, present: dict[str, str]) -> str | None:
    """Return why a process with ``present`` and these files must not run what a driver has sent; None if it may."""
    changed = _changed(files)
    version, major = expected["cojoin"], expected["pyarrow"].partition(".")[0]
    ours, others = [], []
    if not present["cojoin"]:
        ours.append(f"expected cojoin {version}, found none ({present['path']})")
    elif present["cojoin"] != version:
        ours.append(f"expected cojoin {version}, found cojoin {present['cojoin']} in {present['path']}")
    elif present["sources"] != expected["sources"]:
        ours.append(
            f"expected the sources of cojoin {version} in {expected['path']} on the driver (digest "
            f"{expected['sources']}), found others in {present['path']} (digest {present['sources']})"
        )
    elif changed is not None and _KNOWN not in vars(sys):
        ours.append(f"expected the cojoin that it has imported in {present['path']}, found that {changed} was changed")
    if present["python"] != expected["python"]:
        others.append(f"expected Python {expected['python']}, found {present['python']}")
    if present["pyarrow"].partition(".")[0] != major:
        others.append(f"expected pyarrow {major} ({expected['pyarrow']}), found {present['pyarrow'] or 'none'}")
    if not ours and not others:
        return None
    # Where the driver has imported it from the same folder, nothing has to be installed.
    is_shared = bool(present["disk"]) and all(present[each] == expected[each] for each in ("disk", "path"))
    cure = _AGAIN if not others and (is_shared or changed is not None) else _PLACES
    return f"{_this_worker()} lacks what the driver has: {'; '.join([*ours, *others])}; it has run nothing: {cure}"


def installed() -> dict[str, str]:
    """Return what this process has imported, or would import, without importing cojoin.

    These are the versions of ``cojoin`` (empty where it is missing), ``python`` and ``pyarrow``; the ``path`` of
    cojoin, or why it has none, and its ``disk``; and the digest of its ``sources``.
    """
    known: dict[str, str] | None = vars(sys).get(_KNOWN)
    if known is not None:
        return known
    try:
        from pyarrow import __version__ as pyarrow  # noqa: PLC0415 - it may be missing
    except ImportError:
        pyarrow = ""
    package = {"cojoin": "", "path": "No module named 'cojoin'", "disk": "", "sources": ""}
    spec = _spec()
    if spec is not None:
        files = dict(sources(spec))
        written = _VERSION.search(files.get("__init__.py", b""))
        digest = hashlib.sha256()
        for name, content in sorted(files.items()):
            digest.update(f"{len(name)} {name} {len(content)} ".encode() + content)
        path = Path(spec.origin).parent
        package = {
            "cojoin": written[1].decode() if written else _UNKNOWN,
            "path": str(path),
            "disk": f"{socket.gethostname()} {path.stat().st_dev}" if path.exists() else "",
            "sources": digest.hexdigest()[:16],
        }
    return package | {"python": f"{sys.version_info[0]}.{sys.version_info[1]}", "pyarrow": pyarrow}


def _spec() -> Any:
    """Return where Python finds cojoin, or has imported it from; None if nowhere."""
    # What was missing may have been installed, or sent with addPyFile, since Python has looked.
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec("cojoin")
    except ValueError:
        return None
    # A folder without __init__.py has no origin; it may be anything's.
    return None if spec is None or spec.origin is None else spec


def _changed(files: Stamps) -> str | None:
    """Return a file that differs from those that this process has imported; None if none does, or none was imported."""
    imported = getattr(sys.modules.get("cojoin.package_files"), "IMPORTED", files)
    return min((each[0] for each in imported ^ files), default=None)


def _module_digest(name: str) -> str | None:
    """Return the digest of a user's module as it is now; None without a module, or without a source."""
    try:
        spec: Any = importlib.util.find_spec(name)
        content = spec.loader.get_data(spec.origin) if spec.origin.endswith(".py") else b""
    except (ImportError, ValueError, AttributeError, OSError):
        return None
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()[:16] if content else None


def _opened(expected: dict[str, str], modules: dict[str, str], payload: bytes, careful: bytes) -> Any:
    """Return what a driver has sent, if this process has what the driver has (``expected``, and users' modules).

    The payload is a callable and its arguments, pickled; ``careful`` is ``_carefully``, pickled, needed once a process.
    """
    loads = cloudpickle.loads
    known = vars(sys).get(_KNOWN, {})
    known_modules = vars(sys).get(_KNOWN_MODULES, {})
    is_same = all(known.get(each) == expected[each] for each in ("cojoin", "sources", "python", "pyarrow"))
    if is_same and all(known_modules.get(name) == digest for name, digest in modules.items()):
        try:
            make, arguments = loads(payload)
        except (ImportError, AttributeError):
            make, arguments = loads(careful)(expected, modules, payload)
    else:
        make, arguments = loads(careful)(expected, modules, payload)
    return make(*arguments)


def _carefully(expected: dict[str, str], modules: dict[str, str], payload: bytes) -> Any:
    """Return the payload's callable and arguments; raise an error that says why this process can't have them."""
    # The stamps come first: files that are changed after the digest differ from them once they are imported.
    files, versions = stamps(_spec()), installed()
    reason = _refusal(expected, files, versions)
    if reason is not None:
        raise _failure(reason)
    known: dict[str, str] = vars(sys).setdefault(_KNOWN_MODULES, {})
    equal = {}
    for name, digest in modules.items():
        # What was opened before has imported the module, which stays as it was.
        present = known.get(name) or _module_digest(name)
        if present == digest:
            equal[name] = digest
        elif present is not None:
            where = importlib.util.find_spec(name)
            reason = (
                f"{_this_worker()} has another version of module {name!r} of the query's functions than the driver: "
                f"{where.origin if where else ''} (digest {present}, expected {digest}); it has run nothing: {_SEND}"
                f"; where it was changed since the session began, make the session again: workers keep what they have "
                f"imported"
            )
            raise _failure(reason)
    try:
        loaded = cloudpickle.loads(payload)
    except ModuleNotFoundError as error:
        reason = f"{_this_worker()} lacks a module of the query's functions: {error}; {_SEND}"
        raise _failure(reason) from error
    except (AttributeError, ImportError) as error:
        reason = f"{_this_worker()} has another version of a module of the query's functions: {error}; {_SEND}"
        raise _failure(reason) from error
    changed = None if _KNOWN in vars(sys) else _changed(files)
    if changed is not None:
        reason = f"{_this_worker()} has imported cojoin in {versions['path']} while {changed} was changed; {_AGAIN}"
        raise _failure(reason)
    known |= equal
    if "cojoin" in sys.modules:
        setattr(sys, _KNOWN, versions)
    return loaded


def _failure(message: str) -> Exception:
    """Return an error that is shown as one of cojoin's, even where cojoin is missing."""
    kind: Any = type("EnvironmentSetupError", (RuntimeError,), {"__module__": "cojoin.errors"})
    error: Exception = kind(message)
    return error


def _this_worker() -> str:
    return f"the Python worker on host {socket.gethostname()} ({sys.executable})"


def _itself(value: Any) -> Any:
    return value


for _module in (sys.modules[__name__], package_files):
    cloudpickle.register_pickle_by_value(_module)

"""Loads a join from a user's module or file, for a command: ``jobs.enrich:joined`` or ``./main/enrich.py:joined``.

The code is loaded anew for each job, and the modules beside it as well. So two versions of one file, in two folders,
do not see each other's modules. What is loaded is forgotten by Python's module table, and therefore sent to Spark's
workers as it is here, wherever they run. A job only describes a join: the command starts it, so a query that is started
while the job is loaded is an error. No message shows a value of the job's file, which may be a password.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from cojoin.api.joined import Joined
from cojoin.engine.callbacks import user_line
from cojoin.errors import CojoinError, ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

__all__ = ["join_of", "load_job", "loaded", "parse_job"]

_STARTED = (
    "a query is started while the job is loaded, and the command starts the join itself; leave it out, or put it under "
    "`if __name__ == '__main__':`"
)


def parse_job(text: str) -> tuple[str, str]:
    """Return the module or file of a job and the name in it.

    Raises:
        ConfigurationError: The text is not of this form.

    >>> parse_job("./main/enrich.py:joined")
    ('./main/enrich.py', 'joined')
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        msg = f"expected MODULE:NAME or FILE.py:NAME, such as jobs.enrich:joined, got {text!r}"
        raise ConfigurationError(msg)
    return place, name


def load_job(job: tuple[str, str], spark: Callable[[], Any], settings: Mapping[str, str]) -> Joined:
    """Load the module of a job, and return its join: see ``loaded`` and ``join_of``."""
    with loaded(job) as module:
        return join_of(job, module, spark, settings)


@contextmanager
def loaded(job: tuple[str, str]) -> Iterator[ModuleType]:
    """Yield the module of a job; at the end it is forgotten, with the modules that it has imported from its folder.

    Args:
        job: Its module or file, and its name there.

    Raises:
        ConfigurationError: It can't be loaded, or a query is started meanwhile.
    """
    place, name = job
    what = f"{place}:{name}"
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        msg = f"{what}: there is no file {place!r}"
        raise ConfigurationError(msg)
    folder = Path(place).absolute().parent if is_file else Path.cwd()
    with _loading_from(folder), _starting_nothing(what):
        with _named(what, "loading it"):
            module = _file_module(Path(place)) if is_file else importlib.import_module(place)
        yield module


def join_of(
    job: tuple[str, str],
    module: ModuleType,
    spark: Callable[[], Any],
    settings: Mapping[str, str],
    *,
    on_spark: bool = False,
) -> Joined:
    """Return the join of a job: a ``Joined``, or what a function returns.

    The function's argument without a default, if it has one, is the Spark session.

    Args:
        job: Its module or file, and its name there.
        module: What ``loaded`` has yielded.
        spark: Returns the session.
        settings: Further arguments of the function, by name.
        on_spark: Whether a function that does not take the session is called with an active one all the same.

    Raises:
        ConfigurationError: The name does not exist, or is not a join.
    """
    name = job[1]
    what = ":".join(job)
    found = getattr(module, name, None)
    if found is None:
        joins = [each for each, value in vars(module).items() if _may_be_job(value, module)]
        msg = f"{what}: there is no {name!r} in {module.__file__}{did_you_mean(name, joins)}"
        raise ConfigurationError(msg)
    made = found
    if isinstance(found, Joined):
        if settings:
            msg = f"{what}: --set gives arguments to a function, and this is a join{_line_of(name, module)}"
            raise ConfigurationError(msg)
    elif callable(found):
        given = _session_argument(found, what, settings)
        session = spark() if given or on_spark else None
        with _named(what, "it"):
            made = found(**dict.fromkeys(given, session), **settings)
    if not isinstance(made, Joined):
        msg = (
            f"{what}: expected a join, such as pair.asof_join(), or a function that returns one, got "
            f"{type(made).__name__}{_line_of(name, module)}"
        )
        raise ConfigurationError(msg)
    return made


def _session_argument(function: Callable[..., Any], what: str, settings: Mapping[str, str]) -> list[str]:
    """Return the name of the argument that gets the session, in a list; an empty list if there is none."""
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    names = [each.name for each in named]
    for name in settings:
        if name not in names and not takes_any:
            msg = f"{what}: --set {name}: the function has no such argument{did_you_mean(name, names)}"
            raise ConfigurationError(msg)
    needed = [each.name for each in named if each.default is each.empty and each.name not in settings]
    if len(needed) > 1:
        msg = (
            f"{what}: expected a function with at most one argument without a default, which gets the Spark session; "
            f"it takes {', '.join(needed)}: give the others with --set NAME=VALUE"
        )
        raise ConfigurationError(msg)
    return needed


def _may_be_job(value: Any, module: ModuleType) -> bool:
    return isinstance(value, Joined) or (isinstance(value, FunctionType) and value.__module__ == module.__name__)


def _line_of(name: str, module: ModuleType) -> str:
    """Return the line in which a module gives a value to a name, as the end of a message."""
    file = module.__file__
    if file is None:
        return ""
    for node in reversed(ast.parse(Path(file).read_bytes()).body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = {node.name}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {each.asname or each.name for each in node.names}
        else:
            names = {
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
        if name in names:
            return f" ({file}:{node.lineno})"
    return ""


@contextmanager
def _named(what: str, who: str) -> Iterator[None]:
    """Name the job, and the line of its file, in an error that its code raises.

    Args:
        what: The job.
        who: What raises the error: ``it``, or ``loading it``.
    """
    try:
        yield
    except SyntaxError as error:
        msg = f"{what}: {who} raised {type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
        raise ConfigurationError(msg) from error
    except CojoinError as error:
        msg = f"{what}: {error}{_line(error)}"
        raise type(error)(msg) from error
    except (Exception, SystemExit) as error:
        msg = f"{what}: {who} raised {type(error).__name__}: {error}{_line(error)}"
        raise ConfigurationError(msg) from error


def _line(error: BaseException) -> str:
    """Return the line of the user's code that raised an error, if its message does not have it."""
    line = user_line(error)
    return "" if "<frozen " in line or line in str(error) else line


@contextmanager
def _starting_nothing(what: str) -> Iterator[None]:
    """Refuse a query that is started meanwhile, by cojoin or by Spark itself."""

    def refuse(*arguments: Any, **settings: Any) -> NoReturn:
        del arguments, settings
        raise ConfigurationError(_STARTED)

    start, before = Joined.start, _running_queries()
    Joined.start = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        Joined.start = start  # type: ignore[method-assign]
    started = [query for query_id, query in _running_queries().items() if query_id not in before]
    for query in started:
        query.stop()
    if started:
        msg = f"{what}: {_STARTED} (a stream of Spark's, {started[0].name or started[0].id})"
        raise ConfigurationError(msg)


def _running_queries() -> dict[str, Any]:
    if sys.modules.get("pyspark.sql") is None:
        return {}
    from cojoin.session.kinds import active_session  # noqa: PLC0415 - jobs in memory need no Spark

    session = active_session()
    return {} if session is None else {query.id: query for query in session.streams.active}


def _file_module(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path.absolute())
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _loading_from(folder: Path) -> Iterator[None]:
    """Let modules be imported from a folder, and forget afterwards those that were."""
    known, path = dict(sys.modules), list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if known.get(name) is not module and _is_from(module, folder):
                del sys.modules[name]
                if name in known:
                    sys.modules[name] = known[name]


def _is_from(module: Any, folder: Path) -> bool:
    """Return whether a module is a user's own, in a folder."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "cojoin":
        return False
    path = Path(file).absolute()
    return folder in path.parents and "site-packages" not in path.parts

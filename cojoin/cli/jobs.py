"""Loads a join from a user's module or file, for a command: ``jobs.enrich:joined`` or ``./main/enrich.py:joined``.

The code is loaded anew for each job, and the modules beside it as well. So two versions of one file, in two folders,
do not see each other's modules. What is loaded is forgotten by Python's module table, and therefore sent to Spark's
workers as it is here, wherever they run.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.api.joined import Joined
from cojoin.engine.user_frames import user_line
from cojoin.errors import CojoinError, ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

__all__ = ["load_job", "parse_job"]


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


def load_job(job: tuple[str, str], spark: Callable[[], Any]) -> Joined:
    """Return the join of a job: a ``Joined``, or what a function returns that takes nothing, or a Spark session.

    Args:
        job: Its module or file, and its name there.
        spark: Returns the session for a function that takes one.

    Raises:
        ConfigurationError: It can't be loaded, or is no join.
    """
    place, name = job
    what = f"{place}:{name}"
    is_file = place.endswith(".py")
    folder = Path(place).absolute().parent if is_file else Path.cwd()
    if is_file and not Path(place).is_file():
        msg = f"{what}: there is no file {place!r}"
        raise ConfigurationError(msg)
    with _loading_from(folder):
        try:
            module = _file_module(Path(place)) if is_file else importlib.import_module(place)
        except CojoinError:
            raise
        except Exception as error:
            msg = f"{what}: loading it raised {type(error).__name__}: {error}{user_line(error)}"
            raise ConfigurationError(msg) from error
        found = getattr(module, name, None)
        if found is None:
            names = [each for each in vars(module) if not each.startswith("_")]
            msg = f"{what}: there is no {name!r} in it{did_you_mean(name, names)}"
            raise ConfigurationError(msg)
        made = found if isinstance(found, Joined) else _called(found, what, spark)
    if not isinstance(made, Joined):
        msg = f"{what}: expected a join, such as pair.asof_join(), or a function that returns one, got {made!r:.200}"
        raise ConfigurationError(msg)
    return made


def _called(found: Any, what: str, spark: Callable[[], Any]) -> Any:
    if not callable(found):
        return found
    needed = [
        each
        for each in inspect.signature(found).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        names = ", ".join(each.name for each in needed)
        msg = f"{what}: expected a function that takes nothing or a Spark session, it takes {names}"
        raise ConfigurationError(msg)
    session = [spark()] if needed else []
    try:
        return found(*session)
    except CojoinError as error:
        msg = f"{what}: {error}"
        raise type(error)(msg) from error
    except Exception as error:
        msg = f"{what}: it raised {type(error).__name__}: {error}{user_line(error)}"
        raise ConfigurationError(msg) from error


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

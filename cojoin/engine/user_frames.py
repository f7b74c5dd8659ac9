"""The user's own code in a traceback: the frames that are neither cojoin's, nor Python's, nor a library's."""

from __future__ import annotations

import inspect
import os
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["UserFrames", "defined_at", "is_user_file", "user_line", "user_traceback"]

# With the separator: a folder beside the package may have a name that begins with its name.
_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_user_file(file: str) -> bool:
    """Return whether a file is neither cojoin's, nor Python's, nor a library's.

    >>> is_user_file("/home/me/job.py"), is_user_file(__file__)
    (True, False)
    """
    # A dataclass has its methods from a text, "<string>".
    return not file.startswith((_OURS, *_LIBRARIES, "<frozen ", "<string>"))


def user_line(error: BaseException) -> str:
    """Return the end of a message that names the user's line that raised an error; empty where there is none."""
    frames = list(_frames(error.__traceback__))
    users = [each for each in frames if is_user_file(each.tb_frame.f_code.co_filename)]
    # A function may come from an installed package.
    others = [each for each in frames if not each.tb_frame.f_code.co_filename.startswith(_OURS)]
    if not users and not others:
        return ""
    found = (users or others)[-1]
    code = found.tb_frame.f_code
    return f" ({code.co_filename}:{found.tb_lineno}, in {code.co_name})"


def defined_at(function: Any, callback: str | None = None) -> str:
    """Return the end of a message that names where a function is written; empty where that is unknown.

    Args:
        function: The function.
        callback: The name of the method that is meant; None means the class.
    """
    kind = type(function)
    named = {} if callback is None else {callback: inspect.unwrap(getattr(kind, callback))}
    found = [each.__code__ for each in (named or vars(kind)).values() if inspect.isfunction(each)]
    places = [(code.co_filename, code.co_firstlineno) for code in found]
    return "; {} is written in {}:{}".format(callback or kind.__name__, *min(places)) if places else ""


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return only the user's frames of an error's traceback; None where there are none.

    If the error has a cause with such frames, they are those of the cause.
    """
    found = None if error.__cause__ is None else user_traceback(error.__cause__)
    if found is not None:
        return found
    for each in reversed(list(_frames(error.__traceback__))):
        if is_user_file(each.tb_frame.f_code.co_filename):
            found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found


class UserFrames:
    """A ``with`` block out of which an error of the user's function comes with the frames of that function alone."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FunctionError):
            raise error.with_traceback(user_traceback(error)) from None


def _frames(traceback: TracebackType | None) -> Iterable[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next

"""The calls of a user's function: the order of its callbacks, and the errors that they raise.

In the order ``"event_time"`` a key's rows and event-time timers form one sequence of time, key after key; the rows of a
millisecond come before its timers. In the order ``"arrival"`` the rows are processed first, key after key, and then the
event-time timers of all keys fire by timestamp. In both orders the processing-time timers of all keys that were loaded
come last, by timestamp.

The rows that callbacks yield are collected in a list, with a mark after those of each callback, so that the message
about a wrong row names its callback. The caller empties both whenever the run yields, so memory is bounded.

An error names the user's own line: that of the frame that is neither cojoin's, nor Python's, nor a library's.
"""

from __future__ import annotations

import inspect
import os
import sysconfig
from bisect import bisect_right
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cojoin.engine.display import format_time
from cojoin.engine.time.timers import TimeDomain
from cojoin.engine.values.rows import describe_row
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cojoin.engine.functions import Context, KeyedCoProcessFunction
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.keyed_state_backend import KeyedStateBackend
    from cojoin.engine.time.timers import Timers


_PIECE_ROWS = 50_000


class CallbackRunner:
    """Calls the function for one key after the other, in one micro-batch; ``yielded`` collects its rows.

    In a drain, ``last_event`` is the largest timestamp seen: ``on_timer`` then sets no event-time timer beyond it, and
    no processing-time timer beyond the clock. Else it is None.
    """

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        store: KeyedStateBackend,
        context: Context,
        inputs: tuple[InputSpec, InputSpec],
        yielded: list[Any],
        last_event: int | None,
    ) -> None:
        self._callbacks = (function.process_element1, function.process_element2)
        self._on_timer = function.on_timer
        self._store = store
        self._name = type(function).__name__
        self._inputs = inputs
        self._yielded = yielded
        self._last_event = last_event
        self._service = store.timer_service
        self._context = context
        # Of each callback that yielded: how many rows there are after it, key, time, and side and row or the domain.
        self._marks: list[tuple[int, int, int | None, bool | None, Any]] = []

    def in_event_time(  # noqa: C901, PLR0912 - the hot loop: a further call for each element costs time
        self, code: int, rows: Iterable[tuple[int, bool, Any]], before: int, after: int
    ) -> Iterator[None]:
        """Process a key's rows, in total order, and its timers up to a watermark, in one sequence of time.

        A row comes as its timestamp, whether it is of the second input, and the row. ``before`` and ``after`` are the
        operator's watermarks around the micro-batch. A timer at or below ``before``, set by a processing-time timer,
        sees ``before``, since the watermark never goes back.
        """
        self._select(code)
        service, context, yielded, on_timer = self._service, self._context, self._yielded, self._on_timer
        first, second = self._callbacks
        marks, marked = self._marks, len(self._yielded)
        timers = self._store.timers
        heap, live = timers.of_key(code)
        service.watermark = before
        now = None
        # A sentinel after the last due row makes the timers up to ``after`` fire.
        for timestamp, is_right, value in chain(rows, ((after + 1, None, None),)):
            if timestamp != now:
                now = timestamp
                if heap and heap[0] < timestamp:
                    self._begin(timers, TimeDomain.EVENT_TIME, timestamp - 1)
                    while heap and heap[0] < timestamp:
                        timer = heappop(heap)
                        if timer not in live:
                            continue
                        live.remove(timer)
                        timers.firing = timer
                        service.watermark = max(service.watermark, timer)
                        context._timestamp = timer  # noqa: SLF001 - the context is read-only to functions
                        try:
                            result = on_timer(timer, context)
                            if result is not None:
                                yielded.extend(result)
                        except Exception as error:
                            raise self._timer_error(error, timer) from error
                        if (count := len(yielded)) > marked:
                            marks.append((count, code, timer, None, TimeDomain.EVENT_TIME))
                            marked = count
                            if count >= _PIECE_ROWS:
                                yield
                                marked = 0
                    self._end(timers)
                if is_right is None:
                    return
                service.watermark = timestamp - 1
                context._timestamp = timestamp  # noqa: SLF001
            try:
                result = second(value, context) if is_right else first(value, context)
                if result is not None:
                    yielded.extend(result)
            except Exception as error:
                raise self._row_error(error, value, is_right=bool(is_right)) from error
            if (count := len(yielded)) > marked:
                marks.append((count, code, timestamp, is_right, value))
                marked = count
                if count >= _PIECE_ROWS:
                    yield
                    marked = 0

    def in_arrival(self, code: int, rows: Iterable[tuple[int | None, bool, Any]], before: int) -> Iterator[None]:
        """Process a key's rows at once; they see the watermark before the micro-batch."""
        self._select(code)
        context, yielded = self._context, self._yielded
        marks, marked = self._marks, len(self._yielded)
        self._service.watermark = before
        for timestamp, is_right, value in rows:
            context._timestamp = timestamp  # noqa: SLF001
            try:
                result = self._callbacks[is_right](value, context)
                if result is not None:
                    yielded.extend(result)
            except Exception as error:
                raise self._row_error(error, value, is_right=is_right) from error
            if (count := len(yielded)) > marked:
                marks.append((count, code, timestamp, is_right, value))
                marked = count
                if count >= _PIECE_ROWS:
                    yield
                    marked = 0

    def fire_timers(  # noqa: C901 - a hot loop, too
        self, domain: TimeDomain, until: int, watermark: int | None
    ) -> Iterator[None]:
        """Fire all keys' timers of a domain up to a time, itself included; without a watermark each sees its own."""
        timers = self._store.timers if domain is TimeDomain.EVENT_TIME else self._store.processing_timers
        queue = timers.due(until)
        if not queue:
            return
        self._begin(timers, domain, until)
        marks, marked = self._marks, len(self._yielded)
        if watermark is not None:
            self._service.watermark = watermark
        while queue:
            _, code = heappop(queue)
            self._select(code)
            timestamp = timers.pop(code)
            if timestamp is not None:
                if watermark is None:
                    self._service.watermark = timestamp
                self._context._timestamp = timestamp  # noqa: SLF001
                try:
                    result = self._on_timer(timestamp, self._context)
                    if result is not None:
                        self._yielded.extend(result)
                except Exception as error:
                    raise self._timer_error(error, timestamp) from error
                if (count := len(self._yielded)) > marked:
                    marks.append((count, code, timestamp, None, domain))
                    marked = count
            following = timers.next_due(code)
            if following is not None:
                heappush(queue, (following, code))
            if marked >= _PIECE_ROWS:
                yield
                marked = 0
        self._end(timers)

    def forget(self) -> None:
        """Forget which callbacks yielded the rows so far, since the list of rows is empty again."""
        self._marks.clear()

    def origin(self, place: int) -> tuple[str, str]:
        """Return which callback yielded the row at a place of the list, and for which key and row or timer."""
        _, code, timestamp, is_right, value = self._marks[bisect_right(self._marks, place, key=lambda mark: mark[0])]
        key = self._store.key_of(code)
        if is_right is None:
            return "on_timer", _of_timer(key, value, timestamp)
        return f"process_element{1 + is_right}", self._of_row(key, value, is_right=is_right)

    def _begin(self, timers: Timers, domain: TimeDomain, until: int) -> None:
        self._context._domain = domain  # noqa: SLF001
        timers.begin_sweep(until)
        if self._last_event is not None:
            self._store.timers.limit(self._last_event)
            self._store.processing_timers.limit(self._service.processing_time)

    def _end(self, timers: Timers) -> None:
        self._context._domain = None  # noqa: SLF001
        timers.end_sweep()
        if self._last_event is not None:
            self._store.timers.limit(None)
            self._store.processing_timers.limit(None)

    def _timer_error(self, error: Exception, timestamp: int) -> FunctionError:
        context = self._context
        where = _of_timer(context.get_current_key(), context.time_domain(), timestamp)
        return FunctionError(f"{self._name}.on_timer {fault(error)}; {where}")

    def _select(self, code: int) -> None:
        self._store.key_context.code = code
        self._context._key = self._store.key_of(code)  # noqa: SLF001

    def _row_error(self, error: Exception, value: Any, *, is_right: bool) -> FunctionError:
        callback = f"{self._name}.process_element{1 + is_right}"
        where = self._of_row(self._context.get_current_key(), value, is_right=is_right)
        return FunctionError(f"{callback} {fault(error)}; {where}")

    def _of_row(self, key: Any, value: Any, *, is_right: bool) -> str:
        return f"input {self._inputs[is_right].name!r}, key {key!r}, row {describe_row(value)}"


def _of_timer(key: Any, domain: TimeDomain, timestamp: Any) -> str:
    return f"key {key!r}, {domain.value} timer {timestamp} ({format_time(timestamp)})"


def fault(error: Exception) -> str:
    """Return the fault of a callback and its place; where it returned no iterable, the only frame is cojoin's."""
    is_ours = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if is_ours and isinstance(error, TypeError) and str(error).endswith("object is not iterable"):
        return f"returned a value that is not iterable ({error}); yield its rows, or return a list of them"
    return f"raised {type(error).__name__}: {error}{user_line(error)}"


# With the separator: a folder next to the package may have a name that begins with the package's.
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
    frame = (users or others)[-1]
    code = frame.tb_frame.f_code
    return f" ({code.co_filename}:{frame.tb_lineno}, in {code.co_name})"


def defined_at(function: Any, callback: str | None = None) -> str:
    """Return the end of a message that names where a function or its callback is written; empty if unknown."""
    kind = type(function)
    named = {} if callback is None else {callback: inspect.unwrap(getattr(kind, callback))}
    codes = [each.__code__ for each in (named or vars(kind)).values() if inspect.isfunction(each)]
    places = [(code.co_filename, code.co_firstlineno) for code in codes]
    return "; {} is written in {}:{}".format(callback or kind.__name__, *min(places)) if places else ""


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return only the user's frames of an error's traceback; None where there are none.

    If the error has a cause with such frames, they are those of the cause.
    """
    chain = None if error.__cause__ is None else user_traceback(error.__cause__)
    if chain is not None:
        return chain
    for link in reversed(list(_frames(error.__traceback__))):
        if is_user_file(link.tb_frame.f_code.co_filename):
            chain = TracebackType(chain, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return chain


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

"""Reducing and aggregating state, which combine values as they are added.

A state keeps one value, or one accumulator, for each key, however many values were added. An error of a user's
function, or a result that does not fit the declared type, becomes a ``FunctionError`` that names the function and the
state. Names and methods are PyFlink's (``pyflink.datastream.state``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.engine.state.keyed import SingleState
from cojoin.engine.values.encoding import coercer, misfit
from cojoin.errors import FunctionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cojoin.engine.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
    from cojoin.engine.values.keys import KeyContext

__all__ = ["AggregatingState", "ReducingState"]


class _GatheringState(SingleState):
    """What both kinds share: calls of the user's functions, and checks of their results."""

    def _compile(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its name in its errors and its result checked against the declared type."""
        what = f"{self.what}, what {name} gave"
        call, coerce, dtype = self._named(name, function), coercer(self._held_type, what), self._held_type

        def checked(*values: Any) -> Any:
            result = coerce(call(*values))
            if result is None:
                raise misfit(result, dtype, what)
            return result

        return checked

    def _named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            try:
                return function(*values)
            except Exception as error:
                msg = f"{self.what}: {name} raised {type(error).__name__}: {error}"
                raise FunctionError(msg) from error

        return call


class ReducingState(_GatheringState):
    """One value for the current key, reduced from all that were added, as PyFlink's ``ReducingState``."""

    def __init__(self, descriptor: ReducingStateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        self._reduce = self._compile("reduce_function", descriptor.reducer())  # type: ignore[arg-type]

    def get(self) -> Any:
        """Return the value, or None where nothing was added; a struct is an immutable row."""
        return self._shown(self._access())

    def add(self, value: Any) -> None:
        """Combine a value with what was added before; the first one is stored unchanged.

        None is refused. (It would clear Flink's heap state, and PyFlink passes it to the function; here a missing value
        must not delete a sum.)

        Raises:
            FunctionError: The value is None, it or the result does not fit the declared type, or the function raised.
        """
        if value is None:
            error = misfit(value, self._held_type, self.what)
            msg = f"{error}; omit what is missing, or call clear() to forget it"
            raise FunctionError(msg)
        value, before = self._coerce(value), self._peek()
        self._keep(value if before is None else self._reduce(before, value))


class AggregatingState(_GatheringState):
    """One accumulator for the current key, of all values that were added, as PyFlink's ``AggregatingState``."""

    def __init__(self, descriptor: AggregatingStateDescriptor, key_context: KeyContext, owner: str) -> None:
        super().__init__(descriptor, key_context, owner)
        function = descriptor.aggregate_function
        name = type(function).__name__
        self._create = self._compile(f"{name}.create_accumulator", function.create_accumulator)
        self._add = self._compile(f"{name}.add", function.add)
        self._result = self._named(f"{name}.get_result", function.get_result)

    def get(self) -> Any:
        """Return the function's result for the accumulator, or None where nothing was added.

        Raises:
            FunctionError: The function raised.
        """
        accumulator = self._access()
        return None if accumulator is None else self._result(self._shown(accumulator))

    def add(self, value: Any) -> None:
        """Add a value, of any type, to the accumulator, which is created for the first value.

        Raises:
            FunctionError: An accumulator is None or does not fit the declared type, or the function raised.
        """
        accumulator = self._peek()
        self._keep(self._add(value, self._create() if accumulator is None else accumulator))

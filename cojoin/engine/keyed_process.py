"""The configuration of a ``KeyedCoProcessFunction`` over two keyed inputs, as ``process`` and the harness take it.

It checks the function and its settings before anything runs, and creates the operator of each key group
(``keyed_process_operator``). What ``describe`` returns must stay the same for a checkpoint to be used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, get_args

from cojoin.engine.functions import KeyedCoProcessFunction, Order, check_callbacks
from cojoin.engine.keyed_process_operator import KeyedCoProcessOperator
from cojoin.engine.side_outputs import OutputTag, check_tags
from cojoin.engine.table_load import refuse_refresh
from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import ConfigurationError, SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.engine.inputs import InputSpec
    from cojoin.engine.time.operator_watermark import TimePolicy

__all__ = ["KeyedCoProcess"]

_OWN_COLUMNS = ("@timestamp", "@value")
"""The columns that the tables of timers and states have besides the key's."""


@dataclass(frozen=True)
class KeyedCoProcess:
    """The configuration of an operator that runs a function.

    Attributes:
        function: The user's function; every call of a key group gets its own copy.
        output: The columns of the main output.
        order: The order in which the function sees its rows.
        side_outputs: The tags to which the function may yield.
        processing_time_timers: Whether the function sets processing-time timers, which need micro-batches without rows.
            None means that it does if one of its methods refers to ``register_processing_time_timer``; static methods,
            class methods and functions outside the class are not examined.

    Raises:
        ConfigurationError: The function is not an instance of ``KeyedCoProcessFunction``, a callback is misspelled, or
            another value is invalid.
    """

    function: KeyedCoProcessFunction
    output: pa.Schema
    order: Order = "event_time"
    side_outputs: tuple[OutputTag, ...] = ()
    processing_time_timers: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.function, KeyedCoProcessFunction):
            hint = "; make an instance of it" if isinstance(self.function, type) else ""
            msg = f"function: expected an instance of a KeyedCoProcessFunction, got {self.function!r}{hint}"
            raise ConfigurationError(msg)
        check_callbacks(self.function)
        if self.processing_time_timers not in (True, False, None):
            msg = f"processing_time_timers: expected True, False or None, got {self.processing_time_timers!r}"
            raise ConfigurationError(msg)
        check_word("order", self.order, get_args(Order))
        object.__setattr__(self, "side_outputs", check_tags(self.side_outputs, type(self.function).__name__))

    @property
    def sets_processing_time_timers(self) -> bool:
        """Whether the function sets processing-time timers."""
        if self.processing_time_timers is not None:
            return self.processing_time_timers
        return any(
            _references(member.__code__, "register_processing_time_timer")
            for kind in type(self.function).__mro__
            for member in vars(kind).values()
            if isinstance(member, FunctionType)
        )

    def output_schema(self, left: InputSpec, right: InputSpec) -> pa.Schema:
        """Return the declared columns of the result, after checking the inputs and their policies for late rows.

        Raises:
            ConfigurationError: The order is event time, and an input has no event time or applies late rows; or an
                input lets rows with a null key out unmatched.
            SchemaError: A key column has the name of a column of the states' own tables.
        """
        refuse_refresh(right, "process", "what a function has made of former rows in its states can't be taken back")
        for spec in (left, right):
            if spec.null_key == "unmatched":
                msg = (
                    f"input {spec.name!r}: null_key='unmatched': a function is called by key, and rows with a null in "
                    f"it have none; leave null_key= out, so that they are rejected and counted, or give such rows a "
                    f"key before, such as coalesce(key, 'none')"
                )
                raise ConfigurationError(msg)
            for name in spec.key:
                if name in _OWN_COLUMNS:
                    msg = (
                        f"input {spec.name!r}: key column {name!r}: the states' tables have one of this name; rename it"
                    )
                    raise SchemaError(msg)
            if self.order == "event_time" and spec.event_time is None:
                msg = f"input {spec.name!r} has no event time; give it event_time=, or use order='arrival'"
                raise ConfigurationError(msg)
            if self.order == "event_time" and spec.late == "apply":
                msg = (
                    f"input {spec.name!r}: late='apply' can't be kept in event-time order, where time never goes back; "
                    f"use order='arrival', or leave late rows to the rejected output"
                )
                raise ConfigurationError(msg)
        return self.output

    def create_operator(
        self, left: InputSpec, right: InputSpec, time: TimePolicy | None = None
    ) -> KeyedCoProcessOperator:
        """Return the operator of one key group."""
        return KeyedCoProcessOperator(self, left, right, time)

    def describe(self) -> dict[str, Any]:
        """Return the settings that must stay the same for a checkpoint to be used again, as JSON values."""
        return {
            "operator": "process",
            "function": type(self.function).__qualname__,
            "order": self.order,
            "side_outputs": {tag.tag_id: schema_to_ddl(tag.schema) for tag in self.side_outputs},
        }


def _references(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(
        _references(each, name) for each in code.co_consts if isinstance(each, CodeType)
    )

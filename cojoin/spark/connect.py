"""Two inputs, connected: the checks that need both, and the doors to the joins and to functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cojoin.errors import ConfigurationError, SchemaError
from cojoin.joins.asof import AsofHow, AsofJoin
from cojoin.process import KeyedCoProcess
from cojoin.spark.call import Operation, Plan
from cojoin.spark.input import BoundInput, Input
from cojoin.spark.joined import Joined
from cojoin.types import parse_schema, schema_to_ddl, type_to_ddl

if TYPE_CHECKING:
    from cojoin.durations import Duration
    from cojoin.functions import KeyedCoProcessFunction, Order
    from cojoin.joins.columns import Suffixes

__all__ = ["ConnectedInputs", "connect"]


def connect(left: Input, right: Input, *, key_groups: int = 32) -> ConnectedInputs:
    """Connect two inputs by their keys.

    Args:
        left: The first input; in joins each of its rows gets a result.
        right: The second input; in joins its rows are the versions.
        key_groups: Into how many parts the keys are hashed: the unit of parallel work and of state. A call of one
            costs some milliseconds whatever it holds, so a few for each core are right. It can't change while a
            checkpoint is in use.

    Raises:
        ConfigurationError: The inputs don't go together.
    """
    if isinstance(key_groups, bool) or not isinstance(key_groups, int) or not 1 <= key_groups <= 32_768:
        msg = f"key_groups: expected a whole number from 1 to 32768, got {key_groups!r}"
        raise ConfigurationError(msg)
    first, second = BoundInput(left, "left", 1), BoundInput(right, "right", 2)
    _check(first, second)
    return ConnectedInputs(first, second, key_groups)


class ConnectedInputs:
    """Two inputs that share a key, made by ``connect``."""

    def __init__(self, left: BoundInput, right: BoundInput, key_groups: int) -> None:
        self._left, self._right, self._key_groups = left, right, key_groups

    def asof_join(
        self,
        how: AsofHow = "left",
        *,
        tolerance: Duration | None = None,
        allow_exact_matches: bool = True,
        suffixes: Suffixes | None = None,
    ) -> Joined:
        """Join each left row with the right row in force at its event time: the newest that is not later.

        Args:
            how: ``"left"`` emits left rows without a match with nulls, ``"inner"`` does not emit them.
            tolerance: How old the right row may be, itself included, such as ``"1 hour"``.
            allow_exact_matches: Whether a right row of the same microsecond matches.
            suffixes: What tells equal names apart, such as ``("", "_customer")``.

        Returns:
            The join; its columns are the left's, then the right's without its key. The right's event time, where its
            name is taken, becomes ``<right's name>_event_time``.

        Raises:
            ConfigurationError: An unknown value, or names that collide.
        """
        return self._apply(AsofJoin(how, tolerance, allow_exact_matches, suffixes))

    def process(
        self,
        function: KeyedCoProcessFunction,
        output_type: str | StructType | pa.Schema,
        *,
        order: Order = "event_time",
    ) -> Joined:
        """Run a function over both inputs, key by key.

        Args:
            function: An instance of a ``KeyedCoProcessFunction``.
            output_type: The columns of what it yields, as DDL, a ``StructType`` or an Arrow schema.
            order: ``"event_time"`` (rows wait for the watermark; deterministic) or ``"arrival"`` (Flink's).

        Raises:
            ConfigurationError: An output type that does not parse, or something that is no function.
        """
        return self._apply(KeyedCoProcess(function, _output_schema(output_type), order))

    def _apply(self, operation: Operation) -> Joined:
        plan = Plan(operation, self._left.spec, self._right.spec, self._key_groups)
        plan.operation.output_schema(plan.left, plan.right)
        return Joined(plan, self._left, self._right)


def _check(left: BoundInput, right: BoundInput) -> None:
    one, two = left.spec, right.spec
    if one.name == two.name:
        msg = f"both inputs are named {one.name!r}; give each a name= of its own"
        raise ConfigurationError(msg)
    if left.is_streaming != right.is_streaming:
        stream, static = (one.name, two.name) if left.is_streaming else (two.name, one.name)
        msg = (
            f"input {stream!r} is a stream, input {static!r} is static; both must be of one kind: "
            f"read {static!r} with spark.readStream, or {stream!r} with spark.read"
        )
        raise ConfigurationError(msg)
    if len(one.key) != len(two.key):
        msg = (
            f"input {one.name!r} has {len(one.key)} key columns ({', '.join(one.key)}), "
            f"input {two.name!r} has {len(two.key)} ({', '.join(two.key)}); "
            f"give both the same number, in the same order"
        )
        raise SchemaError(msg)
    for first, second in zip(one.key, two.key, strict=True):
        types = one.schema.field(first).type, two.schema.field(second).type
        if types[0] != types[1]:
            spelled = [type_to_ddl(dtype) for dtype in types]
            msg = (
                f"the key types differ: {first!r} of input {one.name!r} is {spelled[0]}, "
                f"{second!r} of input {two.name!r} is {spelled[1]}; "
                f"{_cure(first, second, spelled)}"
            )
            raise SchemaError(msg)


def _cure(first: str, second: str, types: list[str]) -> str:
    """Say which column to cast: to the wider type, or to string, so that no value is lost."""
    wider = [*("tinyint", "smallint", "int", "bigint"), "string"]
    if not set(types) <= set(wider):
        return "cast one to the other's type"
    column, target = (first, types[1]) if wider.index(types[0]) < wider.index(types[1]) else (second, types[0])
    return f"cast one: col({column!r}).cast({target!r})"


def _output_schema(declared: Any) -> pa.Schema:
    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, str):
        return parse_schema(declared, what="output_type")
    if isinstance(declared, StructType):
        # Spelled and read again, so that what DDL may not say is refused here too.
        return parse_schema(schema_to_ddl(to_arrow_schema(declared, timezone="UTC")), what="output_type")
    msg = f"output_type: expected DDL such as 'trade_id long, tier string' or a StructType, got {declared!r}"
    raise SchemaError(msg)

"""``diff``: two versions of a join or function over the same history, compared row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from cojoin.api.joined import Joined
from cojoin.comparison.comparison import Comparison
from cojoin.comparison.key_group_difference import embedded_difference
from cojoin.embedded.embedded_execution import EmbeddedExecution
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cojoin.api.joined import OutputName
    from cojoin.comparison.difference import Difference


def diff(
    a: Joined,
    b: Joined,
    *,
    output: Literal["all"] | OutputName = "all",
    keys: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    examples: int = 10,
) -> Difference:
    """Run two versions of a join or function over the same history, and return how their outputs differ.

    Both versions run to the end of time over the same rows: no row is late, and ``max_ahead`` has no effect. Outputs
    are compared as multisets, whatever the order of their rows, and exactly: a null equals a null, NaN equals NaN, and
    maps are equal whatever the order of their entries.

    The history is two inputs in memory, or two inputs of Spark: static DataFrames, Kafka sources with ``to=``, or
    sources of Delta tables and files, whose present content is read. Each input is read once, and both versions run
    where the rows of a key are, so a difference costs about two runs without their second reading. The differing rows
    are kept on Spark's disks until the result is released.

    Args:
        a: The first version, usually the one in production.
        b: The second version, over the same inputs with the same keys. Sequence, partition, event time and watermark of
            its inputs may differ.
        output: ``"all"`` compares the main output, the rejected rows and all side outputs; or one of them as in
            ``Joined.to_dataframe``.
        keys: Columns of the main output (or of the only one compared) that identify a row, so that a row of each
            version with equal values there is one row that ``changed``. None takes for two joins the left input's
            columns, and for interval joins also the right's event time; for functions None compares whole rows. Side
            outputs that have these columns are compared by them, too.
        columns: The columns of the main output (or of the only one compared) to compare besides ``keys``. None compares
            all, and both versions must have the same. Versions whose columns differ are compared by those in common.
        examples: The number of differing rows of each output that are explained.

    Returns:
        The counts, the differing rows and the examples; ``print`` shows them.

    Raises:
        ConfigurationError: The inputs of a and b are not the same, one version is in memory and the other is on Spark,
            an input is a stream without an end, or an argument is invalid.
        SchemaError: The columns of the inputs or of the compared outputs differ, or a column does not exist.
        FunctionError: A function raised an error, or returned an invalid value; the message says in which version. On
            Spark it is a ``QueryFailedError``.

    Example:
        >>> import pandas as pd
        >>> from cojoin import Input, connect
        >>> at = lambda *hours: pd.to_datetime([f"2026-01-15 {hour:02}:00" for hour in hours], utc=True)
        >>> trades = pd.DataFrame({"customer": [7, 7], "time": at(9, 10), "trade": [1, 2]})
        >>> tiers = pd.DataFrame({"customer": [7, 7], "time": at(8, 10), "tier": ["silver", "gold"]})
        >>> pair = connect(Input(trades, "customer", "time", "trades"), Input(tiers, "customer", "time", "tiers"))
        >>> found = diff(pair.asof_join(), pair.asof_join(allow_exact_matches=False))
        >>> found.equal, found.counts.changed, found.changed.to_pylist()[0]["differs"]
        (False, 1, ['tiers_event_time', 'tier'])
    """
    for name, joined in (("a", a), ("b", b)):
        if not isinstance(joined, Joined):
            msg = f"diff: {name}: expected a join or function, such as pair.asof_join(), got {type(joined).__name__}"
            raise ConfigurationError(msg)
    one, other = a._execution, b._execution  # noqa: SLF001 - they are the two halves of one interface
    in_memory = [isinstance(each, EmbeddedExecution) for each in (one, other)]
    if in_memory[0] != in_memory[1]:
        memory, spark = ("a", "b") if in_memory[0] else ("b", "a")
        msg = (
            f"diff: the inputs of {memory} are in memory, those of {spark} are Spark's; connect both to the "
            f"same inputs: make DataFrames with spark.createDataFrame(...), or take them into memory with df.toArrow()"
        )
        raise ConfigurationError(msg)
    comparison = Comparison.of(a.plan, b.plan, output, keys, columns, examples)
    if isinstance(one, EmbeddedExecution) and isinstance(other, EmbeddedExecution):
        return embedded_difference(comparison, one, other)
    from cojoin.comparison.spark_difference import spark_difference  # noqa: PLC0415 - rows in memory need no Spark

    return spark_difference(comparison, cast("Any", one), cast("Any", other))

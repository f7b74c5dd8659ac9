"""``Input``: the declaration of an input; ``connect`` checks it against the columns of its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.engine.descriptions import describe_source, describe_watermark
from cojoin.engine.display import Display, display_of
from cojoin.engine.inputs import LatePolicy, NullKeyPolicy, check_late, check_null_key
from cojoin.engine.time.watermark_strategies import WatermarkStrategy
from cojoin.engine.values.arguments import Duration, milliseconds
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Input"]


@dataclass(frozen=True, repr=False)
class Input:
    """One of the two inputs of ``connect``: its rows, and the columns with its key and its event time.

    Attributes:
        source: Where the rows are. A DataFrame of Spark's, streaming or static, or a source such as
            ``cojoin.sources.delta("/lake/trades")``, which ``connect`` opens with the active session. Or rows in
            memory, which are joined in this process without Spark: a pandas DataFrame, a pyarrow Table or reader, or
            anything with ``__arrow_c_stream__``, such as a Polars DataFrame or a DuckDB relation. Of a pandas index the
            levels that have names become columns. In pandas' own types NaN is a missing value and becomes null; in
            Arrow's types NaN stays NaN, also in pandas: ``.astype(pandas.ArrowDtype(pyarrow.float64()))``.
        key: The key column or columns. The keys of both inputs must have the same types in the same order; their names
            may differ.
        event_time: The event-time column, a ``timestamp`` (a time with a zone); or, for Spark's DataFrames, an
            expression that makes one, such as ``F.timestamp_millis("ts")``, whose column is named by its alias, else
            ``event_time``. None is an input without event time: its rows are never late and never wait. Only
            ``process`` with ``order="arrival"`` accepts it, and on the right of as-of and temporal joins a static side,
            ``cojoin.sources.delta(..., static=True)``, whose rows then are known from the beginning of time. With
            ``cojoin.sources.delta(..., changes=True)`` it is a column of the table, or ``"_commit_timestamp"``: the
            time of the commit that wrote the row, and for the rows that are there at the start the beginning of time,
            which is 1900-01-01. Leave it out with
            ``valid_from``.
        name: The input's name in messages, progress and the result's columns; ``"left"`` or ``"right"`` if not given.
        partition: The columns that identify a row's source partition, such as ``["topic", "partition"]``. Each
            partition has its own watermark. Without these columns the input is one partition. A Kafka source sets
            them itself.
        sequence: The columns that order the rows of one partition at the source, such as ``"offset"``; they break ties
            of event time. A Kafka source sets them itself.
        watermark: The watermark strategy; by default rows are expected in the order of event time.
        max_ahead: How far a row's event time may be after processing time, such as ``"1 day"`` or a ``timedelta``. A
            row further ahead is rejected and does not advance the watermark; nor do timestamps of Kafka records that
            are further ahead. None is no limit. It has no effect on static inputs.
        late: How rows at or below the operator's watermark are treated: ``"reject"`` or ``"apply"``. None is the
            operation's default. As-of and temporal joins reject late left rows and apply late versions; an interval
            join rejects late rows of both inputs; functions apply late rows in arrival order and reject them in
            event-time order.
        null_key: What happens to a row if any column of its key is null; such a key equals no other, as in SQL.
            ``"reject"`` sends it to the rejected rows. ``"unmatched"``, for a side whose rows the join keeps without a
            match (``how`` left, right or full), emits it as a row without a match once the watermark has reached its
            own time; a late one is late. The setting may change between runs, and then holds for the rows to come.
        valid_from: For rows with a span of validity, as in an SCD2 table, instead of ``event_time``: the ``timestamp``
            column with its begin. Each row is a version from then on.
        valid_to: The ``timestamp`` column with the end of a row's validity, itself excluded. Null, and a time from the
            year 9999 on, is no end. Where the next row of the key begins later, or there is none, the key has no
            version in between. A row that ends where it begins was never valid. The rows of a key must not overlap.

    Raises:
        ConfigurationError: An attribute is invalid. Whether the columns exist and have the right types is checked by
            ``connect``.

    Example:
        >>> trades = Input(trades_df, key="customer_id", event_time="event_time", name="trades")  # doctest: +SKIP

        In pandas' own types NaN becomes null, and in Arrow's types it stays:

        >>> import pandas as pd
        >>> import pyarrow as pa
        >>> from cojoin import connect
        >>> times = pd.to_datetime(["2026-01-15 09:00"] * 2, utc=True)
        >>> trades = pd.DataFrame({"id": [7, 8], "time": times, "price": [1.5, float("nan")]})
        >>> exact = pa.table({"id": [7, 8], "time": times, "size": [float("nan"), 2.5]})
        >>> pair = connect(Input(trades, "id", "time", "trades"), Input(exact, "id", "time", "sizes"))
        >>> pair.asof_join().to_arrow().select(["price", "size"]).to_pylist()
        [{'price': 1.5, 'size': nan}, {'price': None, 'size': 2.5}]

        Rows with a span of validity say themselves when they end:

        >>> day = lambda *days: pd.to_datetime([each and f"2026-01-{each}" for each in days], utc=True)
        >>> tiers = pd.DataFrame({"id": [7, 7], "tier": ["silver", "gold"], "begin": day("01", "14"),
        ...                       "end": day("10", None)})
        >>> trades = pd.DataFrame({"id": [7] * 3, "time": day("05", "12", "15")})
        >>> valid = Input(tiers, "id", valid_from="begin", valid_to="end", name="tiers")
        >>> connect(Input(trades, "id", "time", "trades"), valid).temporal_join().to_arrow()["tier"].to_pylist()
        ['silver', None, 'gold']
    """

    source: Any
    key: str | Sequence[str]
    event_time: Any = ...
    name: str = ""
    partition: str | Sequence[str] = ()
    sequence: str | Sequence[str] = ()
    watermark: WatermarkStrategy = field(default_factory=WatermarkStrategy)
    max_ahead: Duration | None = "1 day"
    late: LatePolicy | None = None
    valid_from: str | None = None
    valid_to: str | None = None
    null_key: NullKeyPolicy = "reject"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            msg = f"input: name: expected a text, got {self.name!r}"
            raise ConfigurationError(msg)
        if not isinstance(self.watermark, WatermarkStrategy):
            msg = (
                f"{self._label}: watermark: expected a WatermarkStrategy, such as "
                f'WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"), got {self.watermark!r}'
            )
            raise ConfigurationError(msg)
        if self.max_ahead is not None:
            milliseconds(self.max_ahead, f"{self._label}: max_ahead")
        check_late(self.late, self._label)
        check_null_key(self.null_key, self._label)
        self._check_times()

    def _check_times(self) -> None:
        """Check that rows have an event time or a span of validity, and not both."""
        spans = (self.valid_from, self.valid_to)
        if spans == (None, None):
            if self.event_time is ...:
                msg = (
                    f"{self._label}: expected event_time=, the column with the rows' times, or valid_from= and "
                    f"valid_to= for rows with a span of validity; event_time=None is for rows without time"
                )
                raise ConfigurationError(msg)
            return
        if self.event_time is not ... and self.event_time is not None:
            msg = (
                f"{self._label}: expected event_time= or valid_from= and valid_to=, got both: rows with a span of "
                f"validity take effect at its begin and its end; leave event_time= out"
            )
            raise ConfigurationError(msg)
        for name, given in zip(("valid_from", "valid_to"), spans, strict=True):
            if not isinstance(given, str) or not given:
                msg = f"{self._label}: {name}: expected the name of a timestamp column, got {given!r}"
                raise ConfigurationError(msg)
        object.__setattr__(self, "event_time", None)

    def __repr__(self) -> str:
        return display_of(lambda: Display(self._line()), "Input").text()

    def _repr_html_(self) -> str:
        return display_of(lambda: Display(self._head, [("", ""), *self._settings()]), "Input").html()

    @property
    def _head(self) -> str:
        return f"Input {self.name!r}" if self.name else "Input"

    def _line(self) -> str:
        (_, rows), *others = self._settings()
        return f"{self._head}: {'; '.join([rows, *(f'{name} {value}' for name, value in others)])}"

    def _settings(self) -> list[tuple[str, str]]:
        def columns(named: Any) -> str:
            return named if isinstance(named, str) else ", ".join(map(str, named))

        settings = [
            ("rows", describe_source(self.source)),
            ("key", columns(self.key)),
            self._times(),
            ("watermark", describe_watermark(self.watermark)),
        ]
        settings += [("partition", columns(self.partition))] if self.partition else []
        settings += [("sequence", columns(self.sequence))] if self.sequence else []
        settings += [("max_ahead", str(self.max_ahead))] if self.max_ahead != "1 day" else []
        settings += [("late", self.late)] if self.late else []
        return [*settings, ("null_key", self.null_key)] if self.null_key != "reject" else settings

    def _times(self) -> tuple[str, str]:
        if self.valid_from is not None:
            return "valid", f"from {self.valid_from} to {self.valid_to}"
        return "event time", "none" if self.event_time is None else str(self.event_time)

    @property
    def _label(self) -> str:
        return f"input {self.name!r}" if self.name else "input"

"""``cojoin demo``: a day of trades, each joined with the customer record in force at its event time.

``--local`` joins them in this process, without Spark.

The rows are made from a seed, so they are the same each time. They arrive out of order by up to 5 seconds. Event times
have microseconds, and several rows share a millisecond. Some trades happen in the same microsecond as a change, and
some before their customer's first record. A few rows have a null key or a null event time. The files' modification
times ascend, since Spark reads files in that order.

The output is compared with pandas' ``merge_asof`` over the same rows up to the watermark, as multisets of rows, with
nulls, NaN and nested values. ``merge_asof`` only finds each left row's match; the rows stay in Arrow, so nothing is
rounded. A late version applies only to later rows, so the two may differ where versions were late.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cojoin.api.connect import connect
from cojoin.cli import run_report
from cojoin.cli.interrupts import wait_for
from cojoin.cli.run_report import say, tell
from cojoin.comparison.row_matching import compare_rows
from cojoin.delta.table_log import TableRows
from cojoin.engine.input import Input
from cojoin.engine.ordering import OrderedPart, total_order
from cojoin.engine.values.arguments import microseconds
from cojoin.engine.values.tables import take_rows
from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.installed_packages import check_pandas
from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from cojoin.api.joined import Joined
    from cojoin.cli.options import Arguments
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.joins.asof import AsofJoin
    from cojoin.engine.plan import Plan


_SETTINGS = {"spark.jars.packages": ""}
"""The tables are written without Delta's jars, so none are fetched."""

_MARK = ".cojoin-demo"


def run_demo(arguments: Arguments) -> int:
    """Run the demo, and return the exit code: 0 if the result equals that of pandas, else 1."""
    started = time.monotonic()
    folder = _folder(arguments)
    kept = arguments.keep or arguments.directory is not None
    try:
        tell("A day of trades: each is joined with the customer record in force at its event time.")
        from cojoin.cli.embedded_spark import SHORT_RUN, local_session  # noqa: PLC0415 - the demo in memory needs no Spark

        with local_session(folder, tell, conf={**SHORT_RUN, **_SETTINGS}, log=arguments.log):
            day = make_day(arguments.rows, arguments.seed)
            day.write(folder)
            tell(
                f"Made {day.trades.num_rows:,} trades and {day.customers.num_rows:,} versions of "
                f"{day.customer_count:,} customers: files of {DAY:%Y-%m-%d}, out of order by up to {OUT_OF_ORDERNESS}."
            )
            verdict = _join_and_check(day, folder)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    if kept:
        say(f"\nThe joined rows are in the Delta table {folder / 'enriched'},")
        say(f"the rejected rows in {folder / 'checkpoint' / 'rejected'}.")
    else:
        say()
        tell("The temporary files were removed; use --keep to keep the Delta table.")
    say(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if verdict.is_equal else 1


def _folder(arguments: Arguments) -> Path:
    """Return a folder for the demo's files alone; the files of an earlier demo are removed."""
    if arguments.directory is None:
        return Path(tempfile.mkdtemp(prefix="cojoin-demo-"))
    folder = Path(arguments.directory).absolute()
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARK).exists():
                msg = f"--directory {arguments.directory}: it is neither empty nor an earlier demo's; choose another"
                raise ConfigurationError(msg)
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
    except OSError as error:
        msg = f"--directory {arguments.directory}: it can't be written: {error.strerror or error}"
        raise ConfigurationError(msg) from error
    return folder


def _join_and_check(day: Day, folder: Path) -> Verdict:
    import cojoin as cj  # noqa: PLC0415 - Java is checked before Spark is touched

    enriched = _joined(folder)
    target, checkpoint = str(folder / "enriched"), str(folder / "checkpoint")
    query = enriched.start(output=cj.sinks.delta(target), checkpoint=checkpoint, trigger=cj.Trigger.available_now())
    wait_for(query, total=day.trades.num_rows + day.customers.num_rows)
    paused = query.progress
    assert paused is not None
    say("\n" + run_report.watermarks(paused))
    say()
    tell(run_report.ending(paused))

    say()
    tell("The same query again, drained as by `cojoin run --drain`: all waiting rows are written.")
    trigger = cj.Trigger.available_now(drain=True)
    query = enriched.start(output=cj.sinks.delta(target), checkpoint=checkpoint, trigger=trigger)
    wait_for(query)
    drained = query.progress
    assert drained is not None
    tell(run_report.ending(drained))
    say()
    say(run_report.counts(drained))
    tell(run_report.conservation(drained))

    output = TableRows(LocalStore(target, "Delta table"), "").read(enriched.plan.output)
    _show(output)
    return verify(enriched.plan, day, output, drained.watermark)


def _show(output: pa.Table) -> None:
    shown = telling_rows(output)
    if shown.num_rows:
        say(f"\nOf {output.num_rows:,} joined rows, {shown.num_rows} of customer {shown['customer_id'][0]}:\n")
        say(run_report.rows(shown))
    say()


def _joined(folder: Path) -> Joined:
    import cojoin as cj  # noqa: PLC0415 - Java is checked before Spark is touched

    watermark = cj.WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDERNESS)
    inputs = [
        cj.Input(
            cj.sources.files(str(folder / name), "parquet", schema=schema, options={"maxFilesPerTrigger": 1}),
            key="customer_id",
            event_time="event_time",
            name=name,
            watermark=watermark,
        )
        for name, schema in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    ]
    return cj.connect(*inputs, key_groups=4).asof_join()


def run_local_demo(arguments: Arguments) -> int:
    """Run the demo, and return the exit code: 1 if the result differs from that of pandas, where it is installed."""
    if arguments.directory is not None or arguments.keep or arguments.log is not None:
        msg = "--local writes no files; leave out --directory, --keep and --log, or leave out --local"
        raise ConfigurationError(msg)
    tell("A day of trades: each is joined with the customer record in force at its event time, in this process.")
    day = make_day(arguments.rows, arguments.seed)
    tell(
        f"Made {day.trades.num_rows:,} trades and {day.customers.num_rows:,} versions of {day.customer_count:,} "
        f"customers: {DAY:%Y-%m-%d}, out of order by up to {OUT_OF_ORDERNESS}."
    )
    started = time.monotonic()
    trades = Input(day.trades, "customer_id", "event_time", "trades")
    customers = Input(day.customers, "customer_id", "event_time", "customers")
    joined = connect(trades, customers).asof_join()
    result = joined.run()
    seconds = time.monotonic() - started
    say()
    say(run_report.counts(result.report))
    tell(run_report.conservation(result.report))
    _show(result.output)
    try:
        check_pandas("The comparison with pandas' merge_asof")
        is_equal = verify(joined.plan, day, result.output, result.report.watermark).is_equal
    except EnvironmentSetupError as missing:
        tell(f"Not compared. {missing}")
        is_equal = True
    tell(f"The join took {seconds:.2f} s, without Spark. The same join on streams: cojoin demo.")
    return 0 if is_equal else 1


_SHOWN = 6


def verify(plan: Plan, day: Day, output: pa.Table, watermark: int) -> Verdict:
    """Compare the output up to a watermark, in epoch milliseconds, with that of ``merge_asof``; print the verdict."""
    tables = admitted(day.trades, plan.left), admitted(day.customers, plan.right)
    verdict = compare(expected_rows(plan.operation, plan.inputs, tables, watermark), output)  # type: ignore[arg-type]
    say(run_report.verdict(verdict))
    return verdict


def telling_rows(output: pa.Table) -> pa.Table:
    """Return successive trades of one customer between which the record in force changes most, ideally from none."""
    ordered = output.sort_by([("customer_id", "ascending"), ("event_time", "ascending")])
    keys = ordered["customer_id"].to_numpy()
    versions = ordered["customers_event_time"].cast(pa.int64()).fill_null(-1).to_numpy()
    changes = np.zeros(len(keys), dtype=np.int64)
    changes[1:] = (keys[1:] == keys[:-1]) & (versions[1:] != versions[:-1])
    total = np.cumsum(changes)
    starts = np.arange(max(0, len(keys) - _SHOWN + 1))
    ends = starts + _SHOWN - 1
    score = (total[ends] - total[starts]) + (versions[starts] == -1)
    score[keys[starts] != keys[ends]] = -1
    return ordered.slice(int(np.argmax(score)), _SHOWN) if len(score) else ordered.slice(0, _SHOWN)


DAY = datetime(2026, 1, 15, tzinfo=timezone.utc)
OUT_OF_ORDERNESS = "5 seconds"
FILES = 5
TRADES_DDL = "trade_id long, customer_id long, event_time timestamp, amount double"
CUSTOMERS_DDL = "customer_id long, event_time timestamp, tier string, credit_limit double"

_DAY_MICROS = 86_400_000_000
_LATEST_MICROS = 5_000_000
_TRADES_A_VERSION = 10
_VERSIONS_A_CUSTOMER = 20
_TIERS = ("bronze", "silver", "gold", "platinum")
_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Day:
    """The demo's trades and versions of customers, in the order of their arrival, and the number of customers."""

    trades: pa.Table
    customers: pa.Table
    customer_count: int

    def write(self, folder: Path) -> None:
        """Write both tables as folders of Parquet files."""
        _write(self.trades, folder / "trades")
        _write(self.customers, folder / "customers")


def make_day(trade_count: int, seed: int) -> Day:
    """Return a day with a number of trades, made from a seed."""
    rng = np.random.default_rng(seed)
    version_count = max(1, trade_count // _TRADES_A_VERSION)
    customer_count = max(1, version_count // _VERSIONS_A_CUSTOMER)
    start = int(DAY.timestamp()) * 1_000_000

    version_times = start + rng.integers(0, _DAY_MICROS, version_count)
    version_keys = rng.integers(1, customer_count + 1, version_count)
    # A few customers trade far more than the others.
    trade_keys = 1 + np.floor(customer_count * rng.random(trade_count) ** 2).astype(np.int64)
    trade_times = start + rng.integers(0, _DAY_MICROS, trade_count)
    same = rng.integers(0, version_count, max(1, trade_count // 200))
    trade_times[: len(same)], trade_keys[: len(same)] = version_times[same], version_keys[same]

    trades = pa.table(
        {
            "trade_id": pa.array(np.arange(1, trade_count + 1)),
            "customer_id": _with_nulls(trade_keys, pa.int64(), _some(rng, trade_count, 3)),
            "event_time": _with_nulls(trade_times, _TIME, _some(rng, trade_count, 2)),
            "amount": pa.array(np.round(rng.lognormal(5, 1, trade_count), 2)),
        }
    )
    customers = pa.table(
        {
            "customer_id": _with_nulls(version_keys, pa.int64(), _some(rng, version_count, 1)),
            "event_time": _with_nulls(version_times, _TIME, _some(rng, version_count, 1)),
            "tier": pa.array(np.array(_TIERS)[rng.integers(0, len(_TIERS), version_count)]),
            "credit_limit": pa.array(rng.integers(1, 100, version_count) * 1_000.0),
        }
    )
    return Day(_arrived(trades, trade_times, rng), _arrived(customers, version_times, rng), customer_count)


def _some(rng: np.random.Generator, count: int, broken: int) -> NDArray[np.bool_]:
    """Return a mask of the rows that get a null; a tiny day has none."""
    chosen = np.zeros(count, dtype=bool)
    if count >= 100 * broken:
        chosen[rng.choice(count, broken, replace=False)] = True
    return chosen


def _with_nulls(values: NDArray[np.int64], dtype: pa.DataType, mask: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=mask).cast(dtype)


def _arrived(table: pa.Table, times: NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
    """Return the rows sorted by their time of arrival, which is less than 5 seconds after the event."""
    return table.take(pa.array(np.argsort(times + rng.integers(0, _LATEST_MICROS, len(times)), kind="stable")))


def _write(table: pa.Table, folder: Path) -> None:
    folder.mkdir(parents=True)
    bounds = np.linspace(0, table.num_rows, FILES + 1).astype(int)
    now = time.time()
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        path = folder / f"part-{number:02d}.parquet"
        pq.write_table(table.slice(begin, end - begin), path)
        os.utime(path, (now - FILES + number, now - FILES + number))


@dataclass(frozen=True)
class Verdict:
    """The numbers of rows that ``merge_asof`` and the output have, and the rows that only one of them has."""

    expected: int
    got: int
    missing: pa.Table
    unexpected: pa.Table

    @property
    def is_equal(self) -> bool:
        """Whether both have the same rows."""
        return not self.missing.num_rows and not self.unexpected.num_rows


def admitted(table: pa.Table, spec: InputSpec) -> pa.Table:
    """Return an input's rows without those with a null key or event time, which are rejected."""
    table = table.select(spec.schema.names).cast(spec.schema)
    for name in (*spec.key, spec.event_time):
        table = table.filter(pc.is_valid(table.column(name)))
    return table


def expected_rows(
    join: AsofJoin, inputs: tuple[InputSpec, InputSpec], tables: tuple[pa.Table, pa.Table], watermark: int
) -> pa.Table:
    """Return the rows that the join must have emitted up to a watermark, in epoch milliseconds, by ``merge_asof``."""
    left, right = inputs
    due = left.millis(tables[0]) <= watermark
    rows, versions = tables[0].filter(pa.array(due)), tables[1]
    rows = rows.take(pa.array(np.argsort(left.micros(rows), kind="stable")))
    micros = right.micros(versions)
    ordered = total_order([OrderedPart(np.zeros(len(micros), np.int64), micros, 0, versions, right.source_order)])
    versions = versions.take(pa.array(ordered))
    matches = _matches(join, _frame(rows, left), _frame(versions, right))
    if join.how == "inner":
        rows, matches = rows.filter(pa.array(matches >= 0)), matches[matches >= 0]
    payload = versions.select([name for name in right.schema.names if name not in right.key])
    matched = payload.take(pa.array(matches, mask=matches < 0))
    return pa.Table.from_arrays([*rows.columns, *matched.columns], schema=join.output_schema(left, right))


def compare(expected: pa.Table, output: pa.Table) -> Verdict:
    """Compare two tables of the same columns as multisets of rows."""
    output = output.select(expected.schema.names).cast(expected.schema)
    one, other, _ = compare_rows(expected, output)
    missing, unexpected = take_rows(expected, one[one >= 0]), take_rows(output, other[other >= 0])
    return Verdict(expected.num_rows, output.num_rows, missing, unexpected)


def _frame(table: pa.Table, spec: InputSpec) -> pd.DataFrame:
    """Return the times, keys and positions of sorted rows as a pandas DataFrame."""
    import pandas as pd  # noqa: PLC0415 - `cojoin demo --local` runs without it

    keys: dict[str, Any] = {f"key{number}": table.column(name).to_pandas() for number, name in enumerate(spec.key)}
    times = spec.micros(table)
    frame: pd.DataFrame = pd.DataFrame({"time": times, **keys, "position": np.arange(table.num_rows)})
    return frame


def _matches(join: AsofJoin, left: pd.DataFrame, right: pd.DataFrame) -> NDArray[np.int64]:
    """Return the position of each left row's version, or -1 where it has none."""
    import pandas as pd  # noqa: PLC0415 - as above

    if not len(left) or not len(right):
        return np.full(len(left), -1, dtype=np.int64)
    merged = pd.merge_asof(
        left,
        right,
        on="time",
        by=[name for name in left.columns if name.startswith("key")],
        tolerance=None if join.tolerance is None else microseconds(join.tolerance, "tolerance"),
        allow_exact_matches=join.allow_exact_matches,
        suffixes=("", "_match"),
    )
    return merged["position_match"].fillna(-1).to_numpy().astype(np.int64)

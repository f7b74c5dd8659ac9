"""How fast rows go through a function, without Spark: elements a second, beside a bare loop in the same run.

A million elements over 10,000 keys, each of which sets one timer and updates one value state, go through the operator
in micro-batches of 100,000: Arrow in, Arrow out; and through ``connect``, as users have it for rows in memory. Beside
them, in turns, a bare Python loop turns the same Arrow rows into objects and back: with pyarrow's own ``to_pylist`` and
``from_pylist``, and with cojoin's decoder and encoder.

    python benchmarks/join/row_path.py [--rows 1000000] [--rounds 3] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import cojoin as cj
from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.operator import Batch
from cojoin.engine.state import ValueStateDescriptor
from cojoin.engine.time.control_rows import Control
from cojoin.engine.values.encoding import encode_rows
from cojoin.engine.values.rows import decode_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

TIME = pa.timestamp("us", "UTC")
TRADES = pa.schema([("trade_id", pa.int64()), ("customer_id", pa.int64()), ("at", TIME), ("amount", pa.float64())])
CUSTOMERS = pa.schema([("customer_id", pa.int64()), ("at", TIME), ("tier", pa.string())])
OUTPUT = pa.schema([("customer_id", pa.int64()), ("at", pa.int64()), ("total", pa.float64())])
BATCH_ROWS, DELAY_MS = 100_000, 1_000


class Totals(KeyedCoProcessFunction):
    """Adds up each customer's amounts and tells the sum a second after each trade."""

    def open(self, ctx: Any) -> None:
        """Get the sum."""
        self.total = ctx.get_state(ValueStateDescriptor("total", "double"))

    def process_element1(self, value: Any, ctx: Any) -> None:
        """Add a trade and set its timer."""
        self.total.update((self.total.value() or 0.0) + value.amount)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + DELAY_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        """Tell the sum."""
        yield ctx.get_current_key(), timestamp, self.total.value()


def generate(rows: int, keys: int) -> pa.Table:
    """Make trades in order of time; a key's timestamps differ, so each has a timer of its own."""
    random = np.random.default_rng(7)
    micros = np.arange(rows, dtype=np.int64) * 1_000 + 1_700_000_000_000_000
    columns = [
        pa.array(np.arange(rows)),
        pa.array(random.integers(0, keys, rows)),
        pa.array(micros).cast(TIME),
        pa.array(random.random(rows).round(2)),
    ]
    return pa.Table.from_arrays(columns, schema=TRADES)


def through_the_operator(trades: pa.Table) -> pa.Table:
    """Run the function, batch by batch, to the end of time."""
    inputs = (
        InputSpec("trades", TRADES, ("customer_id",), "at"),
        InputSpec("customers", CUSTOMERS, ("customer_id",), "at"),
    )
    operator = KeyedCoProcess(Totals(), OUTPUT).create_operator(*inputs)
    out = []
    for start in range(0, trades.num_rows, BATCH_ROWS):
        rows = trades.slice(start, BATCH_ROWS)
        latest = pc.max(rows.column("at").cast(pa.int64())).as_py() // 1_000
        controls = [Control(1, {"p": latest}, rows.num_rows), Control(2, {"p": latest})]
        is_last = start + BATCH_ROWS >= trades.num_rows
        batch = Batch((rows, CUSTOMERS.empty_table()), controls, end_of_input=is_last)
        out += [emission.table for emission in operator.process(batch)]
        operator.snapshot()
    operator.close()
    return pa.concat_tables(out)


def through_connect(trades: pa.Table) -> pa.Table:
    """Run the function as users do with rows in memory, in one reading."""
    columns = {"key": "customer_id", "event_time": "at"}
    pair = cj.connect(
        cj.Input(trades, **columns, name="trades"), cj.Input(CUSTOMERS.empty_table(), **columns, name="customers")
    )
    return pair.process(Totals(), output_type=OUTPUT).to_arrow()


def through_pyarrow(trades: pa.Table) -> pa.Table:
    """Turn the rows into pyarrow's own dicts and back."""
    rows = []
    for row in trades.to_pylist():
        rows.append(row)  # noqa: PERF402 - the loop is what is measured
    return pa.Table.from_pylist(rows, TRADES)


def through_our_rows(trades: pa.Table) -> pa.Table:
    """Turn the rows into cojoin's own named rows and back."""
    rows = []
    for row in decode_rows(trades):
        rows.append(row)  # noqa: PERF402
    return encode_rows(rows, TRADES, "the bare loop")


def check(trades: pa.Table, output: pa.Table) -> None:
    """Compare with pandas' running sums: one row an element, its customer's total a second later."""
    frame = trades.to_pandas()
    ends = frame["at"].astype("int64") // 1_000
    if ends.iloc[0] > 1 << 50:
        ends //= 1_000
    expected = frame.assign(at=ends + DELAY_MS)
    totals = expected.assign(total=expected.groupby("customer_id")["amount"].cumsum(), own=ends)
    asked = expected[["customer_id", "at"]].sort_values("at", kind="stable")
    known = totals[["customer_id", "own", "total"]].sort_values("own", kind="stable")
    right = pd.merge_asof(asked, known, left_on="at", right_on="own", by="customer_id")
    right = right.sort_values(["customer_id", "at"])
    got = output.to_pandas().sort_values(["customer_id", "at"])
    assert len(got) == len(right)
    assert (got["at"].to_numpy() == right["at"].to_numpy()).all()
    assert np.allclose(got["total"].to_numpy(), right["total"].to_numpy())


def main() -> None:
    """Measure in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print where the operator's time goes instead")
    typed = parser.parse_args()
    trades = generate(typed.rows, typed.keys)
    if typed.profile:
        profile = cProfile.Profile()
        profile.runcall(through_the_operator, trades)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    contenders = {
        "operator": through_the_operator,
        "connect": through_connect,
        "pyarrow loop": through_pyarrow,
        "own loop": through_our_rows,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(typed.rounds):
        for name, run in contenders.items():
            started = time.perf_counter()
            result = run(trades)
            seconds[name].append(time.perf_counter() - started)
            if name in ("operator", "connect") and number == 0:
                check(trades, result)
    best = {name: min(taken) for name, taken in seconds.items()}
    for name, taken in seconds.items():
        rate, ratio = typed.rows / best[name], best["operator"] / best[name]
        spread = f"{min(taken):.2f} to {max(taken):.2f} s"
        print(f"{name:14} {rate:>12,.0f} rows/s   {spread}   the operator takes {ratio:.2f} times as long")


if __name__ == "__main__":
    main()

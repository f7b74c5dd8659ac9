# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # In a notebook, without Spark
#
# Rows in memory are joined in this process, by the operators that run on Spark's workers. So a join can be tried,
# looked at step by step, drawn, tested and compared before it runs on Spark. This guide needs neither Spark nor Java,
# only `pip install "cojoin[plots]"`.

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

import cojoin as cj
from cojoin.testing import DeterminismError, capture, check_determinism


def at(*times):
    return pd.to_datetime([f"2026-01-15 {time}" for time in times], utc=True)


# %% [markdown]
# ## Join two frames
#
# An `Input` takes a pandas or Polars DataFrame, a pyarrow Table or reader, a DuckDB relation, or anything else with
# `__arrow_c_stream__`. Event times without a zone, dates and whole numbers
# need `time_zone=` or `time_unit=` (guide 05). The rest of the API is the same as on Spark, and so are the rows,
# their types, and the order of a key's rows.

# %%
trades = pd.DataFrame(
    {
        "trade_id": [1, 2, 3, 4],
        "customer": ["a", "b", "b", "a"],
        "event_time": at("09:02", "09:06", "09:04", "09:20"),
    }
)
customers = pd.DataFrame(
    {
        "customer": ["a", "b", "a", "b"],
        "event_time": at("09:00", "09:01", "09:07", "09:21"),
        "tier": ["silver", "gold", "basic", "silver"],
    }
)
columns = {"key": "customer", "event_time": "event_time"}
pair = cj.connect(cj.Input(trades, **columns, name="trades"), cj.Input(customers, **columns, name="customers"))
pair.asof_join().to_pandas()

# %% [markdown]
# `to_pandas()` and `to_arrow()` return one output; Polars takes the latter: `pl.from_arrow(joined.to_arrow())`. `run()`
# returns all outputs of one run with the counts. A run goes to the end of time: no row is late, and nothing waits at
# the end.
#
# What is different from `pandas.merge_asof` and Polars' `join_asof`:
#
# | there | here |
# |---|---|
# | both frames must be sorted by time | in any order |
# | the result has the left's order | the rows of a key come in the order of time, and keys as it happens: sort the result |
# | no key is needed | `key=()` joins by time alone; `process` needs a key |
# | any number can be the time | a time, a date, or a whole number with `time_unit=` |
# | rows without a time are refused, or come out unmatched | they are rejected, as rows without a key: `run()` counts them |
# | of versions of one time, the last in the frame (looking forward the first) | the last by `sequence=`, a column of the input; else by their content |
# | at equal distance Polars' nearest takes the later version | the earlier one, as pandas |

# %%
pair.asof_join().run()

# %% [markdown]
# ## See what matched what
#
# Bars are the versions of a key while they are in force, dots are trades, and a line leads from a trade to the version
# that it got. `since=` and `until=` show a part, and `axes.figure.savefig("timeline.png")` keeps the picture.

# %%
axes = cj.plots.plot_timeline(pair.asof_join(), keys=["a", "b"])

# %% [markdown]
# ## Step through time
#
# `steps` runs the same join as a stream: it takes the rows in micro-batches and shows after each what came in, what
# came out, what waits, both watermarks, timers, states and rejected rows. The cuts are yours: numbers of rows as here,
# a column with the time of arrival, or windows of time. Each step is what Spark makes of the same micro-batch. For a few
# keys of many, filter the frames of both inputs by them first.
#
# The function below emits each trade with its customer's tier. It sets a timer, and tells when a customer has not
# traded for ten minutes.

# %%
os.chdir(tempfile.mkdtemp())
written = Path("silence.py").write_text("""
import cojoin as cj


class Silence(cj.KeyedCoProcessFunction):
    def open(self, ctx):
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
        self.last = ctx.get_state(cj.ValueStateDescriptor("last", "bigint"))

    def process_element1(self, trade, ctx):
        self.last.update(trade.trade_id)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 600_000)
        yield trade.trade_id, self.tier.value()

    def process_element2(self, customer, ctx):
        self.tier.update(customer.tier)

    def on_timer(self, timestamp, ctx):
        yield self.last.value(), "silent since"
""")
sys.path.insert(0, os.getcwd())
from silence import Silence  # noqa: E402

OUTPUT = "trade_id bigint, what string"
silence = pair.process(Silence(), OUTPUT)
steps = list(silence.steps(batches=[(1, 2), (1, 1), (1, 0), (1, 1)]))
steps[1]

# %% [markdown]
# In step 1 the watermark is 09:05:59.999: trades hold it, since their newest row is of 09:06. Trade 1 of 09:02 came out
# with `silver`, and set a timer for 09:12. Trade 2 of 09:06 waits.
#
# Step 2 brings trade 3 of 09:04, which is below that watermark. It is late, and rejected:

# %%
steps[2].rejected.to_pandas()

# %% [markdown]
# Step 3 moves the watermark past 09:12 and 09:16. The rows and the timers of each key that are due are processed in
# the order of time:

# %%
steps[3]

# %% [markdown]
# The watermarks of all steps in one picture; the shaded input holds the join back.

# %%
axes = cj.plots.plot_watermarks(steps)

# %% [markdown]
# And the timers, which the timeline of a function shows beside its rows:

# %%
axes = cj.plots.plot_timeline(silence, keys="a")

# %% [markdown]
# ## Does the result depend on the order of arrival?
#
# It must not. `check_determinism` delivers the rows in random orders, cuts, key groups and restarts, in other processes
# and at other times of the clock. It returns a report if all results are the same:

# %%
check_determinism(silence, seeds=100)


# %% [markdown]
# A function that keeps something in an attribute instead of a state is found, and the message says what it depends on:


# %%
class Numbers(cj.KeyedCoProcessFunction):
    def __init__(self):
        self.count = 0

    def process_element1(self, trade, ctx):
        self.count += 1
        yield trade.trade_id, str(self.count)


try:
    check_determinism(pair.process(Numbers(), OUTPUT), seeds=100)
except DeterminismError as error:
    print(error)

# %% [markdown]
# ## A test from real rows
#
# `capture` writes a pytest file which replays the rows of a few keys and expects what came out of them. It chooses keys
# that cover late rows, ties, missing matches and timers, or takes those that you name. From `steps` rows are late again
# that were late. The test needs no Spark.

# %%
captured = capture(
    silence.steps(batches=[(1, 2), (1, 1), (1, 0), (1, 1)]), "test_silence.py", function="silence:Silence"
)
captured

# %%
print(Path("test_silence.py").read_text())
done = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "test_silence.py"],
    capture_output=True,
    text=True,
)
print(done.stdout.splitlines()[-1].split(" in ")[0])

# %% [markdown]
# ## What does a change change?
#
# `diff` runs two versions of a join or function over the same history, in memory or on Spark, and shows which rows
# differ and why. `cojoin diff` does the same on the command line; its exit code is 1 if they differ.

# %%
cj.diff(pair.asof_join(), pair.asof_join(tolerance="3 minutes"))

# %% [markdown]
# ## Then on Spark
#
# Give `Input` a DataFrame of Spark's, or a source such as `cj.sources.delta`, and call `to_dataframe()` or `start()`
# instead: see [as-of join](01_asof_join.ipynb). What a running query did for one key can be loaded from its checkpoint
# and stepped through here with `cj.debug`: see [checkpoints](03_checkpoints.ipynb).

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
# # Speed and sizing
#
# How fast is a join, what does it cost, and which settings matter? This guide has the figures that were measured, with
# their conditions, says where a batch's time goes and why, measures a small join beside plain Spark on this machine,
# and ends with a calculator for your own.
#
# It needs Java 17 and `pip install "cojoin[spark]" "pyspark<4.3" matplotlib`. The programs that measured the
# figures are in the repository, below `benchmarks/`: see [the end](#How-do-I-measure-it-myself?).

# %%
import os
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import cojoin as cj

os.chdir(tempfile.mkdtemp())  # all paths below are in here

# %% [markdown]
# ## Where does a batch's time go?
#
# Each micro-batch is one Spark job of two stages. The *map* stage reads both inputs, has the rows in Python as Arrow,
# cuts them by key group and writes the shuffle. The *reduce* stage has one call for each key group: it restores the
# state, joins, stores the state, and writes the output's parquet files. Then Delta commits the files, and Spark plans
# the next batch and writes its logs.
#
# Parquet files of `cj.sources.files` on a local or mounted disk do not become rows of Spark at all: Spark lists and
# splits them, and the workers read their parts with pyarrow. `query.progress.inputs[0].reading` is then `"direct"`, and
# else the reason for which Spark reads them, such as an option, or a file with dates of the Julian calendar. With
# `spark.cojoin.parquet=spark` in the session Spark reads all files; checkpoints go on either way. `connect` decides it.
# A file that comes later, and that the workers do not read as Spark does, stops the query with an error that names it
# and this setting. The files of a static DataFrame are read in this way, too, where it is nothing but
# `spark.read.parquet(...)` and some of its columns: without filters, other expressions, partitions or a cache.
#
# Delta tables, and their changes, are read in the same way on Spark 4.2 and later: cojoin chooses the files of a batch by
# the table's log, by the offsets of Delta's own source. `"direct"` is then their reading, too; else it has the reason for
# which Delta's source reads a table, such as a type that was widened, or `spark.cojoin.delta=spark`.
#
# The picture shows a warm batch of 1 million trades and 200,000 versions on two cores, from files into Delta (`python
# -m benchmarks.join.waterfall`). Below it is what plain Spark takes to read, shuffle by key and write the same rows, as
# any join must whose rows pass through Spark.

# %%
STEPS = {
    "map: read, pack, shuffle": (0.5, "#1b6ca8"),
    "reduce: state, join, files": (0.5, "#5aa1d6"),
    "Delta's commit": (0.1, "#e0a458"),
    "Spark's planning and logs": (0.2, "#7b8794"),
    "the rest of the driver": (0.2, "#9aa5b1"),
}
figure, axes = plt.subplots(figsize=(9, 2.7), layout="constrained")
begin = 0.0
for step, (seconds, colour) in STEPS.items():
    axes.barh("asof_join", seconds, 0.55, left=begin, color=colour, label=step)
    axes.text(begin + seconds / 2, 0, seconds, ha="center", va="center", fontsize=8, color="white")
    begin += seconds
axes.barh("plain Spark, no join", 2.5, 0.55, color="#eef1f4", edgecolor="#9aa5b1")
for row, seconds in enumerate((begin, 2.5)):
    axes.text(seconds + 0.03, row, f"{seconds:.1f} s", va="center", fontsize=9)
axes.invert_yaxis()
axes.set_xlim(0, 2.9)
axes.set_xlabel("seconds")
axes.set_title("A warm batch of 1.2 million rows into Delta, 2 cores", loc="left", fontsize=10)
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# Of your own query, `durations_ms` in the table `progress` tells the same in fewer parts (guide
# [06](06_operations.ipynb)). The first two batches of a process are cold: Java compiles, workers import. They take much
# longer.
#
# ## Why one call of `applyInPandasWithState`, when vendors recommend `transformWithState`?
#
# With `transformWithState` in Python every read or write of a state, and every timer, is a round trip over a socket to
# the JVM. An as-of join touches its state once or more a row, so that cost is paid row by row. And with one group for
# each customer, each call of a group costs 1.5 to 4 milliseconds of a core, whatever it holds: 5,000 groups of one row
# took 8 to 22 seconds a batch, the same rows in 16 groups half a second.
#
# cojoin hashes the keys into a few dozen **key groups**, and keeps each group's buffers, timers and watermarks as one
# binary value. So a batch has one call, one read and one write of state for each group, however many keys and rows the
# group has. Rows cross every boundary as packed Arrow, a few large pieces instead of many rows, and a join works on
# whole columns, without Python for each row. What that leaves is a price for each call (hence few groups) and for each
# megabyte of a state value: some 10 milliseconds a batch, so what is large and rarely changes is kept outside, in
# [segments](#What-does-a-large-state-cost?).
#
# Spark's own watermark is not used. It is one number for all inputs, forgets its parts at a restart, knows neither
# partitions nor a quiet input, and drops late rows before a function sees them.
#
# ## How does it compare?
#
# `python -m benchmarks.join` runs one join by every engine: each trade of 5 million with the newest of 1 million
# versions of 10,000 customers, on two cores. Each runs in a process of its own, in turns, and its result is compared
# with pandas' `merge_asof` row for row. The **floor** is plain Spark that reads, shuffles by key and writes the same
# rows into the same kind of sink. Memory is the process tree's (PSS), at its peak.

# %%
FIGURES = pd.DataFrame(
    [
        ("plain Spark, no join", "Delta", 5_000_000, 217_000, 423_000, 1.00, 39, 1.5),
        ("plain Spark, no join", "parquet", 5_000_000, 382_000, 754_000, 1.00, 21, 1.3),
        ("cojoin: asof_join", "Delta", 5_000_000, 328_000, 639_000, 0.64, 26, 2.0),
        ("cojoin: asof_join", "parquet", 5_000_000, 350_000, 706_000, 1.09, 24, 1.5),
        ("cojoin: asof_join, forward *", "Delta", 5_000_000, 300_000, 516_000, 0.78, 28, 1.7),
        ("cojoin: asof_join, nearest *", "Delta", 5_000_000, 305_000, 562_000, 0.75, 28, 1.7),
        ("cojoin: interval_join *", "Delta", 5_000_000, 281_000, 502_000, 0.83, 31, 1.8),
        ("cojoin: a function with a value state *", "Delta", 5_000_000, 184_000, 266_000, 1.20, 49, 2.0),
        ("cojoin: a function with a value state", "parquet", 5_000_000, 224_000, 335_000, 1.74, 40, 1.9),
        ("cojoin: a function with timers *", "Delta", 5_000_000, 133_000, 185_000, 1.62, 68, 2.0),
        ("Flink in Java: KeyedCoProcessFunction", "parquet", 5_000_000, 205_000, None, 1.78, 46, 2.5),
        ("Flink SQL: temporal join *", "parquet", 5_000_000, 162_000, None, 2.13, 58, 1.9),
        ("bytewax, 2 processes *", "parquet", 5_000_000, 119_000, None, 3.84, 73, 0.4),
        ("PyFlink, thread mode *", "parquet", 500_000, 4_000, None, None, None, 0.9),
        ("transformWithState in Python *", "Delta", 200_000, 3_100, None, None, None, 1.8),
        ("applyInPandasWithState by customer *", "Delta", 40_000, 480, None, None, None, 1.6),
        ("PyFlink, process mode *", "parquet", 40_000, 290, None, None, None, 1.1),
        ("pandas, all in memory *", "parquet", 5_000_000, 1_300_000, None, 0.36, 5, 1.0),
        ("DuckDB, all in memory *", "parquet", 5_000_000, 3_000_000, None, 0.15, 3, 0.7),
        ("Polars, all in memory *", "parquet", 5_000_000, 3_700_000, None, 0.12, 2, 0.9),
    ],
    columns=["engine", "sink", "trades", "trades a second", "warm", "times the floor", "CPU s", "peak GB"],
)
spelled = FIGURES.copy()
for column in ("trades", "trades a second", "warm", "CPU s"):
    spelled[column] = FIGURES[column].map("{:,.0f}".format, na_action="ignore")
spelled.fillna("")

# %%
COLOURS = {"cojoin": "#1b6ca8", "plain": "#9aa5b1", "in memory": "#7a9e7e", "other": "#e0a458"}
shown = FIGURES.sort_values("trades a second")
kinds = [next((kind for kind in COLOURS if kind in engine), "other") for engine in shown["engine"]]
figure, axes = plt.subplots(figsize=(9, 5.2), layout="constrained")
axes.barh(
    shown["engine"] + ", " + shown["sink"],
    shown["trades a second"] - 100,
    0.72,
    left=100,
    color=[COLOURS[kind] for kind in kinds],
)
for row, rate in enumerate(shown["trades a second"]):
    axes.text(rate * 1.1, row, f"{rate:,}", va="center", fontsize=8)
axes.set_xscale("log")
axes.set_xlim(100, 2e7)
axes.set_xlabel("trades a second on 2 cores, the query's start included (logarithmic)")
axes.set_title("One as-of join by every engine", loc="left", fontsize=10)
axes.tick_params(axis="y", labelsize=8)
axes.spines[["top", "right"]].set_visible(False)
handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
labels = ["cojoin", "plain Spark, no join", "all rows in memory, no stream", "other engines"]
axes.legend(handles, labels, frameon=False, fontsize=9, loc="lower right")
plt.show()

# %% [markdown]
# Read it with care:
#
# * The machine was shared, so compare by *times the floor*: it is the median over the rounds, each to the floor of the
#   same round, and so not the quotient of two figures of the table. Rows with * are of another day.
# * "Warm" counts whole batches after the first two. Engines below 20,000 trades a second ran on fewer trades.
# * Flink takes no checkpoints here, and its cluster is up before the clock starts; bytewax has no watermark across keys
#   and keeps nothing to recover from. cojoin and plain Spark write their checkpoints.
# * The workers write an output's parquet files themselves and Delta only commits them, where the table is plain (no
#   partitions, constraints, column mapping) and on a file system that all reach by a path. Else Spark writes the rows,
#   as it does with `spark.cojoin.output=spark` in the session, and where Hadoop's settings have files encrypted. Its
#   writer takes two to three times as long.
# * The workers' files store integers and times as differences (`DELTA_BINARY_PACKED`), which takes less time and space.
#   Tests of the project read the same rows with Spark, pyarrow and DuckDB. By hand, Polars and delta-rs read them, too
#   (2026-11), and fastparquet (2026.9) read wrong numbers without an error: for its sake, let Spark write.
# * Of a run of 5 million trades into parquet, half is start: the classes of Java that only a streaming query loads, the
#   first two batches, the end. At 20 million, `asof_join` takes 0.42 to 0.75 of the floor's time into Delta, and does
#   2.5 times as many trades a second as Flink in Java.
# * Where Spark reads the files (`spark.cojoin.parquet=spark`), `asof_join` into Delta takes 0.15 of the floor's time
#   more.
# * A `static` join of 20 million rows of files takes 0.88 to 1.04 of what Spark takes to shuffle, sort and copy them,
#   and 3.0 GB, where Spark's copy takes 2.5: a key group's rows are in a worker's memory at once, where Spark's sort
#   spills.
# * Without Spark, rows go through a function that sets a timer for each and updates a state at 145,000 to 196,000 a
#   second and core (`python -m benchmarks.join.row_path`).
#
# ## What does it do on this machine?
#
# A small join, of 60,000 trades with 12,000 versions, beside the floor, three times in turns. The first round is cold,
# and plain Spark, which comes first, warms the JVM for the join. With so few rows a batch's fixed cost is most of the
# time, and the join has one batch more, the drain; so the ratio is worse than with millions of rows. **The numbers vary
# from machine to machine and from run to run**: these are of two cores that were busy with other work, so trust only
# their order of magnitude.

# %%
spark = cj.spark_session(
    "07_speed",
    master="local[2]",
    conf={
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # see "How do I start faster?"
    },
)
random = np.random.default_rng(7)
COUNTS, KEYS = {"trades": 60_000, "customers": 12_000}, 2_000
SCHEMAS = {
    "trades": "trade_id long, customer long, event_time timestamp, amount double",
    "customers": "customer_id long, customer long, event_time timestamp, tier string",
}
for name, count in COUNTS.items():
    times = pd.Timestamp("2026-01-15", tz="UTC") + pd.to_timedelta(np.sort(random.integers(0, 86_400_000, count)), "ms")
    rows = pd.DataFrame(
        {
            f"{name[:-1]}_id": np.arange(count),
            "customer": random.integers(0, KEYS, count),
            "event_time": times,
            **({"amount": random.random(count)} if name == "trades" else {"tier": random.choice(["a", "b"], count)}),
        }
    )
    Path(name).mkdir()
    for part in range(2):
        rows.iloc[part::2].to_parquet(f"{name}/{part}.parquet", coerce_timestamps="us")


def plain(run):
    """Read both inputs, shuffle by key, write all rows."""
    trades, customers = (spark.readStream.schema(SCHEMAS[name]).parquet(name) for name in COUNTS)
    both = trades.unionByName(customers, allowMissingColumns=True).repartition("customer")
    writer = both.writeStream.format("delta").option("checkpointLocation", str(Path("plain_checkpoint", run).resolve()))
    writer.trigger(availableNow=True).start(f"plain/{run}").awaitTermination()


def asof(run):
    """Join, and drain so that every trade comes out."""
    inputs = [
        cj.Input(cj.sources.files(name, "parquet", schema=schema), key="customer", event_time="event_time", name=name)
        for name, schema in SCHEMAS.items()
    ]
    joined = cj.connect(*inputs, key_groups=4).asof_join()
    trigger = cj.Trigger.available_now(drain=True)
    query = joined.start(output=cj.sinks.delta(f"asof/{run}"), checkpoint=f"asof_checkpoint/{run}", trigger=trigger)
    query.await_termination(progress=False)
    assert query.progress.rows_out == COUNTS["trades"]


measured = []
for run in ("first, cold", "second", "third"):
    seconds = []
    for way in (plain, asof):
        begin = time.perf_counter()
        way(run)
        seconds.append(time.perf_counter() - begin)
    rates = [f"{sum(COUNTS.values()) / each:,.0f}" for each in seconds]
    measured.append((run, *rates, f"{seconds[1] / seconds[0]:.1f}"))
pd.DataFrame(measured, columns=["round", "plain Spark, rows a second", "asof_join, rows a second", "times the floor"])

# %% [markdown]
# Most of the join's seconds here are its start and its two batches, whatever these hold. `python -m benchmarks.guards`
# does the same with 200,000 trades, on a warm JVM: through files into Delta and parquet, read by the workers or by Spark,
# by a ready join or a function, and through Kafka. It fails where one takes half as long again, beside plain Spark, as
# when its bound was set.
#
# ## What does a job cost?
#
# `python -m benchmarks.growth` runs warm batches of 200,000 trades into Delta on two cores and varies one thing at a
# time. The lines that it fits:
#
# | a batch takes | for |
# |---|---|
# | 0.66 s | itself: planning, logs, commits, two stages |
# | + 0.63 s | a million trades, with a fifth as many versions |
# | + 0.35 s | a million trades and column beyond five (a little more beyond 35 columns) |
# | + 2.9 ms | a key group |
# | + 49 ms | a million keys in the state |
# | nothing more | one key that has 90 % of the rows |
#
# Since these lines were fitted, a batch's own cost has become less: one of a few rows takes 0.45 s, where plain Spark's
# copy takes 0.83, and an empty one 0.32 s (`python -m benchmarks.batch`). So the formula gives some 0.2 s too much.
#
# The formula was off by 6 % in the middle, and by 19 % at most. The hundredth batch takes what the fifth takes. So two
# things decide: how many rows share a batch's fixed cost, and how many key groups each batch calls. The picture draws
# the formula.


# %%
def batch_seconds(trades, key_groups=32, columns=5, keys=10_000):
    """Return the seconds of a warm batch on two cores, as they were measured."""
    millions = trades / 1e6
    return 0.66 + 0.63 * millions + 0.35 * millions * max(0, columns - 5) + 0.0029 * key_groups + 0.049 * keys / 1e6


sizes = np.geomspace(1_000, 4_000_000, 100)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for key_groups, colour in ((8, "#1b6ca8"), (256, "#e0a458"), (1_024, "#c8553d")):
    seconds = batch_seconds(sizes, key_groups)
    left.plot(sizes, seconds, color=colour, label=f"{key_groups:,} key groups")
    right.plot(sizes, sizes / seconds / 1_000, color=colour)
left.set_ylabel("seconds a batch")
left.set_ylim(0)
right.set_ylabel("thousand trades a second")
for axes in (left, right):
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("trades in a batch (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
left.legend(frameon=False, fontsize=9)
left.set_title("Large batches share the fixed cost; key groups add to it", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# ## How large will my job be?
#
# The calculator takes what you know of the rows and gives what to set. It goes by the formula above, and by 10 ms a
# batch for a megabyte of rows that wait in the state values: beyond 8 MB a key group they lie in files, and cost nothing
# until they are due. A batch may take 80 % of the time between two triggers. All was measured on two cores: that more
# cores divide everything but the 0.66 seconds is an assumption.
# `held` is how long rows wait: the out-of-orderness bound plus the usual lag between the inputs.


# %%
def size_job(trades_per_second, versions_per_second, keys, *, row_bytes=100, held="1 minute", columns=5, cores=2):
    """Propose settings for an as-of join, and say what they lead to."""
    rows_per_second = trades_per_second + versions_per_second
    waiting = rows_per_second * pd.Timedelta(held).total_seconds()
    waiting_mb, versions_mb = waiting * row_bytes / 1e6, keys * row_bytes / 1e6
    key_groups, share = 4 * cores, 2 / cores
    fixed = 0.66 + share * (0.0029 * key_groups + 0.049 * keys / 1e6 + 0.010 * min(waiting_mb, 8 * key_groups))
    a_second = share * rows_per_second / 1.2e6 * (0.63 + 0.35 * max(0, columns - 5))
    shortest = fixed / (0.8 - a_second) if a_second < 0.8 else np.inf
    return {
        "key groups": key_groups,
        "rows that wait": f"{waiting:,.0f}",
        "MB of them": f"{waiting_mb:,.0f}",
        "MB of versions": f"{versions_mb:,.0f}",
        "work for a second's rows, s": f"{a_second:.2f}",
        "shortest trigger, s": f"{shortest:.1f}",
    }


pd.DataFrame(
    {
        "2,000 trades/s, 10,000 customers": size_job(2_000, 200, 10_000),
        "50,000 trades/s, 1 million customers": size_job(50_000, 2_000, 1_000_000),
        "the same, held 10 minutes": size_job(50_000, 2_000, 1_000_000, held="10 minutes"),
        "200,000 trades/s, 8 cores": size_job(200_000, 10_000, 5_000_000, cores=8),
        "2 million trades/s, 2 cores": size_job(2_000_000, 10_000, 10_000),
    }
).T

# %% [markdown]
# "inf" means that two cores can't keep up, whatever the trigger. Rows that wait for long are what makes a job large:
# bring the inputs closer together (for history, `cj.kafka.source` does it), or make the bound smaller.
#
# ## How do I choose the settings?
#
# **`key_groups`**, of `connect`, is the unit of parallel work and of state. A few for each core are right, and a
# multiple of `spark.sql.shuffle.partitions`, so that all tasks have as many. The default is 32. More are needed only
# where timers are more than some 10 MB a group: they lie in the state value, which is read and written whole in each
# batch. Results don't depend on the number. It can't change on a checkpoint in use, only by a
# restore (guide [03](03_checkpoints.ipynb)). `connect` warns where empty calls alone would take five seconds a batch.
#
# **`spark.sql.shuffle.partitions`** is the number of tasks of the reduce stage. `cj.spark_session()` sets it to the
# number of cores. Spark fixes it with the first batch of a checkpoint.
#
# **The trigger.** `processing_time("0 seconds")` begins a batch as soon as there are rows: least latency, most cost,
# since each batch costs its 0.66 seconds. A longer interval makes larger batches. `available_now()` takes what is there
# and ends, for scheduled runs.
#
# **How much a batch takes**: `max_records` of `cj.kafka.source` (500,000 for each input), `maxFilesPerTrigger` and
# `maxBytesPerTrigger` in the `options` of `cj.sources.delta` and `cj.sources.files`. A bounded run over much history
# needs a limit, since a batch's rows must fit into memory: without one, all files are taken at once (1,000 of a Delta
# table). By the formula a batch of a million trades does 720,000 a second and one of four million 1,220,000; larger
# batches take more memory, and come later.
#
# **Memory.** Spark's heap is `spark.driver.memory` in local mode (`conf={"spark.driver.memory": "4g"}` of
# `cj.spark_session`, before Spark starts); on a cluster the executors' settings. The Python workers' memory comes on
# top: one worker for each core and stage, each with its part of a batch in Arrow. With a heap of 2 GB, batches of 1.2
# million rows of 5 columns took 1.6 to 3.0 GB in all, the function 1.9 to 2.2 GB. A micro-batch of large Kafka records
# has all their bytes: 10,000 records of 1 MB are 10 GB.
#
# **Few columns.** Each column costs on the way to Python and back. Select what you need before the join.
#
# **A ready join before a function.** `asof_join`, `temporal_join` and `interval_join` work on whole columns; a function
# runs Python for each row.
#
# ## What does a large state cost?
#
# A key group's state value is written whole in each batch. So what is large and rarely changes lies beside it: the
# versions of an as-of or temporal join, the rows of an interval join and the states of a function, as soon as they are
# more than half a megabyte a table and key group. They go into **segments**, immutable Arrow files in the checkpoint, sorted by the key's hash, of
# which a batch reads the rows of its own keys; small segments are merged into larger ones, as in an LSM tree. A batch
# then costs by the keys that it touches:
#
# | 1 % of the keys touched, 32 key groups (`python -m benchmarks.state.sizes`) | a batch takes |
# |---|---|
# | 10 MB of state | 1.33 s |
# | 1,120 MB of state | 1.85 s |
#
# Rows that wait for the watermark lie in such files from 8 MB on, for each input and key group, sorted by event time: a
# batch reads those that are due, in slices, and leaves the others alone. Rows of a table's changes are the exception.
#
# **Memory.** A task reads from these files, and merges them, within a budget of 1 GB, so that a key group's state may be
# larger than the memory: `spark.cojoin.memory` in the session (`128m`), by default half of what
# `spark.executor.pyspark.memory` leaves to each core. The batch's own rows come on top, and the waiting rows of a
# function at its drain. One key's rows are read at once, and need 5 to 14 times their bytes with all copies: where a key
# has more than a sixteenth of the budget, `query.progress.large_key` names it, and the first one of a run is logged. A
# snapshot names the files and copies none of their rows, and a restore reads a state in ranges of keys, which wait in
# plain files on the task's local disk (`spark.io.encryption.enabled` does not cover them).
#
# | an as-of join, one key group (`python -m benchmarks.state.memory`) | peak above an idle worker |
# |---|---|
# | a budget of 134 MB, 1.3 GB of state; with a restore of it | 126 MB; 149 MB |
# | a budget of 1.07 GB (the default), 10.7 GB of state | 830 MB |
#
# Not in files are the rows of an outer `interval_join` that have no match yet, left rows of a forward or nearest as-of
# join, and timers: some 10 MB of these a key group are sensible. Segments need a file system that tasks reach
# without the JVM (local and shared paths, object stores, HDFS); where they do not, all state stays in Spark's store.
#
# Slower by nature: `asof_join` forward and nearest, which merge new rows into all the waiting rows that they keep, in
# each batch that has due rows.
#
# ## How long does a live row take?
#
# At 2,000 rows a second in both of two Kafka topics, a trade is in the Delta table 0.9 seconds (median; 99th percentile
# 1.4 s) after the watermarks have passed it, 0.6 and 0.5 of what plain Spark's stateless copy takes beside it (`python -m
# benchmarks.replay.latency`). Before that it waits for the watermarks: the out-of-orderness bound and the lag of the
# slower input. So a row's whole delay is *bound + lag + half
# a trigger + a batch*. To make it shorter: a smaller bound (more rows will be late), `with_idleness`, a trigger of 0
# seconds, few key groups, few columns.
#
# ## How fast is a replay of Kafka topics?
#
# Two million trades and 200,000 versions of three weeks take about as long as plain Spark takes to read, decode and write
# the same records without a join: some 31 seconds on 2 cores, into Delta. Guide [04](04_replay_kafka.ipynb) has the
# table, also with Spark's own Kafka source, and the memory (`python -m benchmarks.replay` repeats it).
#
# ## How do I start faster?
#
# * The first start fetches Delta's packages once; later ones find them in `~/.cache/cojoin/jars` (or the folder that
#   `COJOIN_JARS` names) and need no network. Copy that folder into an image.
# * `connect` starts the Python workers, with their imports, while the driver plans the first batch.
# * A process that only joins starts faster with `conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}`: 5
#   million trades took an earlier version 18 s instead of 21. Java then compiles quickly and less well; other work in
#   the process would miss it.
# * The first two batches of a process are slow whatever you do. Several queries in one session share a warm JVM, and a
#   live query is warm always.
#
# ## How do I measure it myself?
#
# In a clone of the repository. The programs compare their results with an oracle; `--help` has the options, and most
# have a `--smoke` or `--quick` for a look.
#
# | program | measures |
# |---|---|
# | `python -m benchmarks.join` | the table of engines; `--install all` first, `--only asof plain` picks some |
# | `python -m benchmarks.join.waterfall` | where each batch's time goes, with `--picture` |
# | `python -m benchmarks.frames` | the one-line join of frames in memory, beside pandas and Polars |
# | `python -m benchmarks.join.row_path` | rows through a function, without Spark |
# | `python -m benchmarks.batch` | what a batch costs that holds little or nothing, and an idle query |
# | `python -m benchmarks.executors` | what a batch costs at 1, 2 and 4 executors, and the driver's part of it |
# | `python -m benchmarks.guards` | each way beside plain Spark, small, and a bound for each |
# | `python -m benchmarks.growth` | how a batch's time grows with rows, keys, key groups, columns, skew, batches |
# | `python -m benchmarks.state.sizes` | a batch beside states of 10 MB to 1 GB |
# | `python -m benchmarks.state.memory` | the memory of a worker whose state is ten times its budget |
# | `python -m benchmarks.stores` | the same join and plain Spark's copy on local files and on S3's protocol |
# | `python -m benchmarks.state.checkpoint_cost` | snapshots, manifests, and a silent query |
# | `python -m benchmarks.replay` | weeks of two topics; `--kills 10` kills the replay and starts it again |
# | `python -m benchmarks.replay.live` | a replay that goes on live, with a broker that goes away |
# | `python -m benchmarks.replay.latency` | a live row's latency |

# %%
spark.stop()

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
# # The as-of join, step by step
#
# Each **trade** gets the **customer** record that was in force when the trade happened. This guide shows it first on
# two small tables, then on streams whose rows arrive out of order, late or broken. Then it lists what an input may
# declare, and where rows can come from and go to.
#
# It needs Java 17 and `pip install "cojoin[spark]" "pyspark<4.3" matplotlib`. PySpark has some 450 MB. The first start
# fetches Delta's packages.

# %%
import tempfile
from pathlib import Path

import pandas as pd
from pyspark.sql import functions as F

import cojoin as cj

pd.set_option("display.max_colwidth", None)
spark = cj.spark_session(  # or a session of your own that has Delta
    "01_asof_join",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)

# %% [markdown]
# ## Two small tables


# %%
def at(clock):
    return pd.Timestamp(f"2026-01-15 {clock}", tz="UTC")


trades_pdf = pd.DataFrame(
    [
        (1, "ann", at("09:05"), 120.0),
        (2, "ann", at("09:20"), 80.0),
        (3, "ann", at("09:30"), 310.0),
        (4, "ann", at("10:40"), 45.0),
        (5, "bob", at("09:10"), 60.0),
        (6, "bob", at("09:50"), 75.0),
    ],
    columns=["trade_id", "customer", "event_time", "amount"],
)
customers_pdf = pd.DataFrame(
    [
        ("ann", at("09:00"), "bronze"),
        ("ann", at("09:30"), "silver"),
        ("ann", at("09:55"), "gold"),
        ("bob", at("09:25"), "bronze"),
        ("bob", at("10:15"), "silver"),
    ],
    columns=["customer", "event_time", "tier"],
)
customers_pdf

# %% [markdown]
# ## How do I join them?
#
# An `Input` names the key and the event time of a DataFrame. `connect` checks that two inputs fit together, and
# `asof_join` joins them. Static inputs give a static DataFrame; streaming inputs will give a streaming one.

# %%
trades_df, customers_df = spark.createDataFrame(trades_pdf), spark.createDataFrame(customers_pdf)
columns = {"key": "customer", "event_time": "event_time"}
trades = cj.Input(trades_df, **columns, name="trades")
customers = cj.Input(customers_df, **columns, name="customers")
pair = cj.connect(trades, customers, key_groups=2)  # units of parallel work and of state; the default is 32
enriched_pdf = pair.asof_join().to_dataframe().orderBy("trade_id").toPandas()
enriched_pdf

# %% [markdown]
# * Trade 3 happened at the same instant as Ann's change to silver. **A record of the same instant is in force.**
# * Trade 5 came before Bob's first record, so a left join gives nulls.
#
# The same join over the pandas DataFrames runs in this process without Spark, and can be drawn: bars are records in
# force, dots are trades, each with a line to the record that it found, and the cross found none.

# %%
in_memory = cj.connect(
    cj.Input(trades_pdf, **columns, name="trades"), cj.Input(customers_pdf, **columns, name="customers")
)
assert in_memory.asof_join().to_pandas().sort_values("trade_id")["tier"].tolist() == enriched_pdf["tier"].tolist()
axes = cj.plots.plot_timeline(in_memory.asof_join(), keys=["ann", "bob"])

# %% [markdown]
# ## Which columns does the result have?
#
# The left's columns, then the right's without its key. If the left has a column of the same name as the right's event
# time, that one is called `customers_event_time`, after the input. The right's columns are nullable. Any other equal
# names need `suffixes`:

# %%
alike = cj.connect(
    cj.Input(trades_df.withColumn("channel", F.lit("web")), **columns, name="trades"),
    cj.Input(customers_df.withColumn("channel", F.lit("branch")), **columns, name="customers"),
)
try:
    alike.asof_join()
except cj.SchemaError as error:
    print(error)
print(alike.asof_join(suffixes=("", "_customer")).to_dataframe().columns)

# %% [markdown]
# ## Which record does a trade find?
#
# | option | values; the first is the default |
# |---|---|
# | `direction` | `"backward"`: the last that is not later; `"forward"`: the first that is not earlier; `"nearest"` |
# | `tolerance` | how far away in event time a record may be, inclusive: `None` for any distance, or `"30 minutes"` |
# | `allow_exact_matches` | `True`, or `False`: a record of the same microsecond does not match |
# | `how` | `"left"`, or `"inner"`: trades without a match are left out |

# %%
options = {
    "backward": {},
    "tolerance 30 min": {"tolerance": "30 minutes"},
    "no exact matches": {"allow_exact_matches": False},
    "forward": {"direction": "forward"},
    "nearest": {"direction": "nearest"},
}
found = {name: pair.asof_join(**each).to_dataframe().toPandas() for name, each in options.items()}
pd.DataFrame({name: each.set_index("trade_id")["tier"] for name, each in found.items()}).sort_index()

# %% [markdown]
# Ann's gold of 09:55 is 45 minutes old at trade 4, which is too old for the tolerance. At 09:50 Bob's two records are
# equally near to trade 6: the earlier one matches. A tolerance also bounds how long records are kept in the state.

# %% [markdown]
# ## Which other joins are there?
#
# In a **temporal join** records can be deleted, as in Flink's `FOR SYSTEM_TIME AS OF`. Here Bob's is deleted at 09:40,
# so trade 6 finds none. An **interval join** finds every record within an interval around the trade, here from 0 to 30
# minutes after it. [05_semantics.ipynb](05_semantics.ipynb) has the rules of all joins: when each row comes out, what
# is late, how ties fall, and what the state keeps. [02_functions.ipynb](02_functions.ipynb) has what no join does.

# %%
deletion = pd.DataFrame([("bob", at("09:40"), None, True)], columns=[*customers_pdf.columns, "deleted"])
deletable_df = spark.createDataFrame(pd.concat([customers_pdf.assign(deleted=False), deletion]))
with_deletes = cj.connect(trades, cj.Input(deletable_df, **columns, name="customers"), key_groups=2)
temporal_pdf = with_deletes.temporal_join(deletes="deleted").to_dataframe().toPandas()
interval_pdf = pair.interval_join("0 minutes", "30 minutes").to_dataframe().toPandas()
assert temporal_pdf.set_index("trade_id")["tier"].isna()[6]
interval_pdf.sort_values(["trade_id", "customers_event_time"])

# %% [markdown]
# ## What may an input declare?
#
# | `cj.Input(...)` | |
# |---|---|
# | `source` | a DataFrame, static or streaming, or one of the sources below; both inputs must be of one kind |
# | `key` | one or more columns; the types of both inputs must be the same, the names may differ |
# | `event_time` | a `timestamp` column, or an expression such as `F.timestamp_millis("ms").alias("traded_at")` |
# | `name` | its name in messages, progress and columns |
# | `watermark` | by how much rows may be out of order (next section); by default not at all |
# | `partition` | the columns with a row's source partition; each partition has its own watermark |
# | `sequence` | the columns with the order of rows in a partition, such as `"offset"`; they break ties of event time |
# | `max_ahead` | in streams, a row further ahead of the clock is rejected; `"1 day"` by default, `None` for no limit |
# | `late` | `"reject"` or `"apply"`; by default a late trade is rejected, a late record counts for the trades to come |
#
# Keys are compared exactly, so a float can't be one. The message lists the types that can:

# %%
try:
    cj.connect(cj.Input(trades_df, key="amount", event_time="event_time", name="trades"), customers)
except cj.SchemaError as error:
    print(error)

# %% [markdown]
# ## The same join over streams
#
# Now rows arrive in files. A **watermark** says how far the event time of an input has come: here it is the largest
# event time seen, less the minute by which rows may be out of order. The watermark of the join is the smaller one of
# both. A trade comes out when the watermark reaches it, since no earlier record can come any more.
#
# Each call of `run` takes what is there and pauses. What waits stays in the checkpoint, and the next run goes on.

# %%
lake = Path(tempfile.mkdtemp())
late_by = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 minute")
inputs = []
for name, schema in (
    ("trades", "trade_id long, customer string, event_time timestamp, amount double"),
    ("customers", "customer string, event_time timestamp, tier string"),
):
    (lake / name).mkdir()
    source = cj.sources.files(lake / name, "parquet", schema=schema)
    inputs.append(cj.Input(source, **columns, name=name, watermark=late_by))
joined = cj.connect(*inputs, key_groups=2).asof_join()
reports = []


def arrive(name, frame):
    """Write a file, as another system would."""
    frame.to_parquet(lake / name / f"{len(list((lake / name).glob('*.parquet')))}.parquet", coerce_timestamps="us")


def run(drain=False):
    query = joined.start(
        output=cj.sinks.delta(lake / "enriched"),
        checkpoint=lake / "checkpoint",
        trigger=cj.Trigger.available_now(drain=drain),
    )
    query.await_termination(progress=False)  # by default a notebook and a terminal show a line of progress
    print(query.progress.ending())
    reports.append(query.progress)


def read(path):
    return spark.read.format("delta").load(str(lake / path))


# %% [markdown]
# **First run.** There are trades until 09:50, but the customers' file ends at 09:25. So it is not known yet which
# record a trade of 09:50 will find. The trades after 09:24 wait, and the message names the input that holds time back.

# %%
arrive("trades", trades_pdf.iloc[[1, 0, 4, 2, 5]])  # out of order
arrive("customers", customers_pdf.iloc[[0, 3]])
run()
read("enriched").orderBy("trade_id").toPandas()

# %% [markdown]
# **Second run.** The customers catch up, and trade 3 comes out. Trade 6 of 09:50 now waits for its own input: an
# earlier trade could still come, within the minute of disorder.

# %%
arrive("customers", customers_pdf.iloc[[1, 4, 2]])
run()

# %% [markdown]
# **Third run**, with broken rows: a trade without a customer, one without a time, and one of 09:15, which is more than
# a minute late. Each row of an input is done, buffered or rejected; nothing vanishes.

# %%
broken = pd.DataFrame(
    [(7, None, at("10:30"), 5.0), (8, "ann", pd.NaT, 6.0), (9, "ann", at("09:15"), 7.0)], columns=trades_pdf.columns
).astype({"event_time": trades_pdf["event_time"].dtype})
arrive("trades", pd.concat([trades_pdf.iloc[[3]], broken]))
run()
assert reports[-1].is_conserved
print(reports[-1].table())

# %% [markdown]
# **The end.** Trade 4 of 10:40 still waits for the customers' watermark. If no more rows will come, `drain=True` ends
# both inputs: everything comes out, and the query is over. The result is that of the static join, and of pandas.

# %%
run(drain=True)
result = read("enriched").orderBy("trade_id").toPandas()
pandas_says = pd.merge_asof(
    trades_pdf.sort_values("event_time"), customers_pdf.sort_values("event_time"), on="event_time", by="customer"
).sort_values("trade_id")
assert result.equals(enriched_pdf)
assert result["tier"].fillna("none").tolist() == pandas_says["tier"].fillna("none").tolist()

# %%
axes = cj.plots.plot_watermarks(reports, over="batches")
axes.set_xlabel("run")

# %% [markdown]
# ## What was rejected, and why?
#
# Rejected rows go to a Delta table in the checkpoint directory, unless `start(rejected=...)` names a sink. (So do the
# side outputs of functions.) `watermark` is that of the join before the micro-batch, in epoch milliseconds. `row` is
# the whole row as JSON.

# %%
read("checkpoint/rejected").orderBy("reason").toPandas()

# %% [markdown]
# | reason | |
# |---|---|
# | `null_key`, `null_event_time` | the key, or a part of it, or the event time is null |
# | `late` | the row's time was at or below the watermark of the join before its micro-batch |
# | `too_far_ahead` | the row's time is further ahead of the clock than the input's `max_ahead` |
# | `undecodable`, `tombstone`, `gone` | from Kafka: [04_replay_kafka.ipynb](04_replay_kafka.ipynb) |
#
# ## How do I get the result?
#
# | way | what it gives |
# |---|---|
# | `to_dataframe()` | a plain DataFrame, static or streaming as the inputs are, for any sink and trigger of Spark's |
# | `to_dataframe("rejected")`, `to_dataframe(tag)` | the rejected rows, or a side output of a function, likewise |
# | `start(output=, rejected=, side_outputs=, checkpoint=, trigger=)` | a query that writes all outputs of one run |
#
# Only `start` has progress, drains and snapshots. Each DataFrame runs the join by itself, and what waits when its
# stream stops stays in Spark's state. `start` needs streams. Its triggers are:
#
# | trigger | |
# |---|---|
# | `cj.Trigger.available_now()` | takes what is there, and pauses; the next run goes on |
# | `cj.Trigger.available_now(drain=True)` | then ends both inputs: all rows come out, and the query is over |
# | `cj.Trigger.processing_time("10 seconds")` | runs until it is stopped, with a micro-batch each interval |
#
# ## Where can rows come from?
#
# | source | |
# |---|---|
# | `cj.sources.delta(path_or_table)` | a Delta table that is appended to: what it holds at the start, then its commits |
# | `cj.sources.delta(path_or_table, changes=True)` | one with updates, deletes and MERGEs: its rows, then each change |
# | `cj.sources.delta(path_or_table, static=True)` | one version of a table, beside a stream; both are in [09](09_tables.ipynb) |
# | `cj.sources.files(path, format, schema=)` | a folder of files, in the order of their modification times |
# | `cj.kafka.source(servers, topic, schema=)` | topics, by event time: [04_replay_kafka.ipynb](04_replay_kafka.ipynb) |
# | a streaming DataFrame | any of Spark's; a new query can't go on from its position, see [03](03_checkpoints.ipynb) |
#
# Delta and files take Spark's `options=`, such as `maxFilesPerTrigger`, which splits what is there into several
# micro-batches. Files must then be in the order of event time as well, within the bound of the watermark, or rows are
# late. The files of a Delta table need not: `start` holds its watermark back while a file with earlier rows is unread.
#
# ## Where can rows go to?
#
# | sink | |
# |---|---|
# | `cj.sinks.delta(path_or_table)` | exactly once, with `partition_by=` and Delta's writer `options=` |
# | `cj.sinks.kafka(servers, topic, key=...)` | records of a topic, exactly once for consumers of committed records ([04_replay_kafka.ipynb](04_replay_kafka.ipynb)) |
# | `cj.sinks.delta(path_or_table, upsert=["trade_id"])` | one row for each key, the last, exactly once |
# | `cj.sinks.sql(url, table, upsert=["trade_id"])` | the same in PostgreSQL, or in a file of SQLite: rows and the query's own row are one transaction |
# | `cj.sinks.parquet(folder)` | a folder for each micro-batch, which is replaced if the micro-batch is run again |
# | a callable `(DataFrame, batch_id)` | whatever it does; it may get a micro-batch twice, with the same id |
#
# Each Delta commit carries its micro-batch, and digests of the source offsets and of the rows. If a crash makes Spark
# run a micro-batch again that the table has already, it is passed over if it is the same, and refused otherwise. New
# plain tables get `delta.checkpointInterval` 100, unless the session has a default: with Delta's 10, every tenth
# micro-batch takes seconds more. A micro-batch that lets no row out makes no commit.
#
# **One row for each key.** With `upsert=` the table holds the newest answer: of the rows of one key the last stays, by
# event time, then by the left's `sequence`, then by content, whatever the micro-batches. `conflict="first"` keeps the
# first one, and `conflict="error"` ends the query at a key that comes twice. A column that `deletes=` names removes the
# row of its key. This order is known of temporal joins, and of as-of joins that look backward. Rows of functions, of
# interval joins and of other as-of joins are compared by the output's columns in `order_by=`, with the stored row, too.
# A row with a null in its key is left out; `query.progress.upserts` counts it, and the log says so.

# %%
history = spark.sql(f"DESCRIBE HISTORY delta.`{lake / 'enriched'}`").orderBy("version")
marker = [f"get_json_object(userMetadata, '$.cojoin.{name}') AS {name}" for name in ("batch_id", "rows", "rows_digest")]
history.selectExpr("version", "operation", *marker).toPandas()

# %% [markdown]
# Next: [02_functions.ipynb](02_functions.ipynb) writes functions with timers and state. `cojoin init` writes a join of
# data of your own as a file, which `cojoin run` runs on the command line.

# %%
spark.stop()

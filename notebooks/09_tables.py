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
# # A table as a side
#
# Trades come as a stream, and what they are joined with is often a table: customers that change now and then, kept in
# Delta. This guide shows which ways there are to make a table the right side of a join, and which rows a trade finds.
#
# It needs Java 17 and `pip install "cojoin[spark]" "pyspark<4.3" matplotlib`.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import cojoin as cj

os.chdir(tempfile.mkdtemp())  # all paths below are in here
spark = cj.spark_session(
    "09_tables",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)
HERE = Path.cwd()
TRADES = "trade_id long, customer string, event_time timestamp"


def sell(*trades):
    """Let trades come: their number, the customer, and the time of the day."""
    rows = [
        (number, customer, pd.Timestamp(f"2026-01-15 {clock}", tz="UTC").to_pydatetime())
        for number, customer, clock in trades
    ]
    spark.createDataFrame(rows, TRADES).coalesce(1).write.mode("append").parquet(f"{HERE}/trades")


def register(**tiers):
    """Write the customers, each with a tier, over those of before: a new version of the table."""
    rows = spark.createDataFrame([*tiers.items()], "customer string, tier string")
    rows.write.format("delta").mode("overwrite").save(f"{HERE}/customers")


# %% [markdown]
# ## A static side
#
# `cj.sources.delta(table, static=True)` is the table as one version. The query takes the newest one at its first start,
# loads all of it before it joins the first trade, and from then on keeps it, over all its runs. Such a table never holds
# time: trades wait only for their own watermark.
#
# With `event_time=None` the rows are known from the beginning of time, one for each customer. With a column, as in any
# as-of or temporal join, a trade finds the row that was in force at its time.

# %%
register(ann="silver", bob="none")
sell((1, "ann", "09:00"), (2, "bob", "09:01"), (3, "ann", "09:02"))


def joined(**options):
    """Make the join, with the table as one version, or refreshed."""
    trades = cj.sources.files(f"{HERE}/trades", "parquet", schema=TRADES)
    customers = cj.sources.delta(f"{HERE}/customers", **options)
    return cj.connect(
        cj.Input(trades, key="customer", event_time="event_time", name="trades"),
        cj.Input(customers, key="customer", event_time=None, name="customers"),
        key_groups=2,
    ).asof_join()


def run(join):
    """Run the query over what is there, and show all that has come out."""
    query = join.start(
        output=cj.sinks.delta(f"{HERE}/enriched"),
        checkpoint=f"{HERE}/checkpoint",
        trigger=cj.Trigger.available_now(),
    )
    query.await_termination(progress=False)
    print(query.progress.ending())
    return spark.read.format("delta").load(f"{HERE}/enriched").orderBy("trade_id").toPandas()


run(joined(static=True))

# %% [markdown]
# The last trade waits for the trades' watermark, as always. Now Ann becomes a gold customer, and the query goes on with
# the version that it has.

# %%
register(ann="gold", bob="none")
sell((4, "ann", "09:03"), (5, "bob", "09:04"))
run(joined(static=True))

# %% [markdown]
# ## Which rows does a refresh change?
#
# With `refresh="1 hour"` the newest version takes the place of all rows, once an hour has passed since the last load.
# **A refresh changes the rows that come out after it, and none before**: what is out stays as it is, and a trade that
# still waits finds the new version. Here a millisecond stands for the hour.

# %%
sell((6, "ann", "09:05"), (7, "ann", "09:06"))
enriched = run(joined(refresh="1 millisecond"))
enriched

# %% [markdown]
# The trades 1, 3 and 4 have come out with the version of before, and stay. Trade 5 had waited.

# %%
figure, axes = plt.subplots(figsize=(8, 1.8))
for (tier, rows), color in zip(enriched.groupby("tier"), ("goldenrod", "lightgray", "slategray"), strict=False):
    axes.scatter(rows.event_time, rows.customer, s=160, color=color, label=tier)
for row in enriched.itertuples():
    axes.annotate(str(row.trade_id), (row.event_time, row.customer), ha="center", va="center", size=8)
axes.set(title="Each trade with the tier that it found", ylim=(-0.6, 1.6))
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# | question | answer |
# |---|---|
# | When is a refresh due? | Between two micro-batches, by the micro-batches' own processing times, and at a start by the clock. A run over what is there (`available_now`) looks at its start alone. A query without new trades runs no micro-batch, and so has no refresh. |
# | What if the table has no newer version? | Nothing is loaded. |
# | What if a micro-batch is run again after a crash? | It reads the same version: the rows lie in the checkpoint until they are in the state, and Spark's log names their files. |
# | Where is the version told? | In `query.progress.inputs[1].table`, in the progress line, and in the last line of a run. |
# | What if a key has several rows? | With an event-time column they are versions. Without one, the last in the order of their content is in force, and a warning names an example. |
# | Can the version be chosen? | With `options={"versionAsOf": 17}`, and without `refresh`. |
# | What if the table is dropped, replaced, or lacks a column? | The running query goes on with its state. The next start or refresh stops with what has happened; the micro-batches before it count. |
# | Which operations take it? | As-of and temporal joins with `refresh`. Interval joins and functions take a table once, since what they have made of former rows can't be taken back; a function in the order of arrival sees all rows of a key's table first. |
# | Can a query with a static side be restored, or forked? | As any query: the rows are in the state, and the new query goes on with their version until a refresh is due. |
#
# A version is copied into the checkpoint when it is loaded, and the copy is deleted after the next micro-batch.

# %% [markdown]
# ## The changes of a table
#
# With `cj.sources.delta(table, changes=True)` a trade finds the customer as of its own time, also where the table has
# changed since. The query reads the rows that the table has at the first start, the *snapshot*, and then each change
# after it, from Delta's change data feed. The feed must be on:
# `ALTER TABLE ... SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')`.
#
# **Start the query before the first change that counts.** What the table was before the query's first start is not read,
# only the rows that it has then: a trade from before a row's last update finds nothing by a column such as `updated_at`,
# and the present row by `"_commit_timestamp"`. Where earlier versions are known, `cj.write_state(..., versions=...)`
# brings them along (guide [03](03_checkpoints.ipynb)).
#
# An inserted or updated row is a version, a deleted row deletes its key, and `temporal_join` takes that without being
# told. Event time is a column of the table, or `"_commit_timestamp"`: then a change holds from its commit on, and the
# snapshot from the beginning of time, for which 1900-01-01 stands.

# %%
TABLE = f"delta.`{HERE}/members`"
spark.sql(
    f"CREATE TABLE {TABLE} (customer STRING, tier STRING) USING delta "
    f"TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
)
spark.sql(f"INSERT INTO {TABLE} VALUES ('ann', 'silver'), ('bob', 'none')")


def buy(*trades):
    """Let trades of members come: their number, the customer, and the time."""
    rows = [(number, customer, pd.Timestamp(moment).to_pydatetime()) for number, customer, moment in trades]
    spark.createDataFrame(rows, TRADES).coalesce(1).write.mode("append").parquet(f"{HERE}/purchases")


def run_changes(*, drain=False):
    """Run the query over what is there, and show all that has come out."""
    trades = cj.sources.files(f"{HERE}/purchases", "parquet", schema=TRADES)
    members = cj.sources.delta(f"{HERE}/members", changes=True)
    pair = cj.connect(
        cj.Input(trades, key="customer", event_time="event_time", name="trades"),
        cj.Input(members, key="customer", event_time="_commit_timestamp", name="members"),
        key_groups=2,
    )
    query = pair.temporal_join().start(
        output=cj.sinks.delta(f"{HERE}/joined"),
        checkpoint=f"{HERE}/changes",
        trigger=cj.Trigger.available_now(drain=drain),
    )
    query.await_termination(progress=False)
    out = spark.read.format("delta").load(f"{HERE}/joined").orderBy("trade_id").toPandas()
    return out[["trade_id", "customer", "tier"]]


buy((1, "ann", "2026-01-15 09:00Z"), (2, "bob", "2026-01-15 09:01Z"))
run_changes()

# %% [markdown]
# Trades of long ago find the snapshot. Now Ann becomes a gold member, and Bob leaves. A trade after that finds no Bob,
# and one from before the change still finds what was in force then.

# %%
before = pd.Timestamp.now("UTC")
spark.sql(f"UPDATE {TABLE} SET tier = 'gold' WHERE customer = 'ann'")
spark.sql(f"DELETE FROM {TABLE} WHERE customer = 'bob'")
after = pd.Timestamp.now("UTC") + pd.Timedelta("1 minute")
buy((3, "ann", before), (4, "bob", before), (5, "ann", after), (6, "bob", after))
run_changes(drain=True)

# %% [markdown]
# | question | answer |
# |---|---|
# | What waits for the snapshot? | All left rows, until it is in the state; the progress says `members: 2,000,000 of 5,000,000 rows of the snapshot read`. |
# | When does a delete take effect? | With `_commit_timestamp` at its commit. With a column of the table at the later of the deleted row's column and its commit's time, for the column only says since when the row was valid. |
# | What of a row that is deleted and inserted by one commit, as by an overwrite or a MERGE? | It is replaced: the delete is superseded, and counted as done. |
# | What if the update changed the key? | The former key is deleted. |
# | What if the table does not change for long? | With `_commit_timestamp` a run over what is there knows that no commit came until its start, so its rows come out (guide [05](05_semantics.ipynb)). Live, or with a column of event time, the table holds time at its last change, as any input that is silent: `with_idleness("10 minutes")` lets the watermark advance without it, in a daily job `with_idleness("20 hours")`; and if the newest row will do, take a static side with `refresh`. |
# | Which columns come out? | The table's, and of `_deleted`, `_commit_version` and `_commit_timestamp` the one that is the event time. A function sees them all. |
# | What if the table gets a column? | The next start names it. `start(..., evolve=True)`, which a scheduled job may leave set, takes it up: rows that wait have null there, and an output with `options={"mergeSchema": "true"}` gets it. Guide [06](06_operations.ipynb) says what else may change. |
# | What if changes are gone, the feed was off for some time, or the table was replaced? | The query stops, or does not start, and says which versions are missing. A new query begins with the present rows. |
# | Which clock has a commit? | That of Delta's log. Where the clocks of writers differ, set `delta.enableInCommitTimestamps`, by which the times of commits are in their order; and `clock_skew=` of `cj.sources.delta` is how far they may be behind. |
#
# ## Rows with a span of validity
#
# A warehouse's table often says itself from when to when a row was valid (SCD2). `valid_from=` and `valid_to=` take the
# place of the event time: a row is a version from its begin to before its end, and open where the end is null or in
# the year 9999. It is the same in memory, for DataFrames, for Delta tables and for their changes.

# %%
day = lambda *days: pd.to_datetime([each and f"2026-01-{each}" for each in days], utc=True)  # noqa: E731
spans = pd.DataFrame(
    {
        "customer": ["ann", "ann", "bob"],
        "tier": ["silver", "gold", "none"],
        "begin": day("01", "10", "05"),
        "end": day("10", None, "08"),
    }
)
trades = pd.DataFrame({"customer": ["ann", "ann", "bob", "bob"], "time": day("09", "10", "07", "08")})
cj.connect(
    cj.Input(trades, key="customer", event_time="time", name="trades"),
    cj.Input(spans, key="customer", valid_from="begin", valid_to="end", name="customers"),
).temporal_join().to_pandas()

# %% [markdown]
# Rows of a key that overlap, and rows that end before they begin, are refused before the start with their number and
# an example; a version that `refresh` would load likewise, and the state keeps the former one. In a running stream
# the latter are rejected (`ends_before_it_begins`), and of rows that overlap the one that begins last is valid: the
# end of an older row does not end it. A row that ends where it begins was never valid. A row with an end counts as
# two: a version, and its end. Over `changes=True`, a row that is closed, corrected or deleted takes the place of what
# it was before.

# %% [markdown]
# ## In a Spark Declarative Pipeline
#
# A join can be a dataset of a pipeline, with PySpark 4.2 (`pip install "pyspark[pipelines]"`). Spark forbids whatever
# looks at columns within a pipeline's function, and a join must. So it stands at the level of the module, and the
# function returns it:
#
# ```python
# from pyspark import pipelines as dp
#
# import cojoin as cj
#
# trades = cj.sources.files("/lake/trades", "json", schema="trade_id long, customer string, event_time timestamp")
# customers = cj.Input(
#     cj.sources.delta("crm.history"), key="customer", valid_from="__START_AT", valid_to="__END_AT", name="customers"
# )
# joined = cj.connect(
#     cj.Input(trades, key="customer", event_time="event_time", name="trades"), customers, key_groups=8
# ).temporal_join().to_dataframe()
#
#
# @dp.table
# def enriched():
#     return joined
# ```
#
# `spark-pipelines run --remote sc://...`, at a server of Spark Connect that has Delta, was run with this twice, each
# time over new trades: the rows are those of the same join in SQL.
#
# | question | answer |
# |---|---|
# | Which sources can it have? | What is there before the pipeline runs: files with `schema=`, and tables that are not datasets of the same pipeline. Spark knows those only when it runs. |
# | What waits? | What always waits. `to_dataframe()` has no drain, so the rows behind the watermark stay in Spark's state, and come out with a later run. |
# | Where are rejected rows, progress and snapshots? | Progress and snapshots are those of `start()`, which is a query beside a pipeline. `to_dataframe("rejected")` can be another dataset; it runs the join once more. |
# | In which format is the dataset? | In parquet, Spark's default; in Delta with `spark.sql.sources.default: delta` in the pipeline's `configuration:`, or by `dp.create_sink` and an `append_flow`. With `@dp.table(format="delta")` the second run ends with `DELTA_CANNOT_CHANGE_PROVIDER`, also without cojoin (Spark 4.2.0, Delta 4.4.0). |
# | Which history is it? | Any with a begin and an end in each row. `__START_AT` and `__END_AT` are the names that AutoCDC gives them where it keeps one (type 2). With Spark 4.2.0 and Delta 4.4.0 it can't: `create_auto_cdc_flow` takes type 1 alone, and refuses Delta tables (`AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE`). So the history here was written by other means. |
# | What of `changes=True`, and a static side beside a stream? | Both need a query with a checkpoint of cojoin's: `start()`, beside the pipeline. |

# %%
spark.stop()

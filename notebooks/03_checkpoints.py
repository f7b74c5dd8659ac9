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
# # Checkpoints: inspect, go back, start again
#
# A query of cojoin keeps its state in tables that you can read: the rows that wait, the records in force, and how far
# event time has come. So you can ask why a trade has not come out yet, and see the state as it was some micro-batches
# ago. And you can start a new query from a snapshot, without a row missing or written twice.
#
# It needs Java 17 and `pip install "cojoin[spark]" "pyspark<4.3" matplotlib`.
#
# ## What does a query keep?
#
# | what | written | kept | what for |
# |---|---|---|---|
# | Spark's own checkpoint | with every micro-batch | the last batches | ordinary restarts: the same call of `start` |
# | snapshots | every `checkpoint_interval` | the newest 3 (`retained_checkpoints`) | inspection, new queries |
# | savepoints | when you ask for one | until you remove it | the same |
#
# `checkpoint_interval` is a duration of the micro-batches' clock (`"10 minutes"` by default), a number of
# micro-batches, or `None` for savepoints alone. Snapshots are rows of a Delta table. A snapshot writes only the key
# groups that have changed since the last one. Nothing is pickled, so restoring a checkpoint never runs code from it.
# [06_operations.ipynb](06_operations.ipynb) lists the files of the directory.

# %%
import os
import shutil
import tempfile
import textwrap
from pathlib import Path

import pandas as pd

import cojoin as cj
from cojoin.__main__ import main as cojoin

os.chdir(tempfile.mkdtemp())  # all paths below are in here
spark = cj.spark_session(
    "03_checkpoints",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)

# %% [markdown]
# ## A query to look at
#
# Trades and customers arrive as files, and each trade is joined with the customer record in force. The query runs now
# and then: it takes what is there, and pauses. `checkpoint_interval=1` takes a snapshot with every micro-batch.

# %%
COLUMNS = {
    "trades": "trade_id long, customer string, event_time timestamp, amount double",
    "customers": "customer string, event_time timestamp, tier string",
}
arrived = {name: [] for name in COLUMNS}


def at(clock):
    return pd.Timestamp(f"2026-01-15 {clock}", tz="UTC")


def arrive(name, *rows):
    """Write a file, as another system would."""
    frame = pd.DataFrame(rows, columns=[column.split()[0] for column in COLUMNS[name].split(", ")])
    frame["event_time"] = frame["event_time"].map(at)
    Path(f"lake/{name}").mkdir(parents=True, exist_ok=True)
    frame.to_parquet(f"lake/{name}/{len(arrived[name])}.parquet", coerce_timestamps="us")
    arrived[name].append(frame)


def join(key_groups, columns=COLUMNS):
    inputs = [
        cj.Input(
            cj.sources.files(f"lake/{name}", "parquet", schema=schema),
            key="customer",
            event_time="event_time",
            name=name,
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("1 minute"),
        )
        for name, schema in columns.items()
    ]
    return cj.connect(*inputs, key_groups=key_groups).asof_join()


def run(checkpoint="lake/checkpoint"):
    query = join(key_groups=2).start(
        output=cj.sinks.delta("lake/enriched"),
        checkpoint=checkpoint,
        checkpoint_interval=1,
        trigger=cj.Trigger.available_now(),
    )
    query.await_termination(progress=False)
    print(query.progress.ending())


# %%
arrive("trades", (1, "ann", "09:05", 120.0), (2, "bob", "09:10", 60.0), (3, "ann", "09:40", 310.0))
arrive("customers", ("ann", "09:00", "bronze"), ("bob", "09:00", "bronze"), ("ann", "09:20", "silver"))
run()
backup = shutil.copytree("lake/checkpoint", "lake/backup")  # for a later section

# %%
arrive("trades", (4, "bob", "09:50", 75.0), (5, "ann", "10:05", 45.0))
arrive("customers", ("bob", "09:30", "silver"), ("ann", "09:45", "gold"))
run()

# %% [markdown]
# ## Which snapshots are there?
#
# The command line lists them. (In a terminal: `cojoin checkpoints list lake/checkpoint`.)

# %%
assert cojoin(["checkpoints", "list", "lake/checkpoint"]) == 0

# %% [markdown]
# ## What does the state hold?
#
# `read_state` reads the newest state, also while the query runs. It writes nothing and waits for nothing. The parts of
# the state are DataFrames: `buffered` by input, `versions`, and for functions of your own `states` by name and
# `timers`.

# %%
state = cj.read_state(spark, "lake/checkpoint")
state

# %%
state.buffered["trades"].toPandas()

# %%
state.versions.toPandas()

# %% [markdown]
# ## Why has trade 5 not come out?
#
# `explain` says what became of a row, and what it waits for. Trade 5 waits for the customers: until their watermark has
# reached 10:05, a record could still come that is in force for trade 5.

# %%
print(cj.explain(spark, "lake/checkpoint", input="trades", row={"trade_id": 5}))

# %% [markdown]
# Trade 3 has come out, with the record that was in force at 09:40:

# %%
print(cj.explain(spark, "lake/checkpoint", input="trades", row={"trade_id": 3}))

# %% [markdown]
# ## What was the state before?
#
# `at=` takes the number of a micro-batch, or a datetime with a time zone for the last one before it. After the first
# micro-batch trade 3 was still waiting, and Ann was bronze. Her silver of 09:20 was known but not in force yet.

# %%
then = cj.read_state(spark, "lake/checkpoint", at=0)
print(then.key("ann"))

# %% [markdown]
# ## How did time advance?
#
# In a third run the customers catch up. `read_progress` returns a row for each micro-batch. The watermark of the join
# (black) is that of the slower input.

# %%
arrive("trades", (6, "bob", "10:20", 20.0))
arrive("customers", ("bob", "10:00", "gold"), ("ann", "10:15", "bronze"))
run()
progress = cj.read_progress(spark, "lake/checkpoint")
steps = progress.selectExpr(
    "batch_id",
    "inputs[0].watermark AS trades",
    "inputs[1].watermark AS customers",
    "watermark AS join",
    "holding_input",
    "rows_out",
    "inputs[0].buffered AS trades_waiting",
).toPandas()
steps

# %%
axes = cj.plots.plot_watermarks(progress, over="batches")

# %% [markdown]
# ## How do I step through what a key went through?
#
# `cj.debug` loads one key from a snapshot into this process, and reads the rows of this key that came next from the
# sources. Each step is a micro-batch of the real run, with its time, so late rows are late and timers fire as they did.
# Functions are not stored in a checkpoint, so `debug` takes the join as well.

# %%
debugger = cj.debug("lake/checkpoint", join(key_groups=2), key="ann", at=0)
debugger

# %%
for step in debugger.steps():
    print(f"micro-batch {step.batch_id}: rows that came out: {step.output.num_rows}")
step

# %% [markdown]
# `steps(by="row")` takes one row or timer at a time, and `with_function` or `with_join` runs the same rows through
# another version of the code.

# %% [markdown]
# ## How do I keep a moment?
#
# With a **savepoint**. A snapshot is removed when enough newer ones are there; a savepoint stays until you remove it.
#
# * `query.savepoint()` takes one while the query runs, `query.stop(savepoint=True)` takes one after it has stopped.
# * `cj.savepoint(spark, path)`, or `cojoin checkpoints savepoint PATH`, takes one of any checkpoint: of a query that
#   runs, is stopped, or was killed. Only a query that was drained is refused, because nothing can go on from it.
#
# A savepoint is the state after the last finished micro-batch. If that one has a snapshot already, the snapshot becomes
# the savepoint.

# %%
kept = cj.savepoint(spark, "lake/checkpoint")
assert cojoin(["checkpoints", "list", "lake/checkpoint"]) == 0

# %% [markdown]
# ## How do I start a new query from a snapshot?
#
# With `restore_from`. The new query has a checkpoint of its own. It begins with the state, the timers and the
# watermarks of that micro-batch, and its sources go on at the exact offsets where the old query's stood, also in the
# middle of a Delta version or of a folder. In `cj.Snapshot(path, at=...)`, `at` is a number or a datetime as above,
# of a micro-batch that has a snapshot; without it the newest snapshot is taken.
#
# * **Rescale.** The number of `key_groups` and `spark.sql.shuffle.partitions` may differ.
# * **Fork.** Start as many new queries from a snapshot as you like. The old one may run on. Take a savepoint before you
#   fork a query that runs, since its other snapshots are removed as it goes on.
# * **Evolve.** The new query may have further states, side outputs, nullable columns and nullable fields, and wider
#   types (except for the key). Any other change is refused, and the message says what differs.
# * **Sources.** Both inputs must come from `cj.sources` or `cj.kafka`, in both queries. Of a plain DataFrame it is not
#   known where it would continue.
#
# Here a query begins after micro-batch 1 with **six** key groups instead of two, and trades have a new column `venue`.
# It reads the third files once more, and `drain=True` lets everything come out.

# %%
wider = {**COLUMNS, "trades": f"{COLUMNS['trades']}, venue string"}
query = join(key_groups=6, columns=wider).start(
    output=cj.sinks.delta("lake/enriched_6"),
    checkpoint="lake/checkpoint_6",
    trigger=cj.Trigger.available_now(drain=True),
    restore_from=cj.Snapshot("lake/checkpoint", at=1),
)
query.await_termination(progress=False)
print(query.progress.table())

# %% [markdown]
# The old query's output as it was at the snapshot, and the new query's output, are together the whole join. The
# snapshot knows the version of the Delta table (`cojoin checkpoints show` prints it), and Delta's `VERSION AS OF` reads
# it. pandas finds the same rows.

# %%
output = progress.where("batch_id = 1").selectExpr("get_json_object(outputs, '$.output.version') AS version").first()
before = spark.read.format("delta").option("versionAsOf", output.version).load("lake/enriched").toPandas()
after = spark.read.format("delta").load("lake/enriched_6").toPandas()
both = pd.concat([before.assign(written_by="old"), after.assign(written_by="new")]).sort_values("trade_id")
both.reset_index(drop=True)

# %%
trades, customers = (pd.concat(arrived[name]).sort_values("event_time", kind="stable") for name in COLUMNS)
pandas_says = pd.merge_asof(trades, customers, on="event_time", by="customer").sort_values("trade_id")
assert both["trade_id"].tolist() == pandas_says["trade_id"].tolist()
assert both["tier"].tolist() == pandas_says["tier"].tolist()

# %% [markdown]
# What does not fit is refused before anything is written. Here the trades have lost a column:


# %%
def show_refusal(action):
    """Print why something is refused, with paths as they are written here."""
    try:
        action()
    except cj.CheckpointError as error:
        print(textwrap.fill(str(error).replace(f"file:{os.getcwd()}/", ""), 110, break_on_hyphens=False))


def restore(columns=COLUMNS, **options):
    query = join(key_groups=2, columns=columns).start(
        output=cj.sinks.delta("lake/enriched"),
        checkpoint="lake/checkpoint_2",
        trigger=cj.Trigger.available_now(),
        restore_from=cj.Snapshot("lake/checkpoint", at=1),
        **options,
    )
    query.await_termination(progress=False)


narrower = {**COLUMNS, "trades": "trade_id long, customer string, event_time timestamp"}
show_refusal(lambda: restore(narrower))

# %% [markdown]
# ## Can the new query write into the same table?
#
# Yes, into a Delta table. But the table already has rows that the old query wrote after the snapshot, and the new query
# will write them again. So this is refused, unless you allow it to take them back:

# %%
show_refusal(restore)

# %% [markdown]
# `cut_back_output=True` restores the table to its version at the snapshot. This is a commit like any other: the table's
# history keeps what was there. It is possible only if every later commit is the old query's own; if somebody else has
# written to the table, name a new one. The old query is ended for good, so that it can't write there again.

# %%
restore(cut_back_output=True)
history = spark.sql(f"DESCRIBE HISTORY delta.`{Path('lake/enriched').absolute()}`").orderBy("version")
history.selectExpr("version", "operation", "operationMetrics['numOutputRows'] AS rows_written").toPandas()

# %%
show_refusal(run)

# %% [markdown]
# ## Can I put a checkpoint back from a backup?
#
# Copy a checkpoint while its query is not running. A backup that is older than its output is refused: going on would
# write rows twice, or leave some out. The copy in `lake/backup` was made after the first run, and two more followed:

# %%
show_refusal(lambda: run(backup))

# %% [markdown]
# As the message says, `restore_from` with `cut_back_output=True` goes on from one of the backup's snapshots. If the
# table is ahead of the backup by a single micro-batch, the query starts and runs that micro-batch again. It is passed
# over if its source offsets and its rows are the same as in the table, and refused otherwise.
#
# ## What if a file is damaged?
#
# Files and rows of a checkpoint have checksums, which are compared when they are read. The error names what is damaged,
# and what to do.

# %%
description = Path(backup, "query.json")
description.write_text(description.read_text().replace("trade_id", "trade_ib"))
Path(backup, ".query.json.crc").unlink(missing_ok=True)  # a checksum of Hadoop's own, which would notice it first
show_refusal(lambda: cj.read_state(spark, backup))

# %% [markdown]
# ## What if two queries use one checkpoint?
#
# The second one is refused. A query holds a **lease** on its checkpoint, with a heartbeat. If it was killed, it can
# start again at once on the same machine, and after half a minute on another one: for so long the heartbeat is watched.
#
# ## What if the source no longer has the records?
#
# If Kafka has deleted records that are to be read next, the restore is refused. The message names each partition and
# the number of records. `allow_data_loss=True` continues without them. See [04_replay_kafka.ipynb](04_replay_kafka.ipynb)
# for sources that lose records while they run.
#
# ## How do I bring a state along?
#
# With `write_state`. A table of customers, a former job or a backup becomes a savepoint with which a query begins, so
# the query need not read the customers' history as a stream first. The parts are DataFrames of the shape that
# `read_state` gives: `versions` for joins, `states` and `timers` for functions, and `buffered` rows that wait.
#
# `watermark` says up to when the inputs are complete. Versions up to it are in force; later ones wait for it, as they
# would in a query. Columns, types and rows are checked before anything is written.

# %%
customers = spark.createDataFrame(
    [("ann", at("08:00").to_pydatetime(), "gold"), ("eve", at("08:30").to_pydatetime(), "silver")],
    "customer string, event_time timestamp, tier string",
)
begin = cj.write_state(
    spark, "lake/begin", join(key_groups=2), versions=customers, watermark=at("08:45").to_pydatetime()
)
cj.read_state(spark, begin)

# %% [markdown]
# A query starts with `restore_from=begin`, and reads its sources from their beginning. What does not fit is refused:

# %%
show_refusal(
    lambda: cj.write_state(
        spark, "lake/again", join(2), versions=customers.union(customers.selectExpr("NULL", "event_time", "tier"))
    )
)

# %% [markdown]
# `from_existing=` follows a state that is there: source positions, watermarks, counters and outputs are taken from it,
# and each part that is not given. What is given replaces a part, so a state of a function can be changed, renamed or
# left out (`states={"tier": changed, "old": None}`) on its way from `read_state` to `write_state`.
#
# ## How do I take a person out?
#
# Stop the query, and erase the key. A new checkpoint gets the state without the key's rows: versions, waiting rows,
# states, timers. No byte of them is in it. The removed rows that waited are counted as rejected, with the reason
# `erased`. The result says what was removed, and where else rows of the key remain, with the statements that remove
# them. cojoin does not run these: the tables are yours.

# %%
done = cj.erase(spark, "lake/checkpoint_2", ["ann"], into="lake/without_ann")
print(textwrap.indent(str(done).replace(f"file:{os.getcwd()}/", "").replace(f"{os.getcwd()}/", ""), " "))

# %% [markdown]
# Begin the query with the new checkpoint first, in the same outputs if you like (`restore_from=done.snapshot`, and a
# `checkpoint` of its own). This ends the old query. Then run the statements, and delete the old checkpoint.
#
# Do not forget what no checkpoint knows: the source tables and topics, archives of topics, tests that were captured
# from real rows, and backups. If a source is read again from its beginning, the person comes back. The new checkpoint
# goes on by Spark's log of the files that were read, so a file's path that names the person stays there.
#
# ## What can I do in a terminal?
#
# | `cojoin checkpoints ...` | |
# |---|---|
# | `list PATH` | the snapshots that can be restored |
# | `show PATH --at 12` | one snapshot: source positions, versions of the outputs, sizes, and who holds the lease |
# | `state PATH --key 17` | what the state holds, as a whole or of a key |
# | `progress PATH` | watermarks and counts of the last micro-batches |
# | `explain PATH --input trades --row trade_id=17` | what became of a row, and what it waits for |
# | `savepoint PATH` | take a savepoint |
# | `erase PATH --key 17 --into NEW` | take keys out of the state of a stopped query, and list what remains where |
# | `clean PATH --keep 3` | remove snapshots; savepoints stay, unless `--savepoints` is given |
#
# The commands that look take `--json` for scripts, and disturb no running query. `cojoin run job.py:enriched`, which
# runs a join of a file, starts a new query with the state of a snapshot: `--restore-from PATH --at 12`.
#
# Next: [04_replay_kafka.ipynb](04_replay_kafka.ipynb) replays the history of Kafka topics and then goes live.

# %%
spark.stop()

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
# # Checkpoints: look inside, travel in time, begin again
#
# A query of cojoin keeps its state as tables that you can read: which rows wait and for what, which records are in force, how far
# time has come. So you can ask *why is this trade not there yet?*, see the state as it was some batches ago, and begin a new query
# from any snapshot, with another number of key groups, without losing or doubling a row.
#
# It needs Java 17 and `pip install cojoin matplotlib`.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
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
# ## A query that runs every so often
#
# Trades and customers arrive as files; each trade is joined with the customer record in force. `checkpoint_interval=1` takes a
# snapshot with every batch; by default it is every ten minutes. Only what changed is written.

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
    columns = [column.split()[0] for column in COLUMNS[name].split(", ")]
    frame = pd.DataFrame(
        [[at(value) if column == "event_time" else value for column, value in zip(columns, row)] for row in rows],
        columns=columns,
    )
    Path(f"lake/{name}").mkdir(parents=True, exist_ok=True)
    frame.to_parquet(f"lake/{name}/{len(arrived[name])}.parquet", coerce_timestamps="us")
    arrived[name].append(frame)


def join(key_groups):
    inputs = [
        cj.Input(
            cj.sources.files(f"lake/{name}", "parquet", schema=schema),
            key="customer",
            event_time="event_time",
            name=name,
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("1 minute"),
        )
        for name, schema in COLUMNS.items()
    ]
    return cj.connect(*inputs, key_groups=key_groups).asof_join()


def run():
    """A scheduled run: it takes what is there, and pauses."""
    query = join(key_groups=2).start(
        output=cj.sinks.delta("lake/enriched"),
        checkpoint="lake/checkpoint",
        checkpoint_interval=1,
        trigger=cj.Trigger.available_now(),
    )
    query.await_termination(progress=False)
    print(query.progress.ending())


# %%
arrive("trades", (1, "ann", "09:05", 120.0), (2, "bob", "09:10", 60.0), (3, "ann", "09:40", 310.0))
arrive("customers", ("ann", "09:00", "bronze"), ("bob", "09:00", "bronze"), ("ann", "09:20", "silver"))
run()

# %%
arrive("trades", (4, "bob", "09:50", 75.0), (5, "ann", "10:05", 45.0))
arrive("customers", ("bob", "09:30", "silver"), ("ann", "09:45", "gold"))
run()

# %% [markdown]
# ## What there is
#
# The command line lists the snapshots. (In a terminal: `cojoin checkpoints list lake/checkpoint`.)

# %%
assert cojoin(["checkpoints", "list", "lake/checkpoint"]) == 0

# %% [markdown]
# `read_state` opens one; without more the newest. It only reads, also while the query runs.

# %%
state = cj.read_state(spark, "lake/checkpoint")
state

# %%
state.buffered["trades"].toPandas()

# %%
state.versions.toPandas()

# %% [markdown]
# ## Why is trade 5 not there?

# %%
print(cj.explain(spark, "lake/checkpoint", input="trades", row={"trade_id": 5}))

# %% [markdown]
# It waits for the customers: until their time has come to 10:05, a record could still come that trade 5 must find. And trade 3, which
# has come out:

# %%
print(cj.explain(spark, "lake/checkpoint", input="trades", row={"trade_id": 3}))

# %% [markdown]
# ## Time travel
#
# All that a key has, now and after the first batch. Then trade 3 was waiting, and Ann was bronze, her silver of 09:20 being known
# but not yet in force:

# %%
print(state.key("ann"))

# %%
then = cj.read_state(spark, "lake/checkpoint", at=0)
print(then.key("ann"))
assert [row.trade_id for row in then.key("ann").buffered["trades"]] == [3]

# %% [markdown]
# ## A third run, and how time went
#
# The customers catch up. `read_progress` has a row a batch: the join's watermark (black) follows the slower input.

# %%
arrive("trades", (6, "bob", "10:20", 20.0))
arrive("customers", ("bob", "10:00", "gold"), ("ann", "10:15", "bronze"))
run()
progress = cj.read_progress(spark, "lake/checkpoint")
progress.selectExpr(
    "batch_id", "watermark", "holding_input", "rows_out", "inputs[0].buffered AS trades_waiting"
).toPandas()

# %%
steps = progress.selectExpr(
    "batch_id", "watermark", "inputs[0].watermark AS trades", "inputs[1].watermark AS customers"
).toPandas()
figure, axes = plt.subplots(figsize=(9, 2.6))
for name, colour in (("trades", "#3b7dd8"), ("customers", "#c8553d")):
    axes.plot(steps["batch_id"], steps[name], "o-", color=colour, label=name, markersize=7)
axes.plot(steps["batch_id"], steps["watermark"], "k--", label="the join", linewidth=2)
axes.set_xticks(steps["batch_id"], [f"batch {number}" for number in steps["batch_id"]])
axes.yaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
axes.set_title("Watermarks after each batch", loc="left", fontsize=10)
axes.legend(frameon=False)
for side in ("top", "right"):
    axes.spines[side].set_visible(False)
plt.tight_layout()
plt.show()

# %% [markdown]
# ## Begin again, from any of them
#
# A new query begins with the state after batch 1, cut into **six** key groups instead of two. It has a checkpoint and an output of its
# own; its files go on exactly where the old query's stood then, so it reads the third files once more, and `drain=True` lets what waits
# come out. (In a terminal: `cojoin checkpoints restore lake/checkpoint --at 1 --checkpoint lake/checkpoint_6 ...`.)

# %%
origin = cj.Checkpoint("lake/checkpoint", at=1)
query = join(key_groups=6).start(
    output=cj.sinks.delta("lake/enriched_6"),
    checkpoint="lake/checkpoint_6",
    trigger=cj.Trigger.available_now(drain=True),
    restore_from=origin,
)
query.await_termination(progress=False)
print(query.progress.ending())
print(query.progress.table())

# %% [markdown]
# The old query's output as it was after batch 1, which the snapshot remembers, and the new one's together are the whole join:
# no row is missing, none is double. pandas says the same.

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
# `query.savepoint()`, or `cojoin checkpoints savepoint`, keeps a moment until you remove it, however many snapshots come after;
# `cojoin checkpoints clean` removes the others. See `cojoin checkpoints --help`.

# %%
spark.stop()

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
# # Replay Kafka topics, then go live
#
# Three days of **trades** and of **customers'** changes lie in two Kafka topics. Each trade gets the record that was in force when it
# happened: first for all that is there, as fast as the machine goes, then for what keeps coming, by the same query and without a seam.
#
# What makes it hard is that a topic's partitions go at speeds of their own: some have ten times the records of others, one is silent
# for a day, one stops, one is empty. A replay that simply reads on is in Friday with one partition while another is still in
# Wednesday, and rows are late by the thousand. `cojoin.kafka` reads both topics and all their partitions **by event time**.
#
# It needs Java 17, a Kafka broker to try things on, and `pip install "cojoin[kafka]" matplotlib`.

# %%
import json
import os
import tempfile
import threading
import time
import uuid

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import cojoin as cj

KAFKA = os.environ.get("KAFKA", "localhost:9092")

os.chdir(tempfile.mkdtemp())  # all paths below are in here
spark = cj.spark_session(
    "04_replay_kafka",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)

# %% [markdown]
# ## A history
#
# Two topics of four partitions each, of which this notebook alone knows. So many records an hour come to each partition on each of
# the three days, relative to each other:

# %%
topics = {name: f"{name}-{uuid.uuid4().hex[:6]}" for name in ("trades", "customers")}
admin = AdminClient({"bootstrap.servers": KAFKA})
for made in admin.create_topics([NewTopic(topic, 4, 1) for topic in topics.values()]).values():
    made.result(timeout=30)

DAYS = ["Wed 7 Jan", "Thu 8 Jan", "Fri 9 Jan"]
RATES = {
    "trades": pd.DataFrame([[1, 1, 9], [5, 0, 5], [8, 3, 0], [0, 0, 0]], columns=DAYS),  # partitions by days
    "customers": pd.DataFrame([[4, 4, 1], [0, 0, 0], [1, 2, 2], [2, 0, 0]], columns=DAYS),
}
COUNTS = {"trades": 12_000, "customers": 1_200}
RATES["trades"].rename_axis("partition of trades")

# %% [markdown]
# Each record is JSON, its timestamp is its event time, and within a partition records come up to five seconds after later ones.

# %%
random = np.random.default_rng(7)
BEGIN = pd.Timestamp("2026-01-07", tz="UTC")
TIERS = ["bronze", "silver", "gold"]


def make_records(name):
    """Draw each record's day and partition by the rates, then its time within the day."""
    weights = RATES[name].to_numpy().ravel() / RATES[name].to_numpy().sum()
    partition, day = np.divmod(random.choice(weights.size, COUNTS[name], p=weights), len(DAYS))
    event_time = BEGIN + pd.to_timedelta(day * 86_400 + random.random(COUNTS[name]) * 86_400, unit="s").floor("ms")
    records = pd.DataFrame(
        {
            f"{name[:-1]}_id": np.arange(COUNTS[name]),
            "customer": random.choice([f"c{number:03d}" for number in range(100)], COUNTS[name]),
            "event_time": event_time,
            "partition": partition,
        }
    )
    comes = records["event_time"] + pd.to_timedelta(5 * random.random(len(records)), unit="s")
    return records.loc[comes.sort_values().index].reset_index(drop=True)


def write(name, records):
    """Write records into their partitions, in the order given."""
    producer = Producer({"bootstrap.servers": KAFKA, "linger.ms": 20})
    for record in records.to_dict("records"):
        partition = record.pop("partition")
        stamp = int(record["event_time"].timestamp() * 1000)
        value = json.dumps({**record, "event_time": record["event_time"].isoformat()})
        producer.produce(topics[name], value, record["customer"], partition, timestamp=stamp)
        producer.poll(0)
    assert producer.flush(30) == 0


history = {
    "trades": make_records("trades").assign(amount=lambda rows: random.integers(1, 500, len(rows)) / 4),
    "customers": make_records("customers").assign(tier=lambda rows: random.choice(TIERS, len(rows))),
}
for name, records in history.items():
    write(name, records)
history["trades"].head(3)

# %% [markdown]
# As it is in life, there are records that nobody can read: one that is no JSON, one whose amount is a word, one without a value.

# %%
broken = Producer({"bootstrap.servers": KAFKA})
stamp = int(pd.Timestamp("2026-01-09T23:59", tz="UTC").timestamp() * 1000)
for value in (b"<trade>17</trade>", b'{"trade_id": 18, "customer": "c001", "amount": "much"}', None):
    broken.produce(topics["trades"], value, "c001", 0, timestamp=stamp)
assert broken.flush(30) == 0

# %% [markdown]
# ## The replay
#
# A source for each input says what is read: `from_` and `to` take times, offsets, `"earliest"` and `"latest"`; without `to` it is all
# that is there at the start. `max_drift` is how far a record's event time may be from its timestamp, and `max_records` how many a
# batch may hold: few here, so that there is something to see.

# %%
SCHEMAS = {
    "trades": "trade_id long, customer string, event_time timestamp, amount double",
    "customers": "customer_id long, customer string, event_time timestamp, tier string",
}


def join():
    inputs = [
        cj.Input(
            cj.kafka.source(KAFKA, topics[name], schema=schema, max_drift="1 minute", max_records=2_400),
            key="customer",
            event_time="event_time",
            name=name,
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("2 seconds"),
        )
        for name, schema in SCHEMAS.items()
    ]
    return cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_customer"))


def start(trigger):
    return join().start(output=cj.sinks.delta("lake/enriched"), checkpoint="lake/checkpoint", trigger=trigger)


replay = start(cj.Trigger.available_now())
replay.await_termination(progress=True)

# %% [markdown]
# The bar goes over event time: both inputs' watermarks, how far they are apart, how many rows wait. (In a terminal it is the same with
# `cojoin replay`.) At the end the query pauses:

# %%
print(replay.progress.ending())
print(replay.progress.table())

# %% [markdown]
# No row was late, although only five seconds of disorder are allowed, and the law holds: *rows in = done + buffered + rejected*.

# %%
assert replay.progress.is_conserved
assert all(each.late_applied == 0 and "late" not in each.rejected for each in replay.progress.inputs)

# %% [markdown]
# ## What was rejected
#
# Broken records stop nothing. They are rows of the `rejected` table, with their place and the reason.
# (`cj.kafka.source(..., undecodable="fail")` makes them end the query.)

# %%
pd.set_option("display.max_colwidth", None)
rejected = spark.read.format("delta").load("lake/checkpoint/rejected")
parts = [f"get_json_object(row, '$.{part}') AS {part}" for part in ("topic", "partition", "offset", "error")]
rejected.selectExpr("input", "reason", *parts).orderBy("offset").toPandas()

# %% [markdown]
# ## How time went
#
# After each batch: how far the two inputs have come, and how many rows wait for the other input. The two lines lie on each other, and
# of thousands of rows only a handful ever wait.

# %%
progress = cj.read_progress(spark, "lake/checkpoint")
steps = progress.selectExpr(
    "batch_id",
    "inputs[0].watermark AS trades",
    "inputs[1].watermark AS customers",
    "inputs[0].rows_in + inputs[1].rows_in AS read",
    "inputs[0].buffered + inputs[1].buffered AS waiting",
    "offsets",
).toPandas()
steps[["batch_id", "trades", "customers", "read", "waiting"]]

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(9, 4.4), sharex=True, height_ratios=[2, 1])
above.plot(steps["batch_id"], steps["trades"], "o-", color="#3b7dd8", label="trades", markersize=9)
above.plot(steps["batch_id"], steps["customers"], "o--", color="#c8553d", label="customers", markersize=5)
above.yaxis.set_major_locator(mdates.DayLocator())
above.yaxis.set_major_formatter(mdates.DateFormatter("%a %-d %b"))
above.set_title("Watermarks after each batch", loc="left", fontsize=10)
above.legend(frameon=False)
below.bar(steps["batch_id"], steps["read"].diff().fillna(steps["read"]), color="#d9dde3")
for number, waiting in zip(steps["batch_id"], steps["waiting"]):
    below.text(number, 60, f"{waiting} wait", ha="center", va="bottom", fontsize=9, color="#8c5fa8", weight="bold")
below.set_title("Rows read by each batch, and rows of both inputs that wait after it", loc="left", fontsize=10)
below.set_xlabel("batch")
below.set_xticks(steps["batch_id"], [f"{number}" for number in steps["batch_id"]])
for axes in (above, below):
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
plt.tight_layout()
plt.show()

# %% [markdown]
# ## And without alignment?
#
# Kafka's usual way is by offsets: a batch takes of each partition a share of what is left, however far that is in event time. No Spark
# is needed to see what follows. Here is where each partition of the trades stands after each batch, read by offsets and as the query
# above has read them:

# %%
trades = history["trades"]
times = {partition: rows["event_time"] for partition, rows in trades.groupby("partition")}


def stands_at(positions):
    """Give the newest event time among the records before each partition's position."""
    return {
        partition: found.iloc[: positions.get(partition, 0)].max()
        for partition, found in times.items()
        if positions.get(partition, 0)
    }


batches = len(steps)
by_offset = [
    {partition: len(found) * (batch + 1) // batches for partition, found in times.items()} for batch in range(batches)
]
by_time = [
    {int(number): at for number, at in json.loads(offsets[0])["positions"][topics["trades"]].items()}
    for offsets in steps["offsets"]
]
figure, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
for axes, positions, title in (
    (panels[0], by_offset, "Read by offsets"),
    (panels[1], by_time, "Read by event time"),
):
    reached = pd.DataFrame([stands_at(each) for each in positions])
    for (partition, line), colour in zip(reached.items(), ("#3b7dd8", "#c8553d", "#5a9e6f")):
        axes.plot(line.index, line, "o-", color=colour, markersize=4, label=f"partition {partition}")
    axes.yaxis.set_major_locator(mdates.DayLocator())
    axes.yaxis.set_major_formatter(mdates.DateFormatter("%a %-d %b"))
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("batch")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
panels[0].legend(frameon=False, fontsize=8, loc="lower right")
plt.tight_layout()
plt.show()

# %% [markdown]
# On the right the lines go together; partition 1 stands still through its silent Thursday, and partition 2 ends on Thursday evening:
# neither holds the others. On the left they are up to two days apart. A watermark over the whole topic then leaves this many rows behind, and
# the same for the query above:


# %%
def late_rows(positions):
    """Count rows that are older than a watermark over the whole topic was before their batch."""
    late, before, watermark = 0, {}, pd.Timestamp.min.tz_localize("UTC")
    for each in positions:
        new = pd.concat(
            [times[partition].iloc[before.get(partition, 0) : each.get(partition, 0)] for partition in times]
        )
        late += int((new <= watermark).sum())
        watermark = max(watermark, new.max() - pd.Timedelta("5 s")) if len(new) else watermark
        before = each
    return late


pd.DataFrame(
    {"late rows": [late_rows(by_offset), late_rows(by_time)], "of": len(trades)},
    index=["read by offsets", "read by event time"],
)

# %%
assert late_rows(by_offset) > 0
assert late_rows(by_time) == 0

# %% [markdown]
# ## Live
#
# The same query goes on from the same checkpoint with another trigger. Meanwhile a producer writes what happens now, into some of the
# partitions. A live query can't know whether a silent partition is late or has nothing to say; `with_idleness` says for how long it
# is waited for.

# %%
LIVE_SECONDS = 14
live = {"trades": [], "customers": []}


def happen():
    """Every quarter of a second a trade, every second a change."""
    for tick in range(4 * LIVE_SECONDS):
        now = pd.Timestamp.now("UTC").floor("ms")
        customer = f"c{tick % 5:03d}"
        rows = {"trades": [(100_000 + tick, customer, now, tick % 2, 10.0)]}
        if tick % 4 == 0:
            rows["customers"] = [(100_000 + tick, customer, now, 2 * (tick % 8 // 4), TIERS[tick // 4 % 3])]
        for name, made in rows.items():
            records = pd.DataFrame(made, columns=history[name].columns)
            live[name].append(records)
            write(name, records)
        time.sleep(0.25)


query = start(cj.Trigger.processing_time("0 seconds"))
world = threading.Thread(target=happen)
world.start()
query.await_termination(LIVE_SECONDS, progress=True)
query.stop()
world.join()
print(query.progress.table())

# %% [markdown]
# What the watermark has passed came out while it ran. The last rows wait: five seconds of disorder are allowed, and the customers'
# watermark must have passed them, too. Why is the newest trade that was read not there?

# %%
waiting = cj.read_state(spark, "lake/checkpoint").buffered["trades"].orderBy("trade_id").toPandas()
print(cj.explain(spark, "lake/checkpoint", input="trades", row={"trade_id": int(waiting["trade_id"].iloc[-1])}))

# %% [markdown]
# ## The end, and the proof
#
# `drain=True` ends both inputs: everything comes out. History and live rows are one table, and pandas' `merge_asof` over all records
# gives the same rows: none is missing, none is double.

# %%
query = start(cj.Trigger.available_now(drain=True))
query.await_termination(progress=False)
print(query.progress.ending())
enriched = spark.read.format("delta").load("lake/enriched").orderBy("trade_id").toPandas()
enriched[["trade_id", "customer", "event_time", "amount", "customers_event_time", "tier"]].tail(4)

# %%
everything = {
    name: pd.concat([history[name], *live[name]]).sort_values("event_time", kind="stable") for name in SCHEMAS
}
pandas_says = pd.merge_asof(
    everything["trades"], everything["customers"], on="event_time", by="customer", suffixes=("", "_customer")
).sort_values("trade_id")
assert enriched["trade_id"].tolist() == pandas_says["trade_id"].tolist()
assert enriched["tier"].fillna("none").tolist() == pandas_says["tier"].fillna("none").tolist()
print(f"{len(enriched):,} rows, each as pandas has it")

# %% [markdown]
# On the command line the whole story is
#
# ```
# cojoin replay --left kafka:localhost:9092/trades --right kafka:localhost:9092/customers \
#   --left-schema '...' --right-schema '...' --key customer --event-time event_time --delay '5 seconds' \
#   --from 2026-01-07 --then-live '10 seconds' --idleness '1 minute' \
#   --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched
# ```

# %%
for gone in admin.delete_topics(list(topics.values())).values():
    gone.result(timeout=30)
spark.stop()

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
# # Ten common jobs
#
# Each job as one would type it first, with its lines and seconds, and what it takes elsewhere. Where a library of
# Python does the same, it does so here, on the same rows, and the results are compared.
#
# It needs Java 17, a Kafka broker for one of the jobs, and `pip install "cojoin[spark,kafka]" "pyspark<4.3" matplotlib`.

# %%
import json
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Window
from pyspark.sql import functions as F

import cojoin as cj
from cojoin.testing import Harness, HarnessInput

SOURCE = Path("10_common_jobs.py").read_text("utf-8")
KAFKA = os.environ.get("KAFKA", "localhost:9092")
os.chdir(tempfile.mkdtemp())  # all paths below are in here
measured = []


@contextmanager
def job(title, by="cojoin"):
    """Note the seconds of a job and its lines: those of its block, without blank lines."""
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    head = f'with job("{title}"):\n' if by == "cojoin" else f'with job("{title}", "{by}"):\n'
    block = SOURCE.split(head)[1].split("\n\n# %%")[0]
    lines = sum(bool(line.strip()) for line in block.splitlines())
    measured.append((title, by, lines, round(seconds, 2)))


random = np.random.default_rng(7)


def day_of(count, **columns):
    """Rows of 5,000 customers over a day, in order of time."""
    times = pd.Timestamp("2026-01-15", tz="UTC") + pd.to_timedelta(np.sort(random.integers(0, 86_400_000, count)), "ms")
    rows = {"customer_id": random.integers(0, 5_000, count), "event_time": times.as_unit("us"), **columns}
    return pd.DataFrame(rows)


trades = day_of(300_000, trade_id=np.arange(300_000), product_id=random.integers(0, 50, 300_000))
customers = day_of(30_000, tier=random.choice(["bronze", "silver", "gold"], 30_000))

# %% [markdown]
# ## How do I join two frames?

# %%
with job("An as-of join of two frames"):
    enriched = cj.asof_join(trades, customers, on="event_time", by="customer_id")

# %%
with job("An as-of join of two frames", "pandas"):
    left = trades.sort_values("event_time", kind="stable")
    right = customers.sort_values("event_time", kind="stable")
    expected = pd.merge_asof(left, right, on="event_time", by="customer_id")

# %%
assert enriched["tier"].fillna("").tolist() == expected["tier"].fillna("").tolist()

# %% [markdown]
# These frames are sorted already, so pandas' sorts cost little here. `cj.asof_join` needs no order.
#
# ## How do I write a function, and its test?

# %%
with job("A function and its test"):

    class Changes(cj.KeyedCoProcessFunction):
        """Emit a trade with its customer's tier, and how often that has changed."""

        def open(self, ctx):
            self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
            self.changes = ctx.get_state(cj.ValueStateDescriptor("changes", "int"))

        def process_element1(self, trade, ctx):
            yield trade.trade_id, self.tier.value(), self.changes.value() or 0

        def process_element2(self, customer, ctx):
            self.tier.update(customer.tier)
            self.changes.update((self.changes.value() or 0) + 1)

    left = HarnessInput("customer_id int, trade_id long", key="customer_id")
    right = HarnessInput("customer_id int, tier string", key="customer_id")
    harness = Harness(Changes(), "trade_id long, tier string, changes int", input1=left, input2=right)
    harness.process_element2({"customer_id": 7, "tier": "gold"}, 1_000)
    harness.process_element1({"customer_id": 7, "trade_id": 1}, 2_000)
    harness.end_input()
    assert [tuple(row) for row in harness.output] == [(1, "gold", 1)]

# %% [markdown]
# PyFlink has the function, and no test harness; Flink's is of Java. Spark's `TwsTester` has one input and one key.
#
# ## How do I join two Delta tables once a day?

# %%
spark = cj.spark_session(
    "10_common_jobs",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)
spark.createDataFrame(trades[:20_000]).write.format("delta").save("lake/trades")
spark.createDataFrame(customers).write.format("delta").save("lake/customers")

# %%
with job("Delta to Delta, once a day"):
    columns = {"key": "customer_id", "event_time": "event_time"}
    joined = cj.connect(
        cj.Input(cj.sources.delta("lake/trades"), **columns, name="trades"),
        cj.Input(cj.sources.delta("lake/customers"), **columns, name="customers"),
        key_groups=4,
    ).asof_join()
    query = joined.start(
        output=cj.sinks.delta("lake/enriched"),
        checkpoint="lake/_cojoin/enriched",
        trigger=cj.Trigger.available_now(),
    )
    query.await_termination(progress=False)
    print(query.progress.ending())

# %%
with job("Delta to Delta, once a day", "plain Spark, by hand"):

    def enrich(batch, _):
        versions = spark.read.format("delta").load("lake/customers")
        versions = versions.withColumnsRenamed({"customer_id": "id", "event_time": "since"})
        in_force = (F.col("id") == F.col("customer_id")) & (F.col("since") <= F.col("event_time"))
        newest = Window.partitionBy("trade_id").orderBy(F.desc("since"))
        pairs = batch.join(versions, in_force, "left").withColumn("n", F.row_number().over(newest))
        pairs.where("n = 1").drop("n", "id").write.format("delta").mode("append").save("lake/by_hand")

    stream = spark.readStream.format("delta").load("lake/trades").writeStream.foreachBatch(enrich)
    stream = stream.option("checkpointLocation", os.path.abspath("lake/_by_hand")).trigger(availableNow=True)
    stream.start().awaitTermination()


# %%
def tiers(table):
    rows = spark.read.format("delta").load(table).orderBy("trade_id").toPandas()
    return dict(zip(rows["trade_id"], rows["tier"].fillna(""), strict=True))


mine, by_hand = tiers("lake/enriched"), tiers("lake/by_hand")
assert mine.items() <= by_hand.items()
print(f"{len(mine):,} and {len(by_hand):,} rows; the last trade waits for the watermark")

# %% [markdown]
# By hand a trade takes the customers that are there when it is read, so one that is loaded before its customer has
# another tier than after. A batch that is interrupted after its write is written twice, the late trades are not known,
# and the whole history is joined in each batch.
#
# ## Why did a row not come out?

# %%
waiting = int(max(set(by_hand) - set(mine)))
with job("Why did a row not come out?"):
    print(cj.explain("lake/_cojoin/enriched", input="trades", row={"trade_id": waiting}))

# %% [markdown]
# ## How do I go on with other key groups?

# %%
with job("Restore with other key groups"):
    columns = {"key": "customer_id", "event_time": "event_time"}
    wider = cj.connect(
        cj.Input(cj.sources.delta("lake/trades"), **columns, name="trades"),
        cj.Input(cj.sources.delta("lake/customers"), **columns, name="customers"),
        key_groups=8,
    ).asof_join()
    saved = cj.savepoint("lake/_cojoin/enriched")
    query = wider.start(
        output=cj.sinks.delta("lake/enriched_8"),
        checkpoint="lake/_cojoin/enriched_8",
        restore_from=saved,
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination(progress=False)

# %%
assert mine | tiers("lake/enriched_8") == by_hand

# %% [markdown]
# Flink does it with a savepoint and `-p 8`, up to the greatest parallelism that the savepoint has. Spark's own joins
# begin again.
#
# ## How do I take a person out of the state?

# %%
with job("Erase a person"):
    done = cj.erase("lake/_cojoin/enriched", [4711], into="lake/_cojoin/without_4711")
    print(str(done).replace(os.getcwd(), ""))

# %% [markdown]
# ## What does a change of a join change?

# %%
with job("What does a change change?"):
    frames = [cj.Input(trades[:20_000], **columns, name="trades"), cj.Input(customers, **columns, name="customers")]
    pair = cj.connect(*frames)
    found = cj.diff(pair.asof_join(), pair.asof_join(tolerance="10 minutes"), examples=1)
    print(found)

# %% [markdown]
# Tools that compare tables name the rows that differ, and not the versions that were in force for them.
#
# ## How do I look up a second dimension?

# %%
products = pd.DataFrame({"product_id": range(50), "valid_at": pd.Timestamp("2026-01-14", tz="UTC"), "price": 9.5})
spark.createDataFrame(products).write.format("delta").save("lake/products")

# %%
with job("A second dimension"):
    second = cj.connect(
        cj.Input(cj.sources.delta("lake/enriched_8"), key="product_id", event_time="event_time", name="enriched"),
        cj.Input(
            cj.sources.delta("lake/products", static=True), key="product_id", event_time="valid_at", name="products"
        ),
        key_groups=4,
    ).asof_join()
    query = second.start(
        output=cj.sinks.delta("lake/priced"),
        checkpoint="lake/_cojoin/priced",
        trigger=cj.Trigger.available_now(drain=True),
    )
    query.await_termination(progress=False)

# %%
priced = spark.read.format("delta").load("lake/priced")
assert priced.count() == len(tiers("lake/enriched_8")) == priced.where("price = 9.5").count()

# %% [markdown]
# ## How do I join with the changes of a table?

# %%
TABLE = f"delta.`{os.getcwd()}/lake/members`"
spark.sql(
    f"CREATE TABLE {TABLE} (customer_id BIGINT, plan STRING) USING delta "
    f"TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
)
spark.sql(f"INSERT INTO {TABLE} SELECT id, 'basic' FROM range(5000)").collect()
print("the table has a change feed")

# %%
with job("A table with changes"):
    changed = cj.connect(
        cj.Input(cj.sources.delta("lake/trades"), key="customer_id", event_time="event_time", name="trades"),
        cj.Input(
            cj.sources.delta("lake/members", changes=True),
            key="customer_id",
            event_time="_commit_timestamp",
            name="members",
        ),
        key_groups=4,
    ).temporal_join()
    query = changed.start(
        output=cj.sinks.delta("lake/with_plan"),
        checkpoint="lake/_cojoin/with_plan",
        trigger=cj.Trigger.available_now(),
    )
    query.await_termination(progress=False)
    print(query.progress.ending())

# %%
out = spark.read.format("delta").load("lake/with_plan").where("plan = 'basic'").count()
assert out + query.progress.inputs[0].buffered == 20_000

# %% [markdown]
# Day after day the same program takes what has come: trades, updates, deletes, MERGEs.
#
# ## How do I replay two topics, and then go live?

# %%
TOPICS = {"trades": trades[:2_000], "customers": customers[:200]}
admin, producer = AdminClient({"bootstrap.servers": KAFKA}), Producer({"bootstrap.servers": KAFKA})
for made in admin.create_topics([NewTopic(f"jobs-{name}", 1, 1) for name in TOPICS]).values():
    made.result(timeout=30)
for name, rows in TOPICS.items():
    for row in rows.to_dict("records"):
        moment = row["event_time"]
        value = json.dumps({**row, "event_time": moment.isoformat()})
        producer.produce(f"jobs-{name}", value, timestamp=int(1000 * moment.timestamp()))
assert producer.flush(30) == 0

# %%
with job("Two topics, history then live"):
    left = cj.kafka.source(KAFKA, "jobs-trades", schema="trade_id long, customer_id long, event_time timestamp")
    right = cj.kafka.source(KAFKA, "jobs-customers", schema="customer_id long, event_time timestamp, tier string")
    columns = {"key": "customer_id", "event_time": "event_time"}
    pair = cj.connect(
        cj.Input(left, **columns, name="trades"), cj.Input(right, **columns, name="customers"), key_groups=4
    )
    query = pair.asof_join(suffixes=("", "_customer")).start(
        output=cj.sinks.delta("lake/from_topics"),
        checkpoint="lake/_cojoin/from_topics",
        trigger=cj.Trigger.available_now(then=cj.Trigger.processing_time("1 second")),
    )
    query.await_history()
    print(query.progress.ending(goes_on=True))
    query.stop()

# %% [markdown]
# Flink reads topics from the beginning and then goes on, too. Its watermark alignment stops a partition that is ahead;
# the ranges here end at one event time in all partitions, found by the records' timestamps.
#
# ## All ten

# %%
jobs = pd.DataFrame(measured, columns=["job", "by", "lines", "seconds"])
jobs

# %%
shown = jobs[::-1]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
labels = [each.job if each.by == "cojoin" else f"the same by {each.by}" for each in shown.itertuples()]
colours = ["#1b6ca8" if by == "cojoin" else "#9aa5b1" for by in shown["by"]]
for each, column in zip(axes, ("lines", "seconds"), strict=True):
    each.barh(labels, shown[column], color=colours)
    each.set_title(column, loc="left", fontsize=10)
    each.tick_params(axis="y", labelsize=8)
    each.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
spark.stop()

# %% [markdown]
# The seconds are of two busy cores, and the first jobs on Spark have the start of its classes. The lines are those
# above: of jobs on Spark half are the two inputs, which a second job shares.

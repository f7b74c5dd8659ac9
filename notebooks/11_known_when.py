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
# # What was known when
#
# Whoever trains a model on history must not let it see what came to light later. A price that is valid from 10:00 may
# have been loaded at 10:07, and it may have been corrected at 11:00. An order of 10:05 saw neither. This guide joins
# orders with the prices that were *known* at their time: in a frame, and in a stream whose rows a training set of next
# month repeats exactly.
#
# It needs Java 17 and `pip install "cojoin[spark]" "pyspark<4.3" matplotlib`.

# %%
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import cojoin as cj

os.chdir(tempfile.mkdtemp())  # all paths below are in here
HERE = Path.cwd()


def at(*clocks):
    return pd.to_datetime([f"2026-01-15 {clock}" for clock in clocks], utc=True)


orders = pd.DataFrame({"sku": "tea", "ordered_at": at("10:05", "10:20", "11:10", "12:30"), "order_id": [1, 2, 3, 4]})
prices = pd.DataFrame(
    {
        "sku": "tea",
        "valid_at": at("09:00", "10:00", "10:00", "12:00"),
        "loaded_at": at("09:02", "10:07", "11:00", "11:50"),
        "price": [10.00, 12.50, 12.00, 13.00],
    }
)
prices

# %% [markdown]
# ## How do I join with what was known at that time?
#
# Name the column with the moment at which a row was loaded as `known_at`. A price then counts from the later of its two
# times on, its *effective time*. Of the prices that are effective at an order's time, the one with the greatest
# `valid_at` matches, and of equal ones the one known last.

# %%
on, by = ("ordered_at", "valid_at"), "sku"
known = cj.asof_join(orders, prices, on=on, by=by, known_at="loaded_at")
hindsight = cj.asof_join(orders, prices, on=on, by=by)
known[["order_id", "ordered_at", "price"]].assign(in_hindsight=hindsight["price"])

# %% [markdown]
# Without `known_at`, orders 1 and 2 get the price that was corrected at 11:00: they look into the future. A timeline
# has both axes. Bars are prices from when they were known to when a later one was; below them they stand at their event
# times.

# %%
pair = cj.connect(
    cj.Input(orders, key="sku", event_time="ordered_at", name="orders"),
    cj.Input(prices, key="sku", event_time="valid_at", name="prices", known_at="loaded_at"),
)
axes = cj.plots.plot_timeline(pair.asof_join(), keys="tea")
plt.show()

# %% [markdown]
# ## What if there is no such column?
#
# Where rows are known a fixed time after their event time, write `delay`. A forecast of 10:00 that is published at 10:15
# is an input with `delay="15 minutes"`.

# %%
delayed = cj.asof_join(orders, prices.drop(columns="loaded_at"), on=on, by=by, delay="15 minutes")
delayed[["order_id", "ordered_at", "valid_at", "price"]]

# %% [markdown]
# ## How do I join a stream with what was known?
#
# In the same way, with `known_at` of the right `Input`. The input's watermark follows the effective times. So a
# correction of last week's price is on time today, however old its `valid_at` is, and no order that is out already
# changes.
#
# A shop has orders in files and prices in a Delta table, and joins them once a day. Each day prices of the days before
# are corrected.

# %%
spark = cj.spark_session(
    "11_known_when",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)
random = np.random.default_rng(7)
DAY = pd.Timedelta(days=1)
BEGIN = pd.Timestamp("2026-01-12", tz="UTC")
SKUS = [f"sku {number}" for number in range(20)]


def spread(count, begin):
    return begin + pd.to_timedelta(np.sort(random.integers(0, 86_400, count)), unit="s")


def add_day(number):
    """Let a day's orders and prices come; every third price is a correction of an earlier day."""
    day = BEGIN + number * DAY
    sold = pd.DataFrame({"sku": random.choice(SKUS, 400), "ordered_at": spread(400, day)})
    sold = sold.assign(order_id=400 * number + np.arange(400))
    loaded = spread(150, day)
    age = np.where(np.arange(150) % 3, random.integers(0, 600, 150), random.integers(600, 3 * 86_400, 150))
    listed = pd.DataFrame({"sku": random.choice(SKUS, 150), "valid_at": loaded - pd.to_timedelta(age, unit="s")})
    listed = listed.assign(loaded_at=loaded, price=random.integers(100, 2_000, 150) / 100)
    spark.createDataFrame(sold).coalesce(1).write.mode("append").parquet(f"{HERE}/orders")
    spark.createDataFrame(listed).coalesce(1).write.format("delta").mode("append").save(f"{HERE}/prices")


def run_day():
    joined = cj.connect(
        cj.Input(
            cj.sources.files(f"{HERE}/orders", "parquet", schema="sku string, ordered_at timestamp, order_id long"),
            key="sku",
            event_time="ordered_at",
            name="orders",
        ),
        cj.Input(
            cj.sources.delta(f"{HERE}/prices"), key="sku", event_time="valid_at", name="prices", known_at="loaded_at"
        ),
        key_groups=2,
    ).asof_join()
    query = joined.start(
        output=cj.sinks.delta(f"{HERE}/priced"), checkpoint=f"{HERE}/checkpoint", trigger=cj.Trigger.available_now()
    )
    query.await_termination()
    return query.progress


for number in range(4):
    add_day(number)
    progress = run_day()
progress

# %% [markdown]
# No price was late, although every third one is of an earlier day. The rows that wait are the newest, since nothing tells
# yet whether a row between them and the watermark still comes.
#
# ## Does a training set of later have the same rows?
#
# Weeks later someone corrects prices of all four days, and a training set is made of the whole history, in memory, with
# the same `known_at`. It must have the rows that the stream emitted.

# %%
backfill = pd.DataFrame({"sku": SKUS, "valid_at": BEGIN + random.integers(1, 90, 20) * pd.Timedelta(hours=1)})
backfill = backfill.assign(loaded_at=BEGIN + 30 * DAY, price=0.01)
spark.createDataFrame(backfill).write.format("delta").mode("append").save(f"{HERE}/prices")

emitted = spark.read.format("delta").load(f"{HERE}/priced").toPandas().set_index("order_id").sort_index()
all_orders = spark.read.parquet(f"{HERE}/orders").toPandas()
all_prices = spark.read.format("delta").load(f"{HERE}/prices").toPandas()


def training_set(**known):
    rows = cj.asof_join(all_orders, all_prices, on=on, by=by, **known).set_index("order_id").sort_index()
    return rows.loc[emitted.index, "price"]


same = training_set(known_at="loaded_at")
leaking = training_set()
pd.DataFrame(
    {
        "orders": [len(emitted)] * 2,
        "other prices than the stream's": [
            int((~(each.eq(emitted["price"]) | (each.isna() & emitted["price"].isna()))).sum())
            for each in (same, leaking)
        ],
    },
    index=['known_at="loaded_at"', "without"],
)

# %%
assert same.equals(emitted["price"].rename("price"))

# %% [markdown]
# The stream and the training set have the same prices for every order. Without `known_at`, the training set has prices
# that nobody knew: those of the backfill, and every correction.
#
# ## What about deletes?
#
# In a `temporal_join` a delete ends its key from its event time on, for the orders from its known time on. It never
# brings an older price back, and a price from before it that comes to be known later does not either.

# %%
with_end = pd.DataFrame(
    {
        "sku": "tea",
        "valid_at": at("09:00", "10:00", "09:30"),
        "loaded_at": at("09:02", "10:10", "11:00"),
        "price": [10.00, None, 11.00],
        "withdrawn": [False, True, False],
    }
)
ended = cj.temporal_join(orders, with_end, on=on, by=by, deletes="withdrawn", known_at="loaded_at")
ended[["order_id", "ordered_at", "price"]]

# %% [markdown]
# Order 1 came before the withdrawal was known. The price of 9:30, known at 11:00, is older than the withdrawal of 10:00.
#
# ## What are the rules?
#
# | | |
# |---|---|
# | effective time | the later of event time and known time; a row that is known before its event time counts from its event time on |
# | match of an order of time t | of the rows that are effective at or before t, the one with the greatest event time; then the one known last; then by the source's sequence; then by content |
# | `tolerance`, `retention`, `allow_exact_matches` | compare event times |
# | watermark, late rows | follow the effective time |
# | `max_ahead` | follows the effective time, without `delay` |
# | a null known time | the row is rejected, as `null_known_at` |
# | a row whose validity has ended | matches nothing, and hides the rows before it |
# | which joins | `temporal_join`, and `asof_join` with `direction="backward"`; `known_at` is for the right input |
#
# ## What does it cost?
#
# Of the prices that are effective, one a key is kept, as without `known_at`: one with a greater event time ends it for
# good. Prices that are not effective yet wait, so that a correction costs state only from its arrival to its known time.
# A delete is kept like a price, since an older price may come to be known after it: a row for each deleted key, until
# the key comes again. `retention="90 days"` bounds that.
#
# A checkpoint remembers `known_at` and `delay`, and refuses another one by name.
#
# ## What about the changes of a table?
#
# With `cj.sources.delta(table, changes=True)`, an event time that is a column of the table, and
# `known_at="_commit_timestamp"`, each change is known at its commit. The rows that the table has at the start were
# written at some time before; they are known at their event times, or with `snapshot_known="at_snapshot"` at the
# snapshot's commit. A delete takes effect at its commit. An update that moves a row's event time back would never match,
# since the end of the former row is later: its new state is rejected as `moved_back`, and the former one stays.
#
# Changes by Debezium (`cj.kafka.debezium`) have `known_at="_source_timestamp"` for this. Rows of its initial snapshot are
# known at their event times as well; those of an incremental snapshot when Debezium read them. Whether an update has moved
# the event time back is noticed where its event has the row before it (`REPLICA IDENTITY FULL` in Postgres).
#
# Rows with a span of validity (`valid_from=`, `valid_to=`) may have a known time, too. Their end is known with them. A
# correction has the same begin, and replaces the end. Where the newest row that is known has ended, nothing matches.

# %%
spark.stop()

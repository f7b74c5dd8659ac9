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
# Two Kafka topics hold three days of **trades** and of **customer** records. Each trade gets the record that was in
# force when it happened: first for the whole history, as fast as the machine allows, then for new records. It is the
# same query and the same checkpoint all the way.
#
# A replay is hard because partitions do not advance through event time together. One has ten times the records of
# another, one is silent for a day, one ends early, one is empty. If each is simply read on, one partition has come to
# Friday while another is still in Wednesday, and thousands of rows are late. `cj.kafka.source` reads all partitions of
# both topics **by event time**.
#
# It needs Java 17, a Kafka broker to try things on, and `pip install "cojoin[kafka]" matplotlib`.

# %%
import json
import os
import tempfile
import textwrap
import time

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F

import cojoin as cj

KAFKA = os.environ.get("KAFKA", "localhost:9092")

os.chdir(tempfile.mkdtemp())  # all paths below are in here
pd.set_option("display.max_colwidth", None)
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
spark = cj.spark_session(
    "04_replay_kafka",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)

# %% [markdown]
# ## A history to replay
#
# Two topics of four partitions. A record's key is the customer, its value is JSON, and its timestamp is the event time.
# Within a partition, records come up to five seconds after later ones. `RATES` says how many records each partition
# gets on each day, relative to the others.

# %%
TOPICS = {"trades": "guide-trades", "customers": "guide-customers"}
BEGIN = pd.Timestamp("2026-01-07", tz="UTC")  # a Wednesday
COUNTS = {"trades": 12_000, "customers": 1_200}
RATES = {
    "trades": np.array([[1, 1, 9], [5, 0, 5], [8, 3, 0], [0, 0, 0]]),  # partitions by days
    "customers": np.array([[4, 4, 1], [0, 0, 0], [1, 2, 2], [2, 0, 0]]),
}
random = np.random.default_rng(7)


def make_records(name):
    """Draw each record's partition and day by the rates, then its time within the day."""
    count, weights = COUNTS[name], RATES[name].ravel() / RATES[name].sum()
    partition, day = np.divmod(random.choice(weights.size, count, p=weights), 3)
    event_time = BEGIN + pd.to_timedelta(86_400 * (day + random.random(count)), unit="s").floor("ms")
    customer = random.choice([f"c{number:03d}" for number in range(100)], count)
    records = pd.DataFrame({"customer": customer, "event_time": event_time, "partition": partition})
    if name == "trades":
        records = records.assign(trade_id=np.arange(count), amount=random.integers(1, 500, count) / 4)
    else:
        records = records.assign(tier=random.choice(["bronze", "silver", "gold"], count))
    arrival = records["event_time"] + pd.to_timedelta(5 * random.random(count), unit="s")
    return records.loc[arrival.sort_values().index].reset_index(drop=True)


admin, producer = AdminClient({"bootstrap.servers": KAFKA}), Producer({"bootstrap.servers": KAFKA, "linger.ms": 20})
for made in admin.create_topics([NewTopic(topic, 4, 1) for topic in TOPICS.values()]).values():
    made.result(timeout=30)


def write(name, records):
    """Write records into their partitions, in the order given."""
    for record in records.to_dict("records"):
        customer, partition, moment = record.pop("customer"), record.pop("partition"), record["event_time"]
        value = json.dumps({**record, "event_time": moment.isoformat()})
        producer.produce(TOPICS[name], value, customer, partition, timestamp=int(1000 * moment.timestamp()))
        producer.poll(0)
    assert producer.flush(30) == 0


records = {name: make_records(name) for name in TOPICS}
for name, each in records.items():
    write(name, each)
# As it is in life, some records can't be read: one is not JSON, in one the amount is a word, one has no value.
stamp = int(1000 * pd.Timestamp("2026-01-09T23:59", tz="UTC").timestamp())
for value in (b"<trade>17</trade>", b'{"trade_id": 18, "amount": "much"}', None):
    producer.produce(TOPICS["trades"], value, "c001", 0, timestamp=stamp)
assert producer.flush(30) == 0

# %% [markdown]
# ## How do I read a topic?
#
# `cj.kafka.source` describes what is read. Its columns are those of the JSON value (`schema`), then further `columns`
# of the record's key, headers or timestamp, then `topic`, `partition` and `offset`. Opened as a static DataFrame, it is
# good for a first look. On Thursday partition 1 is silent:

# %%
SCHEMAS = {
    "trades": "trade_id long, event_time timestamp, amount double",
    "customers": "event_time timestamp, tier string",
}


def source(name, **options):
    options = {"schema": SCHEMAS[name], "columns": {"customer": cj.kafka.key()}, **options}
    return cj.kafka.source(KAFKA, TOPICS[name], **options)


thursday = source("trades", from_="2026-01-08", to="2026-01-09").open(streaming=False)
thursday.groupBy("partition").agg(F.count("*").alias("records"), F.min("event_time"), F.max("event_time")).toPandas()

# %% [markdown]
# ### Which records are read?
#
# `from_` is where a new query begins, inclusive. `to` is where a bounded run ends, exclusive.
#
# | value | example |
# |---|---|
# | a word | `"earliest"` (the default of `from_`), `"latest"` |
# | a time of record timestamps, in UTC if it has no zone | `"2026-01-08"`, `"2026-01-08T09:30+01:00"`, a `datetime` |
# | an offset | `1200` |
# | one of these by topic, or by topic and partition | `{"trades": "2026-01-08", "quotes": {0: 1200, 1: "latest"}}` |
#
# Without `to`, a bounded run ends at what is there when it starts. It pauses or drains there.
#
# ### How are records decoded?
#
# The value is read as Spark's `from_json` reads it. The reading tasks parse a record themselves only if the result is
# certain to equal Spark's. Other records, such as one with a number written as a text, go to Spark. So most rows never
# become rows of Spark. `query.progress.inputs[0].reading` is then `"direct"`; else it says why Spark reads all records,
# such as a header or an archive. `spark.cojoin.kafka=spark` in the session switches it off; checkpoints go on either way.
#
# `cj.kafka.key(type)`, `header(name, type)` and `timestamp()` make further
# columns. A function of your own decodes other formats. It takes a `cj.kafka.Record`, and returns a dict or a tuple
# that fits `schema`:


# %%
def decode(record):
    value = json.loads(record.value)
    return {"trade_id": value["trade_id"], "cents": round(100 * value["amount"])}


first_three = {TOPICS["trades"]: {0: 3, 1: 0, 2: 0}}
decoded = source("trades", schema="trade_id long, cents long", decode=decode, to=first_three)
decoded.open(streaming=False).toPandas()

# %% [markdown]
# ### Avro, Protobuf and a schema registry
#
# Topics whose schemas are in a registry (Confluent's, Apicurio's, or another with the same API) are read with `value=`, and
# `key=` likewise; they need `pip install "cojoin[registry]"`:
#
# ```python
# registry = cj.kafka.registry("http://localhost:8081", username="ali", password=..., ca="/etc/ssl/own.pem")
# trades = cj.kafka.source(servers, "trades", value=cj.kafka.avro(registry), key="long")
# customers = cj.kafka.source(servers, "customers", value=cj.kafka.protobuf(registry, "shop.Customer", schema=3))
# orders = cj.kafka.source(servers, "orders", value=cj.kafka.json_schema(registry, schema="order_id long, at timestamp"))
# ```
#
# Each record is decoded by the schema that it was written with. The columns of the input are those of the reader's schema:
# the newest version of the subject `trades-value`, a version by its number, or your own DDL. They are fixed when the query
# starts, and its checkpoint knows them. After a newer version was registered, a query that names no version is refused at
# its next start: name the version that it had (`schema=3`), or go on with the new columns in a new checkpoint
# (`restore_from=`). Records of newer versions are read all the while.
#
# | Avro | Protobuf | column |
# |---|---|---|
# | boolean, int, long, float, double | bool, int32, int64 and uint32, float, double | boolean, int, bigint, float, double |
# | string, enum, uuid; bytes, fixed | string, enum; bytes | string; binary |
# | decimal, date | uint64 | decimal, date; decimal(20,0) |
# | timestamp-millis, timestamp-micros | google.protobuf.Timestamp | timestamp |
# | local-timestamp-millis, local-timestamp-micros | | timestamp_ntz |
# | record, array, map | message, repeated, map | struct, array, map |
# | union with null | optional, oneof, wrappers such as Int64Value | the type, or null |
# | another union | | a struct with `member0`, `member1`, ..., all null but one |
# | time-millis, time-micros, timestamp-nanos | | the number |
# | | Duration; Struct, Value | interval; JSON as a string |
#
# A Protobuf field that is neither optional nor a message has its default where it is absent, such as 0. A JSON schema gives
# the columns, and Spark parses the values; ranges and patterns are not checked. The fields of a key become columns beside
# the value's; a key that is one value is a column `key`.
#
# What can't be decoded goes to `rejected` with its place and the reason: no schema id, an id that the registry does not
# know, another kind of schema, a schema that can't become the columns, bytes that do not fit. A registry that is away is
# told within seconds before the start. While a query runs, it ends the query after half a minute with an error that names
# the registry; no record is lost, the next start reads the batch again.
#
# ### Changes of a database, by Debezium
#
# `cj.kafka.debezium(...)` makes rows of Debezium's envelope, in JSON (with or without `schema` and `payload`) or a format
# of a registry. Beside the row's columns there are `_deleted` and `_source_timestamp`, the time of the change in the
# database:
#
# ```python
# changes = cj.kafka.source(servers, "shop.customers", value=cj.kafka.debezium(cj.kafka.avro(registry)))
# customers = cj.Input(changes, key="customer_id", event_time="_source_timestamp", name="customers")
# cj.connect(trades, customers).temporal_join()
# ```
#
# Creates, updates and snapshot reads are versions, deletes end them, and the join takes both without being told. An
# update that moves a row to another key of the join is a delete of the former key as well, where `before` has it. With a
# column of the row as event time, a delete takes effect at the later of that and the change. The tombstone after a delete
# is no row; the progress counts it as done (`tombstones`). The row of a delete is `before`, so the table must write at least its key there (`REPLICA IDENTITY` in Postgres).
#
# ## Which topics are one input?
#
# One, several by name, or all of a pattern, also with partitions of some topics alone. Each partition of each topic is
# a source partition with a watermark of its own.
#
# ```python
# cj.kafka.source(servers, ["trades-eu", "trades-us"], schema=...)
# cj.kafka.source(servers, topic_pattern="trades-.*", schema=...)
# cj.kafka.source(servers, "trades-eu", partitions={"trades-test": [0]}, schema=...)
# ```
#
# Topics that are created later and match the pattern, and partitions that are added, are read from their beginning
# within a micro-batch. From one start to the next, topics may be added to the list or by the pattern. A topic that the
# query has read can't be left out: what is written there from then on would be missing, so such a start is refused.
#
# Records of aborted transactions never come out. A run over what is there ends before a transaction that is still open,
# and a warning says which partition holds how many offsets back. Topics may be compacted, their records may be
# compressed in each way that Kafka has, and may have megabytes; the brokers' limits apply, and cojoin needs no
# settings for them.
#
# ## How do I log in?
#
# By librdkafka's settings in `options=`. They go to the workers with the query and are stored nowhere: no log,
# error, plan, checkpoint or captured test has a password, a key or a token.
#
# | login | options |
# |---|---|
# | name and password | `security.protocol` `SASL_SSL`, `sasl.mechanism` `PLAIN` or `SCRAM-SHA-512`, `sasl.username`, `sasl.password` |
# | a certificate of your own (mutual TLS) | `security.protocol` `SSL`, `ssl.certificate.pem` and `ssl.key.pem` as texts |
# | a token (OAUTHBEARER) | none; a function in `token=` |
# | brokers with an authority of your own, with each of them | `ssl.ca.pem` as a text |
#
# Texts travel to the workers. With `.location` instead of `.pem` they are files, which must be on each machine.
#
# ```python
# options = {
#     "security.protocol": "SASL_SSL",
#     "sasl.mechanism": "SCRAM-SHA-512",
#     "sasl.username": "cojoin",
#     "sasl.password": os.environ["KAFKA_PASSWORD"],
#     "ssl.ca.pem": pathlib.Path("authority.pem").read_text(),
# }
# cj.kafka.source(servers, "trades", schema=..., options=options)
# ```
#
# A function in `token=` returns a token and its lifetime in seconds, or a `cj.kafka.Token`. Spark sends it to the
# workers like any function of yours, so it imports what it needs inside, and takes its own login from there. It is
# called again for another token when three quarters of the lifetime have passed. Amazon MSK, for example, by Amazon's
# own signer (`pip install aws-msk-iam-sasl-signer-python`):
#
# ```python
# def token():
#     from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
#
#     text, expires_at_ms = MSKAuthTokenProvider.generate_auth_token("eu-west-1")
#     return text, expires_at_ms / 1000 - time.time()
#
#
# cj.kafka.source(servers, "trades", schema=..., token=token)
# ```
#
# A wrong password, an untrusted certificate, an expired token or a missing permission is an error within 15 seconds,
# with the brokers' reason, before the query starts. While a query runs, a token that fails is asked for again until
# `patience` ends. The user needs READ and DESCRIBE on the topics, with `archive=`
# DESCRIBE_CONFIGS on them, and with `group=` READ on that group.

# %% [markdown]
# ## How do I replay?
#
# Connect two sources as any inputs, and start a query over what is available. Both topics have columns `topic`,
# `partition` and `offset`, so the join needs `suffixes`. `max_records` is how many records of an input a micro-batch
# may hold (500,000 by default; few here, so that there is something to see). The first run ends where Friday begins.


# %%
def start(trigger, **options):
    late_by = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_idleness("2 seconds")
    options = {"max_drift": "1 minute", "max_records": 2_400, **options}
    columns = {"key": "customer", "event_time": "event_time", "watermark": late_by}
    inputs = [cj.Input(source(name, **options), **columns, name=name) for name in TOPICS]
    joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_customer"))
    return joined.start(output=cj.sinks.delta("lake/enriched"), checkpoint="lake/checkpoint", trigger=trigger)


query = start(cj.Trigger.available_now(), to="2026-01-09")
query.await_termination(progress=True)
print(query.progress.ending())

# %% [markdown]
# The bar is over event time. It also shows the watermarks, how far they are apart, and how many rows wait. Without
# `to`, the same checkpoint goes on up to what is there now. No row is late, although only five seconds of disorder are
# allowed.

# %%
query = start(cj.Trigger.available_now())
query.await_termination(progress=False)
assert all(each.late_applied == 0 and "late" not in each.rejected for each in query.progress.inputs)
print(query.progress.table())

# %% [markdown]
# ## Why is no row late?
#
# Each micro-batch ends at one event time in all partitions of both topics, found by the records' timestamps. So what
# waits stays small, however much longer one topic is than the other. Here a handful of rows ever waited:

# %%
progress = cj.read_progress(spark, "lake/checkpoint")
steps = progress.selectExpr(
    "batch_id",
    "inputs[0].watermark AS trades",
    "inputs[1].watermark AS customers",
    "inputs[0].rows_in + inputs[1].rows_in AS rows_read",
    "inputs[0].buffered + inputs[1].buffered AS rows_waiting",
    "offsets",
).toPandas()
steps.drop(columns="offsets")

# %% [markdown]
# In the history, a partition that is silent, empty or at its end holds time back by no more than `max_drift`, because
# the source knows that it has no earlier record. `max_drift` (10 minutes by default) is how far a record's timestamp
# may be from its event time, and from its arrival in the topic. A larger value lets more rows wait, a smaller one
# relies more on the timestamps. Both inputs need the same value.
#
# The picture compares two ways to read the trades: by offsets, where each micro-batch takes the same share of each
# partition, and as the query has read them.

# %%
times = {partition: rows["event_time"] for partition, rows in records["trades"].groupby("partition")}
positions = {
    "read by offsets": [
        {partition: len(found) * (number + 1) // len(steps) for partition, found in times.items()}
        for number in range(len(steps))
    ],
    "read by event time": [
        {int(number): offset for number, offset in json.loads(each[0])["positions"][TOPICS["trades"]].items()}
        for each in steps["offsets"]
    ],
}
figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
for axes, (title, reached) in zip(panels, positions.items()):
    for (partition, found), colour in zip(times.items(), ("#3b7dd8", "#c8553d", "#5a9e6f")):
        newest = [found.iloc[: each.get(partition, 0)].max() for each in reached]
        axes.plot(steps.index + 1, newest, "o-", color=colour, markersize=4, label=f"partition {partition}")
    axes.yaxis.set_major_locator(mdates.DayLocator())
    axes.yaxis.set_major_formatter(mdates.DateFormatter("%a %-d %b"))
    axes.set_title(f"Trades {title}", loc="left", fontsize=10)
    axes.set_xlabel("number of micro-batches with rows")
panels[0].set_ylabel("newest event time read")
panels[0].legend(frameon=False, fontsize=8, loc="lower right")
plt.tight_layout()
plt.show()

# %% [markdown]
# By event time the lines go together. Partition 1 stands still through its silent Thursday, and partition 2 ends on
# Thursday evening; neither holds the others. By offsets they are nearly two days apart. A watermark over the whole
# topic would then leave thousands of rows behind.

# %% [markdown]
# ## What about records that can't be read?
#
# They are rows of `rejected`, with their place and the reason. `undecodable="fail"` ends the query instead, and
# `tombstones="keep"` makes a record without a value a row of nulls, which a `temporal_join` can take for a delete.

# %%
rejected = spark.read.format("delta").load("lake/checkpoint/rejected")
parts = [f"get_json_object(row, '$.{part}') AS {part}" for part in ("topic", "partition", "offset", "error")]
rejected.selectExpr("input", "reason", *parts).orderBy("offset").toPandas()

# %% [markdown]
# ## How does it go live?
#
# The same query goes on with another trigger; `Trigger.available_now(then=cj.Trigger.processing_time("10 seconds"))`
# does both in one call, and reads on past a `to=`. Live, nothing distinguishes silence from delay: a silent partition holds
# time back, unless its strategy has `with_idleness`. Give it from the history on: a checkpoint keeps whether its query
# looks at the clock, and only `restore_from` can change that. Here Saturday begins, and only some of the partitions get
# records.

# %%
query = start(cj.Trigger.processing_time("0 seconds"))
for second in range(6):
    moment = BEGIN + pd.Timedelta(days=3, seconds=second)
    new = {
        "trades": [(f"c{each:03d}", moment, each % 2, 100_000 + 4 * second + each, 10.0) for each in range(4)],
        "customers": [(f"c{second % 4:03d}", moment, 0, "gold")],
    }
    for name, rows in new.items():
        made = pd.DataFrame(rows, columns=records[name].columns)
        records[name] = pd.concat([records[name], made])
        write(name, made)
    time.sleep(1)
while query.progress.inputs[0].rows_in < len(records["trades"]) + 3:  # and the three that can't be read
    query.await_termination(0.5, progress=False)
query.await_termination(3, progress=True)
query.stop()

# %% [markdown]
# What the watermark has reached came out while it ran. The last rows wait: five seconds of disorder are allowed.
# `explain` says what the newest trade waits for.

# %%
waiting = cj.read_state(spark, "lake/checkpoint").buffered["trades"].agg(F.max("trade_id")).first()[0]
print(cj.explain(spark, "lake/checkpoint", input="trades", row={"trade_id": waiting}))

# %% [markdown]
# `drain=True` ends both inputs, and everything comes out. History and live rows are in one table, and pandas'
# `merge_asof` over all records gives the same rows: none is missing, and none is there twice.

# %%
query = start(cj.Trigger.available_now(drain=True))
query.await_termination(progress=False)
enriched = spark.read.format("delta").load("lake/enriched").orderBy("trade_id").toPandas()
left, right = (each.sort_values("event_time", kind="stable") for each in records.values())
expected = pd.merge_asof(left, right, on="event_time", by="customer", suffixes=("", "_customer"))
expected = expected.sort_values("trade_id")
assert enriched["trade_id"].tolist() == expected["trade_id"].tolist()
assert enriched["tier"].fillna("none").tolist() == expected["tier"].fillna("none").tolist()
print(f"{len(enriched):,} rows, as pandas has them")

# %% [markdown]
# ## How do I write into a topic?
#
# With `cj.sinks.kafka`, as the output, the rejected rows or a side output. Each row is a record: JSON of all columns, or
# of some (`value=["trade_id", "tier"]`), or one column of texts or bytes as it is (`value="payload"`). `key` is a column,
# or several, which make a JSON object. A key's rows are in one partition, in the order in which the join emits them.
# The topic must exist. `value=cj.kafka.avro(registry)`, `protobuf` and `json_schema` write by a schema registry: with the
# newest version of the subject `<topic>-value`, or `schema=` a version, whose fields say which columns are written. A
# subject that does not exist gets a schema of all columns. A row that does not fit the schema ends the query.

# %%
admin.create_topics([NewTopic("guide-enriched", 4, 1)])["guide-enriched"].result(timeout=30)
sink = cj.sinks.kafka(KAFKA, "guide-enriched", key="customer", timestamp="event_time")
columns = {"key": "customer", "event_time": "event_time"}
columns["watermark"] = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
inputs = [cj.Input(source(name), **columns, name=name) for name in TOPICS]
joined = cj.connect(*inputs, key_groups=2).asof_join(suffixes=("", "_customer"))
query = joined.start(output=sink, checkpoint="lake/into", trigger=cj.Trigger.available_now(drain=True))
query.await_termination(progress=False)

written = cj.kafka.source(KAFKA, "guide-enriched", schema="trade_id long, tier string").open(streaming=False)
assert written.count() == written.select("trade_id").distinct().count() == len(records["trades"])

# %% [markdown]
# It is **exactly once** for consumers with `isolation.level=read_committed`. Each micro-batch is one transaction, which
# holds its rows and a marker: an offset of the consumer group `cojoin-QUERY-OUTPUT`, whose metadata says which batch of
# which execution it was. A batch that is run again after a crash is skipped if the marker says so, and refused if it
# would now be another one. A transaction can't span processes, so one task writes a batch's rows.
#
# | `delivery` | what consumers of committed records see |
# |---|---|
# | `"exactly_once"` | each row once, all rows of a batch at one moment |
# | `"exactly_once_parallel"` | each row once; several tasks write a batch (`tasks=`), so a part of it may come first |
# | `"at_least_once"` | a batch that is run again is there twice; all tasks write, without transactions |
#
# | in the rows | in JSON, as Spark's `to_json` writes it |
# |---|---|
# | `timestamp`, `timestamp_ntz`, `date` | `"2026-01-09T09:30:00.000125Z"`, the same without `Z`, `"2026-01-09"` |
# | numbers, decimals, booleans | as they are; NaN and infinities as texts: `"NaN"`, `"Infinity"` |
# | binary | base64 |
# | arrays, structs, maps | arrays and objects; a map's keys are texts |
# | null | the field is left out |
#
# What to know before it runs for long:
#
# * The user needs WRITE and READ on the topic, and WRITE on the transactional ids and READ on the groups that begin with
#   `cojoin-`.
# * A transaction must end within `transaction.timeout.ms`, 5 minutes here; `options=` takes another value, up to the
#   brokers' `transaction.max.timeout.ms`. While a killed run's transaction is open, consumers wait for at most so long.
# * The brokers forget a marker `offsets.retention.minutes` after the query stopped, 7 days by default. A query that stood
#   still for longer is refused, since its checkpoint may be an older one that was put back. If it is the newest one,
#   `missing_marker="expired"` lets it go on, as a job that runs once a week may need. One that was killed within a batch
#   can't go on, for nobody knows whether the topic has that batch.
# * Another run that takes over fences off a former one, in Kafka and by the epoch in the marker.
# * A topic can't be cut back. A query that is restored from another one's snapshot goes on in its topic only if nothing
#   was written there after the snapshot, as after a savepoint of a stopped query; otherwise name a new topic.
#
# For the command line, write `NAME = cj.sinks.kafka(...)` into the job's file, and give `--output NAME`.

# %% [markdown]
# ## What if Kafka no longer has the older records?
#
# Keep them in an **archive**: a Delta table or parquet files with `topic`, `partition`, `offset` and `timestamp`, as
# Spark's Kafka source gives them, and the columns of `schema` or the raw `value`. What the archive holds is read from
# there, the rest from the topic. Positions stay Kafka's, so a checkpoint knows nothing of the archive. Here the archive
# has everything before Friday, and then the topic loses nearly all of that.

# %%
parts = {"key": cj.kafka.key(), "timestamp": cj.kafka.timestamp()}
source("trades", to="2026-01-09", columns=parts).open(streaming=False).write.format("delta").save("lake/archive")
archive = spark.read.format("delta").load("lake/archive")
kept = archive.groupBy("partition").agg(F.max("offset") - 50).collect()
for done in admin.delete_records([TopicPartition(TOPICS["trades"], *each) for each in kept]).values():
    done.result(timeout=30)
options = {"the topic": {}, "the archive and the topic": {"archive": cj.sources.delta("lake/archive")}}
counts = {name: source("trades", **each).open(streaming=False).count() for name, each in options.items()}
assert counts["the archive and the topic"] == len(records["trades"])
pd.DataFrame({"trades found": counts})

# %% [markdown]
# Where records are in neither of them, a new query is refused before it starts. This archive lacks Thursday:

# %%
archive.where("event_time < '2026-01-08'").write.format("delta").save("lake/wednesday")
try:
    source("trades", archive=cj.sources.delta("lake/wednesday")).check(is_new=True)  # as `start` does
except cj.ConfigurationError as error:
    print(textwrap.fill(str(error), 110, break_on_hyphens=False))

# %% [markdown]
# A query whose next records are deleted before it has read them ends with an error, which names each partition and the
# number of records. With `data_loss="skip"` it goes on, and each range of lost offsets is a row of `rejected` with the
# reason `gone`. A topic that was deleted and created anew always ends the query, for its offsets are other records.
#
# ## What if timestamps say nothing of event time?
#
# For example, the topic was copied lately, and its records have the time of the copy. As soon as timestamps are later
# than event times by more than `max_drift`, what the source says of silent partitions is not used. Then the watermark
# follows the rows alone. No row becomes late because of that, but a silent partition holds time back, and more rows
# wait. The last line of a run (`query.progress.ending()`) says so.
#
# ## Can I use Spark's own Kafka source?
#
# Yes. Decode its DataFrame, and name the columns that a `cj.kafka.source` sets by itself:
#
# ```python
# cj.Input(decoded_df, key="customer", event_time="event_time", partition=["topic", "partition"], sequence="offset")
# ```
#
# It reads each partition at a speed of its own, so a replay buffers far more. And it is a plain DataFrame, so a new
# query can't be started from a snapshot of such a query ([03_checkpoints.ipynb](03_checkpoints.ipynb)).
#
# ## What does a replay cost?
#
# Measured on 2 cores with a broker beside it: 2 million trades and 200,000 customer records of three weeks, in 4
# partitions each, into Delta. Every result of a join was compared with an oracle.
#
# | | seconds | late rows | most rows buffered |
# |---|---|---|---|
# | plain Spark: read, decode and write, no join | 30 to 33 | - | - |
# | `cj.kafka.source`, `max_drift="10 minutes"`, 5 seconds of disorder | 30 to 34 | 0 | 1,001 |
# | Flink in Java: its Kafka source and a function, into parquet, without checkpoints | 20 | 0 | - |
# | Spark's source, one watermark for each partition | 107 (earlier version, busy machine) | 0 | 1,306,342 |
# | Spark's source, one watermark for each topic | 121 (earlier version, busy machine) | 267,193 | 337,279 |
#
# For comparison, ten minutes and five seconds of these topics hold at most 1,227 rows. Of some 31 seconds, 7 pass
# before the stream starts and 5 until the first batch calls the function, since Spark starts a process for each source,
# one after the other; the batches take 14 and the end 3. Flink's cluster was up before the clock started. The replay
# took 2.3 to 2.8 GB of memory, of which 1 GB was the heap of the JVM. `python -m benchmarks.replay` repeats it, and
# with `--kills` kills it and starts it again. `python -m benchmarks.replay.live` goes on live while a producer writes,
# and stops the broker for half a minute.
#
# ## And on the command line?
#
# ```
# cojoin init --kafka topics.py
# cojoin run topics.py:enriched --set since=2026-01-07 --then-live '10 seconds' \
#   --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched
# ```
#
# `cojoin init` writes a file with the join of two topics, to be changed where the comments say: the topics' columns, the
# watermark, `with_idleness`, the login, with a password from the environment. `cojoin run` gives its function the session
# and the arguments of `--set`, and starts the join: the history, and then new records until Ctrl-C (`--then-live`); the
# same command continues from the checkpoint. `--output NAME` writes to a sink of the file, such as a topic.
#
# [06_operations.ipynb](06_operations.ipynb) watches, stops and restarts a query, and [07_speed.ipynb](07_speed.ipynb)
# sizes it.

# %%
for gone in admin.delete_topics([*TOPICS.values(), "guide-enriched"]).values():
    gone.result(timeout=30)
spark.stop()

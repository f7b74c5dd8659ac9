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
# # Operate a query
#
# A query that runs for months raises questions. Is it healthy? What holds it back? Which rows were refused, and why?
# What may I change? What do I do about this error? This guide answers them with one small query: **trades** of two
# desks, London and Tokyo, are joined with the **customer** record in force. Tokyo's feed fails for 40 minutes.
#
# It has these parts: [progress](#Is-the-query-healthy?), [what holds time back](#What-holds-time-back?),
# [alarms](#Which-alarms-are-worth-having?), [seen from outside](#How-do-other-tools-see-it?),
# [rejected and late rows](#Which-rows-were-refused?), [the bound](#How-large-must-the-bound-be?), [a scheduled
# job](#How-do-I-run-it-as-a-scheduled-job?), [a second join](#Which-bound-does-a-second-join-of-the-output-need?), [outputs](#What-is-in-the-outputs?), [state](#How-large-is-the-state?), [the checkpoint
# directory](#What-is-in-the-checkpoint-directory?), [backups](#How-do-I-back-up-a-query,-and-put-it-back?), [changes
# and upgrades](#What-may-I-change?), [rescaling and forks](#How-do-I-rescale-or-fork-a-query?), [one query at a
# time](#What-keeps-a-second-query-away?), [S3](#How-do-I-keep-a-query-on-S3?), [the command
# line](#What-does-the-command-line-do?), [your own Spark session](#What-does-my-own-Spark-session-need?), [Spark Connect
# and Databricks](#Does-it-run-with-Spark-Connect,-and-on-Databricks?), and [a runbook of
# errors](#What-do-I-do-about-this-error?).
#
# It needs Java 17 and `pip install "cojoin[metrics]" matplotlib opentelemetry-sdk opentelemetry-exporter-prometheus`.

# %%
import os
import shutil
import tempfile
from pathlib import Path

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML
from pyspark.sql import functions as F

import cojoin as cj

os.chdir(tempfile.mkdtemp())  # all paths below are in here
spark = cj.spark_session(
    "06_operations",
    master="local[2]",
    conf={
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # a short session starts faster
    },
)


def table(text):
    """Show a table: its rows are lines, indented lines go on with a row, and " | " parts the cells."""
    rows = [row.split(" | ") for row in text.strip().replace("\n  ", " ").splitlines()]
    shown = pd.DataFrame(rows[1:], columns=rows[0]).to_html(index=False, border=0, justify="left")
    return HTML(shown.replace("<td>", '<td style="text-align: left; vertical-align: top">'))


# %% [markdown]
# ## The query
#
# Files of 20 minutes each arrive in two folders. `partition="desk"` gives each desk a watermark of its own, as a Kafka
# topic's partitions have. Each call of `run` is a scheduled run: it takes the files that are there, and pauses.

# %%
COLUMNS = {
    "trades": "trade_id long, customer string, desk string, event_time timestamp, amount double",
    "customers": "customer string, event_time timestamp, tier string",
}
NAMES, TIERS = ["ann", "bob", "cid", "dee"], ["bronze", "silver", "gold"]


def at(minute):
    return pd.Timestamp("2026-01-15 09:00", tz="UTC") + pd.Timedelta(minutes=minute)


def trades_of(desk, number, first_id):
    """Make a desk's trades of one file, one every two minutes."""
    minutes = range(20 * number, 20 * number + 20, 2)
    return [(first_id + minute, NAMES[minute // 2 % 4], desk, at(minute), 10.0 + minute) for minute in minutes]


def versions_of(number):
    return [(name, at(20 * number + 4 * place), TIERS[(number + place) % 3]) for place, name in enumerate(NAMES)]


def arrive(name, number, rows):
    """Write a file, as another system would."""
    columns = [column.split()[0] for column in COLUMNS[name].split(", ")]
    path = Path(f"lake/{name}/{number}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=columns).to_parquet(path, coerce_timestamps="us")
    os.utime(path, (number, number))  # a stream takes the oldest file first


def join(key_groups=2, files_per_batch=1, **columns):
    inputs = [
        cj.Input(
            cj.sources.files(f"lake/{name}", "parquet", schema=schema, options={"maxFilesPerTrigger": files_per_batch}),
            key="customer",
            event_time="event_time",
            name=name,
            partition="desk" if name == "trades" else (),
            watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("1 minute"),
        )
        for name, schema in {**COLUMNS, **columns}.items()
    ]
    return cj.connect(*inputs, key_groups=key_groups).asof_join()


def run(joined, checkpoint="lake/checkpoint", **options):
    query = joined.start(
        output=cj.sinks.delta("lake/enriched"),
        checkpoint=checkpoint,
        trigger=cj.Trigger.available_now(),
        **options,
    )
    query.await_termination(progress=False)
    return query


# %% [markdown]
# ## Is the query healthy?
#
# The first three files arrive. Tokyo has trades in the first file only, and two of London's rows are broken: one has no
# customer, one has no time. `query.progress` is the report of the newest batch, and `ending()` says in a sentence how a
# bounded run ended.

# %%
broken = [(501, None, "london", at(22), 1.0), (502, "ann", "london", pd.NaT, 2.0)]
arrive("trades", 0, trades_of("london", 0, 0) + trades_of("tokyo", 0, 1000))
arrive("trades", 1, trades_of("london", 1, 0) + broken)
arrive("trades", 2, trades_of("london", 2, 0))
for number in range(3):
    arrive("customers", number, versions_of(number))
query = run(join())
print(query.progress.ending())

# %%
print(query.progress.table())

# %% [markdown]
# The counts are totals since the query's first batch. For each input *rows in = done + buffered + rejected*, and
# `query.progress.is_conserved` checks it. All that the table shows, and more, can be read by a program:
#
# | of `query.progress` | what it says |
# |---|---|
# | `batch_id`, `processing_time` | the batch, and its time by the clock in epoch milliseconds |
# | `watermark`, `holding_input` | how far the join's time has come, and the input that holds it back |
# | `rows_out`, `emitted` | output rows since the first batch; rows of this batch alone, by output |
# | `state_bytes`, `state_bytes_by_key_group`, `details` | sizes; versions in force or timers that wait |
# | `inputs[0]`, `inputs[1]` | the left and the right input, with what follows |
# | ... `rows_in`, `done`, `buffered`, `rejected`, `late_applied` | its counts; `rejected` is by reason |
# | ... `watermark`, `max_timestamp`, `lag` | its time, the largest event time seen, and the milliseconds between them |
# | ... `status` | `"active"`, `"idle"` or `"finished"` |
# | ... `partitions`, `holding_partition`, `idle_partitions` | each partition's watermark; the last one; idle ones |
# | ... `held_by` | of Kafka: why the holding partition's watermark is later than its rows; None where it is not |
# | ... `promise`, `late_commits`, `late_commit` | of a table's changes by commit: until when it is known, and which commits broke that |
# | ... `idle_after_ms`, `quiet_since` | when it goes idle; since when it had no row, by runs that read all there is |
# | ... `source_agrees` | of Kafka: whether records' timestamps are near their event times (`max_drift`) |

# %%
trades = query.progress.inputs[0]
assert query.progress.is_conserved
print(query.progress.holding_input, trades.holding_partition, f"{trades.lag / 60_000:.0f} minutes behind")

# %% [markdown]
# ### The line of progress
#
# `query.await_termination()` draws one in a terminal and in a notebook. `progress=False` leaves it out; `progress=True`
# writes plain lines into a log as well, at most one every five seconds and only after new batches. It looks like this:
#
# ```text
#  62%|██████▏   | 01:35<00:58, 01-15 trades 08:14:37 (12 late), customers 08:12:04, 21.4k rows/s, held by customers ...
# ```
#
# First comes the share of the range of event time that is done, then the time since the start and the time that is
# left. Each input's watermark follows, with `(idle)` and `(12 late)`. Where there is room, the line goes on with the
# rows a second, what holds time back (`held by partition 3 of customers`; `silent`, if that partition has no newer
# rows, and `max_drift`, if Kafka's source counts it as that far behind), how far the watermarks are apart (`drift`), and
# the rows that wait. The bar needs a source that knows its range, as `cj.kafka.source` does; a query of files or Delta
# tables shows the number of its batches instead. One that has come to the end of a range that goes on shows how far its
# watermark is behind the newest record.
#
# ### The table of progress
#
# The checkpoint keeps the same figures as a Delta table, `progress`, with a row for each batch that had content;
# further below it is plotted, and asked by SQL. Rows are added after 20 batches, with the first batch that comes a
# minute or more after the last rows, and at the end of a run. So ask `cj.read_progress(spark, path)`, which also reads
# the batches that are not in the table yet. Times are timestamps there: a watermark is null before every input has
# spoken, and at the end of time. Besides most of what `query.progress` has, there are
#
# * `durations_ms`: the milliseconds of `execute` (the one job that reads, shuffles, joins and writes files), of `calls`
#   (the key groups' calls within it, added up over all cores), of each output that had rows, and of a `snapshot` where
#   one was taken;
# * `offsets`, the positions of the sources after the batch, and `outputs`, the versions of the Delta tables.
#
# ## What holds time back?
#
# The watermark of a join is the least of its inputs' watermarks, and an input's is the least of its active partitions'.
# So one silent partition holds everything, and the table above names it: `["tokyo"]`. To ask for one row, use
# `cj.explain`, or `cojoin checkpoints explain`; it only reads, also while the query runs:
#
# ```text
# >>> print(cj.explain(spark, "lake/checkpoint", input="trades", row={"trade_id": 30}))
# row trade_id=30 of 'trades', after batch 2 (watermark 2026-01-15 09:16:59.999)
#   The row trade_id=30, customer=dee, desk=london, event_time=2026-01-15 09:30:00, amount=40.0 of
#     'trades' is buffered since batch 1: it is emitted when the watermark reaches 2026-01-15
#     09:30:00.000; it is at 2026-01-15 09:16:59.999, held by 'trades' partition ["tokyo"], 13 min 0 s
#     behind.
# ```
#
# This trade of London waits although its customer's records have come: time is one for the whole join, and a trade of
# Tokyo of 09:18 might still come. What you may find:

# %%
table("""
what you see | what it means | what to do
an active input, with one partition in holding_partition | the partition is silent or slower than the others | repair
  its feed; or let silent partitions go idle, with_idleness('5 minutes')
an input whose watermark is none | it has had no row with a time yet: an empty source, a wrong path, a filter that
  leaves nothing | see rows in; with_idleness(..., even_if_silent=True) where it may well stay empty
both inputs active, and the lag is about the strategy's bound | normal: rows wait for as long as others may come out
  of order | nothing; a smaller bound makes results earlier and more rows late
a bounded run ended, and rows wait | normal: a pause keeps what waits, and the next run goes on | run again;
  Trigger.available_now(drain=True) if no more rows will ever come
all inputs idle, and time stands still | nothing says how far time may go | connect(..., when_all_idle='max') goes to
  the larger of the watermarks
a Delta table's history is being read, and its input stands still | time comes no further than the least event time of
  the files that are still unread | a larger maxFilesPerTrigger, or a table that is clustered by event time
connect has hold_left_until=, and the right has not come so far | as asked: left rows wait for the right's first load
  | wait; the right's watermark must reach that time, or the right be idle or finished
source_agrees is False for a Kafka input | its records' timestamps are later than their event times by more than
  max_drift, so silent partitions hold time | a larger max_drift, or with_idleness
""")

# %% [markdown]
# ### When silence no longer holds time
#
# `with_idleness("5 minutes")` leaves a partition out of the minimum once it has been silent for so long by the
# micro-batches' clock, while the query runs, or over runs that each read all there is, from one to the next (guide
# [05](05_semantics.ipynb)): a daily job takes `with_idleness("20 hours")`. The harness shows it without Spark: it runs the same operator, and the
# clock moves only when it is told to.

# %%
from cojoin.testing import AsofJoin, Harness, HarnessInput

strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_idleness("5 minutes")
harness = Harness.of(
    AsofJoin(),
    input1=HarnessInput("customer string", key="customer", name="trades", watermark=strategy),
    input2=HarnessInput("customer string, tier string", key="customer", name="customers"),
)
harness.process_watermark2(at(60).value // 1_000_000)
steps = []
for minute in (0, 2, 4, 6, 8, 10):
    harness.set_processing_time(at(minute).value // 1_000_000)
    harness.process_element1(("ann",), at(minute), partition="london")
    if minute in (0, 10):
        harness.process_element1(("bob",), at(minute), partition="tokyo")
    trades = harness.report().inputs[0]
    watermark = pd.Timestamp(harness.current_watermark(), unit="ms")
    steps.append((f"{at(minute):%H:%M}", f"{watermark:%H:%M:%S}", trades.holding_partition, *trades.idle_partitions))
pd.DataFrame(steps, columns=["clock", "the join's watermark", "held by", "idle"]).fillna("")

# %% [markdown]
# Tokyo's silence counts from the first batch without a row of it, so it is idle in the batch of 09:08, and its next row
# wakes it. What comes from it behind the watermark is late then; with idleness you choose between late rows and
# waiting. `returning="skip"` leaves a partition that returns out until it has caught up, so that it does not hold the
# others meanwhile.
#
# A strategy with idleness makes the query look at the clock, in batches without rows. A run that ends
# (`Trigger.available_now()`) may begin to do so on any checkpoint. A query that runs on may do so where it did at its
# first start, so give `with_idleness` then, or add it with `restore_from`. A partition of files or Delta tables whose
# rows lie in files that were not read yet looks silent, too, so choose a timeout that is longer than catching up takes.
#
# ## What happens when Tokyo comes back?
#
# Here nothing was idle, so nothing is lost. Before the next run we copy the checkpoint, for a later section. Then
# Tokyo's trades of the outage arrive together with new ones, one of London's is more than an hour late, and one
# customer's record comes late.

# %%
shutil.copytree("lake/checkpoint", "backup/checkpoint")
late_trade, late_record = (503, "bob", "london", at(25), 3.0), ("ann", at(82), "silver")
outage = trades_of("tokyo", 1, 1000) + trades_of("tokyo", 2, 1000)
arrive("trades", 3, outage + trades_of("tokyo", 3, 1000) + trades_of("london", 3, 0))
arrive("trades", 4, trades_of("tokyo", 4, 1000) + trades_of("london", 4, 0))
arrive("trades", 5, trades_of("tokyo", 5, 1000) + trades_of("london", 5, 0) + [late_trade])
for number in range(3, 6):
    arrive("customers", number, versions_of(number) + [late_record] * (number == 5))
query = run(join())
print(query.progress.table())

# %% [markdown]
# The picture shows all six batches: each partition's watermark, the join's, which is the least of them, and the rows
# that wait.

# %%
steps = (
    cj.read_progress(spark, "lake/checkpoint")
    .selectExpr(
        "batch_id",
        "watermark",
        "inputs[0].partitions['[\"london\"]'] AS london",
        "inputs[0].partitions['[\"tokyo\"]'] AS tokyo",
        "inputs[1].watermark AS customers",
        "inputs[0].buffered AS trades_waiting",
        "inputs[1].buffered AS customers_waiting",
    )
    .toPandas()
)
figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 5), sharex=True, height_ratios=[2, 1], layout="constrained")
for name, label, colour in (
    ("london", "trades, London", "#3b7dd8"),
    ("tokyo", "trades, Tokyo", "#c8553d"),
    ("customers", "customers", "#7a9e7e"),
):
    upper.plot(steps["batch_id"], steps[name], "o-", color=colour, label=label, markersize=6)
upper.plot(steps["batch_id"], steps["watermark"], "k--", label="the join", linewidth=2)
upper.yaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
upper.set_ylabel("watermark (UTC)")
upper.set_title("Tokyo is silent in batches 1 and 2, and holds the join", loc="left", fontsize=10)
upper.legend(frameon=False, fontsize=9)
lower.bar(steps["batch_id"], steps["trades_waiting"], 0.5, color="#9dbfec", label="trades")
lower.bar(
    steps["batch_id"],
    steps["customers_waiting"],
    0.5,
    bottom=steps["trades_waiting"],
    color="#bcd0be",
    label="customers",
)
lower.set_ylabel("rows that wait")
lower.set_xlabel("batch")
lower.legend(frameon=False, fontsize=9)
for axes in (upper, lower):
    axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Which alarms are worth having?
#
# Most of these figures are in `query.progress` and, a row a batch, in the table `progress`. The thresholds are for a
# start.

# %%
table("""
figure | alarm when | meaning | what to do
query.is_active, query.exception() | not active, or an exception | the query ended | look the message up in the
  runbook below; start it again
seconds since the newest processing_time, while rows come | 10 times what a batch takes | the query hangs, or batches
  grow | Spark's UI; durations_ms of the last batches
execute + output, of durations_ms | above 80 % of the trigger's interval | the query is about to fall behind | guide
  07: more cores, fewer key groups, a longer interval
lag_ms of an input | the strategy's bound + 3 times the interval between its rows | a partition is behind the others |
  holding_partition names it; see the table above
processing_time - watermark, in live operation | the bound + what you promised | results are late, whatever the reason
  | holding_input, then the source's backlog
buffered of an input | rows a second * (bound + usual lag in seconds) * 3 | rows wait: time stands still, or one input
  is far ahead | as for lag_ms; state grows meanwhile
rejected['late'] since the batch before | above 0.1 % of rows_in | rows come later than the bound says | a larger
  bound; compare the late rows' event times
late_commits | any | a writer's clock is slow by more than clock_skew | set its clock; a longer clock_skew of
  cj.sources.delta
rejected, all other reasons | any, then above the usual share | broken rows, or a wrong clock at the source | read the
  rejected rows, below
late_applied | above 0.1 % of rows_in | versions came after trades that needed them | as for late
status | 'idle' for an input that must not be silent | time goes on without it, and its rows will be late | repair the
  feed
state_bytes | twice that of a week ago | keys or rows that are never forgotten | the section on state, below; a
  tolerance, a retention or a time-to-live
state_bytes_by_key_group | the largest is 10 times the median | one key has most of the rows |
  read_state(...).largest_keys()
is_conserved | False | a defect of cojoin's | keep a copy of the checkpoint and report it
age of the newest snapshot (cojoin checkpoints list --json) | 3 times checkpoint_interval | nothing to restore from |
  query.savepoint(); look for warnings of the driver's log
""")

# %% [markdown]
# An alarm can be one query in SQL. Here: inputs that lag by more than ten minutes, and rows that were refused since the
# batch before.

# %%
cj.read_progress(spark, "lake/checkpoint").createOrReplaceTempView("progress")
spark.sql("""
    WITH steps AS (
        SELECT batch_id, input.*, aggregate(map_values(input.rejected), 0L, (sum, each) -> sum + each) AS refused_so_far
        FROM progress LATERAL VIEW explode(inputs) AS input
    ), changes AS (
        SELECT batch_id, name, round(lag_ms / 60000) AS lag_minutes, holding_partition, buffered,
               refused_so_far - lag(refused_so_far, 1, 0L) OVER (PARTITION BY name ORDER BY batch_id) AS refused,
               rows_in = done + buffered + refused_so_far AS is_conserved
        FROM steps
    )
    SELECT *, concat_ws(', ', IF(lag_minutes > 10, 'lag', NULL), IF(refused > 0, 'refused', NULL)) AS alarms
    FROM changes WHERE name = 'trades' ORDER BY batch_id
""").toPandas()

# %% [markdown]
# ## How do other tools see it?
#
# A query shows itself to tools that know nothing of cojoin in three ways. All of them follow the batches that count, in
# the process that started the query (with Spark Connect, the client), and none can stop it: what fails is logged once,
# with its reason, and the query goes on.
#
# Spark's own listeners and its page of the query work as for any other. Only where the workers read and pack the rows
# (`reading` is `direct`) Spark's `numInputRows` counts pieces of many rows; `query.progress` counts rows.
#
# ### A function of yours
#
# `start(..., on_progress=function)` calls it with the report of each batch, in the order of the batches and in a thread
# of its own. It may take its time and it may call `query.stop()`. The end of the query waits ten seconds for it.
#
# ### Metrics
#
# `pip install "cojoin[metrics]"` adds OpenTelemetry's API. With an SDK that your program sets up, each query is
# measured; without one nothing is. Here Prometheus' exporter of the SDK serves them, which `pip install
# opentelemetry-sdk opentelemetry-exporter-prometheus` adds; an exporter for OTLP is set up in the same place. Set it up
# before the query starts, and give each query of a process a `name=` of its own.

# %%
from urllib.request import urlopen

from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
server, _ = start_http_server(0, addr="127.0.0.1")  # give it a port that your Prometheus knows

marks = []
query = join(files_per_batch=3).start(
    output=cj.sinks.delta("lake/measured"),
    checkpoint="lake/measured_checkpoint",
    trigger=cj.Trigger.available_now(),
    name="enrich-trades",
    on_progress=lambda report: marks.append(f"batch {report.batch_id}: {report.rows_out} rows out"),
)
query.await_termination(progress=False)
scraped = urlopen(f"http://127.0.0.1:{server.server_port}/metrics").read().decode()
shown = ("cojoin_input_rows_total", "cojoin_input_buffered", "cojoin_input_rejected_total")
print(*marks, *[line for line in scraped.splitlines() if line.startswith(shown)], sep="\n")
server.shutdown()

# %% [markdown]
# These are all metrics. Their names stay from release to release. Attributes have few values and nothing of a row, a
# key, a partition or a path in them. Counters begin at 0 in each process and go on from what the checkpoint has, so a
# batch that is run again after a crash is counted once; `rate` and `increase` know of the beginnings. After a
# query ends, its gauges keep their last values until a query of the same name starts, so that a scheduled run can push
# them to a collector before its process ends (`force_flush()` of your `MeterProvider`). Those whose names end with `lag`
# disappear.

# %%
from cojoin.metrics.metric_names import METRICS

described = [(each.name, each.prometheus, f"{each.kind}, {each.unit}", each.text) for each in METRICS]
table("\n".join(" | ".join(row) for row in [("metric", "in Prometheus", "kind, unit", "what it is"), *described]))

# %% [markdown]
# Each has `cojoin.query`; those of inputs have `cojoin.input`, and the others `cojoin.output`, `cojoin.reason` or
# `cojoin.part` as their texts say (`cojoin_query` and so on in Prometheus). The lag of event time is that of the clock
# at the moment of asking, so it also grows while a query hangs. The offsets that are unread are asked of Kafka after
# each batch and every ten seconds, once something has asked for the metrics; offsets of transactions' markers and of
# compacted records count, too. The queries of a dashboard:

# %%
table("""
panel | PromQL | alarm when
is it running | cojoin_query_active == 0 or absent(cojoin_query_active) | there is a result, for a query that must run
rows in, a second | sum by (cojoin_query, cojoin_input) (rate(cojoin_input_rows_total[5m])) |
  0, while there is unread input
rows out, a second | sum by (cojoin_query, cojoin_output) (rate(cojoin_output_rows_total[5m])) |
  0 for longer than is usual
results are behind the clock | max by (cojoin_query) (cojoin_query_event_time_lag_seconds) |
  the strategy's bound + what you promised
who holds time back | bottomk by (cojoin_query) (1, cojoin_input_watermark_seconds) | read it beside the panel before
inputs are apart, in seconds | max by (cojoin_query) (cojoin_input_watermark_seconds) - min by (cojoin_query)
  (cojoin_input_watermark_seconds) | it grows
unread records of Kafka | sum by (cojoin_query, cojoin_input) (cojoin_input_offset_lag) | it grows for half an hour
seconds until it has caught up | sum by (cojoin_query, cojoin_input) (cojoin_input_offset_lag) / sum by (cojoin_query,
  cojoin_input) (rate(cojoin_input_rows_total[5m])) | more than you can wait
rows that wait | sum by (cojoin_query, cojoin_input) (cojoin_input_buffered) | rows a second * (bound + usual lag) * 3
share of late rows | sum by (cojoin_query, cojoin_input)
  (rate(cojoin_input_rejected_total{cojoin_reason="late"}[15m])) / sum by (cojoin_query, cojoin_input) (rate(cojoin_input_rows_total[15m])) | above 0.001
other rejected rows, by reason | sum by (cojoin_query, cojoin_input, cojoin_reason)
  (increase(cojoin_input_rejected_total{cojoin_reason!="late"}[15m])) | above 0
versions that were applied late | sum by (cojoin_query, cojoin_input) (increase(cojoin_input_late_applied_total[15m])) |
  above the usual
batch seconds, of 95 in 100 | histogram_quantile(0.95, sum by (le, cojoin_query, cojoin_part)
  (rate(cojoin_query_batch_duration_seconds_bucket[15m]))) | above 80 % of the trigger's interval
it hangs | cojoin_query_active == 1 and on (cojoin_query) rate(cojoin_query_batches_total[10m]) == 0 | while there is
  unread input
restarts | changes(cojoin_query_epoch[1h]) | above 2
size of the state | max by (cojoin_query) (cojoin_query_state_size_bytes) | twice that of a week ago
the consumer group is not kept up | increase(cojoin_input_group_failures_total[15m]) | above 0: the driver's log has the
  reason
""")

# %% [markdown]
# ### A consumer group, for tools that watch its lag
#
# With `cj.kafka.source(..., group="enrich-trades")` a query commits the offsets that a batch has read to this consumer
# group, once the batch counts. So `kafka-consumer-groups.sh --describe --group enrich-trades`, Burrow, Kafka UI or a
# cloud's console show its lag: 0 at the end of a topic, also where the last offsets are markers of transactions or
# records of aborted ones; the records of an open transaction show as lag until it ends.
#
# The group is for looking only. Nothing is read from it, so changing its offsets changes nothing, and a restart sets
# them to what the checkpoint has. It is a group of your own without members: while a consumer is in it, Kafka refuses
# the commits. The user needs READ on the group. A commit costs one small request beside the batches, the newest wins, and
# the end of a bounded run waits for the last one. What is refused or not answered is tried again with the next batch,
# and every ten seconds.
#
# ## Which rows were refused?
#
# Rows that are not admitted go to the output `rejected`: a Delta table in the checkpoint, unless `start(rejected=...)`
# names another sink. It is made with the first such row. `watermark` is the join's before the batch, in epoch
# milliseconds, and `row` is the whole row as JSON. `batch_id` and `processing_time` are the batch and its time; a table
# of an earlier version gets these two columns with its next rows.

# %%
rejected = spark.read.format("delta").load("lake/checkpoint/rejected").orderBy("reason")
rejected = rejected.withColumn("watermark", F.timestamp_millis("watermark")).toPandas()
pd.set_option("display.max_colwidth", None)
rejected

# %% [markdown]
# | reason | meaning | what to do |
# |---|---|---|
# | `null_key` | a column of the key is null | repair the source; in a left, right or full join `Input(null_key="unmatched")` lets them out without a match |
# | `null_event_time` | the event time is null | the same; often a time that could not be parsed |
# | `too_far_ahead` | ahead of the batch's clock by more than `Input(max_ahead=)`, a day by default | repair the clock |
# | `time_beyond_python` | the row of a function has a time beyond the years 1 to 9999 | repair or filter the row at its source |
# | `late` | at or below the join's watermark before its batch | a larger bound, or the job for late rows, both below |
# | `undecodable` | Kafka: the record can't be decoded | repair the producer or the schema |
# | `tombstone` | Kafka: a record without a value | `tombstones="keep"` with `temporal_join` |
# | `gone` | Kafka: a range of offsets that aged out, with `data_loss="skip"` | longer retention, or run more often |
# | `no_moment` | beyond the range of its `time_unit=`, or in an hour of a clock change with `clock_change="reject"` | repair the time |
# | `ends_before_it_begins` | `Input(valid_from=, valid_to=)`: a row's end is before its begin | repair the table |
# | `erased` | the row waited when its key was taken out of the state by `cj.erase` | nothing; guide [03](03_checkpoints.ipynb) |
#
# As-of and temporal joins reject a late *trade*, whose result could not come out in order any more; a late *record* of
# the right is applied to all trades to come, and counted as `late_applied`. Interval joins, and functions in event-time
# order, reject on both sides; functions in the order of arrival get late rows like any others. `Input(late="reject")`
# and `Input(late="apply")` say otherwise. (A function in event-time order can only reject.)
#
# ### How do I process rejected rows again, each once?
#
# `cj.read_rejected` reads the rejected rows of an input in the input's own columns. Each has a `row_id`, which is the
# same whenever it is read, also of two rows that are equal in all columns.

# %%
refused = cj.read_rejected(spark, "lake/checkpoint", "trades")
refused.drop("row", "watermark").orderBy("trade_id").toPandas()

# %% [markdown]
# Never write such rows into the input again: time has passed them, so they would be late there once more. A join of
# static rows knows no lateness: the repaired rows are joined with all customers, and appended to a table that keeps
# their ids. This table is the set of what was
# processed again, written with the rows in one transaction. An anti-join by it leaves what was not, so the job below may
# run as often as it likes, also after it was killed; one at a time, since Delta lets two appends pass. (Where two may
# run, `MERGE` by `row_id`, with an insert where none matches.)
#
# A late trade needs no repair, only this job. It has no row in the output yet, so it is in one table or the other, and a
# view over both (`UNION ALL`) has each trade once. In the query's own output it would be late for a second join that
# reads it. The customers must have their history, as here: a table that has only the present records would give the
# present one. Of a table with a change data feed this is its history, for a column of event time:
#
# ```python
# feed = spark.read.option("readChangeFeed", "true").option("startingVersion", 0).format("delta").load("lake/customers")
# customers = feed.where("_change_type IN ('insert', 'update_postimage')")
# ```

# %%
repairs = [(501, "bob", None), (502, None, at(23).to_pydatetime())]  # what the desk has found out


def process_again():
    repaired = cj.read_rejected(spark, "lake/checkpoint", "trades")
    if Path("lake/repaired/_delta_log").exists():
        done = spark.read.format("delta").load("lake/repaired")
        repaired = repaired.join(done, "row_id", "left_anti")
    found = spark.createDataFrame(repairs, "trade_id long, right_customer string, right_time timestamp")
    repaired = repaired.join(found, "trade_id", "left")
    repaired = repaired.where("reason = 'late' OR right_customer IS NOT NULL OR right_time IS NOT NULL").selectExpr(
        "row_id",
        "trade_id",
        "coalesce(right_customer, customer) customer",
        "desk",
        "coalesce(right_time, event_time) event_time",
        "amount",
    )
    customers = spark.read.schema(COLUMNS["customers"]).parquet("lake/customers")
    pair = cj.connect(
        cj.Input(repaired, key="customer", event_time="event_time", name="trades"),
        cj.Input(customers, key="customer", event_time="event_time", name="customers"),
    )
    pair.asof_join().to_dataframe().write.format("delta").mode("append").save("lake/repaired")


for _ in range(3):
    process_again()
spark.read.format("delta").load("lake/repaired").orderBy("trade_id").toPandas()

# %% [markdown]
# ## How large must the bound be?
#
# `cj.lateness` reads rows of the past, in the order in which they arrived, and counts how far each is behind the newest
# event time before it. That is what the watermark goes by: with `for_bounded_out_of_orderness(bound)` a row is late if
# it is further behind than the bound. It takes static DataFrames, sources and rows in memory. The order of arrival is a
# column, such as the time of loading. Of a source it is known: the time of a Delta table's commit, of a file, or the
# offset within each partition of a topic. Here are 100,000 orders of one day, of shops of which some are offline for a
# while:

# %%
import numpy as np

dice = np.random.default_rng(6)
millis = np.sort(dice.integers(0, 86_400_000, 100_000))
offline = np.where(dice.random(100_000) < 0.002, dice.exponential(2_400_000, 100_000), 0)
delays = (dice.exponential(4_000, 100_000) + offline).astype("int64")
midnight = pd.Timestamp("2026-01-15", tz="UTC")
orders = pd.DataFrame(
    {
        "ordered_at": midnight + pd.to_timedelta(millis, unit="ms"),
        "loaded_at": midnight + pd.to_timedelta(millis + delays, unit="ms"),
    }
)
found = cj.lateness(orders, event_time="ordered_at", arrival="loaded_at")
found

# %%
axes = cj.plots.plot_lateness(found)
plt.show()

# %% [markdown]
# `found.bound_for(0.999)` is a bound that a strategy takes. What it costs, and what the other way costs:
#
# | | a larger bound | a smaller bound, and the late rows later |
# |---|---|---|
# | results come | later, all of them by the bound | soon; those of late rows with the next job |
# | state | holds the rows of the bound's time | small |
# | the output | one table, complete | two tables, and a view over both |
# | a row beyond the bound | is `late` as well: no bound is enough for every outage to come | the same job takes it |
#
# A good bound is where the line becomes flat: here a minute leaves 0.2 % of the rows late, and each further row costs many
# minutes for all. The job for late rows takes the rest. Where results may wait, take a bound for 99.9 % or for all of
# the rows; the second promises nothing about tomorrow, so keep the job, and the alarm for the share of late rows.
# Measure both inputs: a late *customer* is not rejected, but trades that are out keep the record before it.
#
# A job that runs once an hour reads an hour at a time, and rows of one micro-batch make none of them late:

# %%
found = cj.lateness(orders, event_time="ordered_at", arrival="loaded_at", every="1 hour")
print(f"{found.late('0 seconds')} of {found.rows:,} are late without a bound, and none with {found.bound_for(1.0)}")

# %% [markdown]
# That is so where a run reads its rows in one micro-batch. `maxFilesPerTrigger` and the like make several of them, and
# then the first figure counts.
#
# ## How do I run it as a scheduled job?
#
# The job is a program that connects the inputs, starts the query with `Trigger.available_now()` and waits for its end.
# Every run has the same checkpoint, so it takes what has come since the last one.
#
# ```python
# # enrich.py
# query = joined.start(
#     output=cj.sinks.delta("/lake/enriched"), checkpoint="/lake/_cojoin/enriched", trigger=cj.Trigger.available_now()
# )
# query.await_termination(progress=False)  # raises QueryFailedError, so the program's exit code is not 0
# print(query.progress.ending())
# ```
#
# By cron, with a log, and a mail to `MAILTO` where it fails:
#
# ```text
# MAILTO=data@example.com
# 15 2 * * *  /opt/jobs/.venv/bin/python /opt/jobs/enrich.py >> /var/log/enrich.log 2>&1 || tail -5 /var/log/enrich.log
# ```
#
# By Airflow, in a process of its own, since a Spark session belongs to one:
#
# ```python
# from datetime import datetime, timedelta
#
# from airflow.providers.standard.operators.bash import BashOperator
# from airflow.sdk import DAG
#
# with DAG("enrich", schedule="15 2 * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1):
#     BashOperator(
#         task_id="enrich",
#         bash_command="/opt/jobs/.venv/bin/python /opt/jobs/enrich.py",
#         retries=3,
#         retry_delay=timedelta(minutes=2),
#         execution_timeout=timedelta(hours=2),
#     )
# ```
#
# | question | answer |
# |---|---|
# | When do rows come out? | In the run in which the join's watermark has passed them: both inputs must have come so far. The rows behind it, and with a bound those of the bound's time before the newest row, come with the next run. An input that has nothing new holds time; the last line of a run says how many rows wait, for which input, and which setting lets the watermark advance |
# | Is a date an argument? | No. The checkpoint knows what was read. Leave `catchup` off: a run after three days' pause takes all three days, and the same rows come out |
# | What may a retry do? | Start the same program again. A batch that was interrupted is run again, and written once. A start on another machine first watches the lease of the killed run for half a minute. It is refused while that run's process still lives, so give that a `retry_delay` to end |
# | What if a run is killed, by a timeout or a restart? | As above. `cron` does not start it again; the next day's run goes on |
# | What if two runs overlap? | The second is refused at once, before it reads or writes anything: `another query runs on it`, and its exit code is 1. The first does not notice. `max_active_runs=1`, or `flock -n` before the command in cron, spares the message |
# | Is the output there after the first run? | With the first row that comes out: a run without one makes no table |
# | May a run drain? | Only the last one of all: `drain=True` ends the inputs for good |
# | What must be watched? | The exit code; that the run has happened at all; and of `query.progress` or the table `progress` the share of late rows, and `buffered` of each input, which grows from day to day where something holds time |
# | When does the job for late rows run? | After it, in the same program or as the next task; it may be repeated at any time |
#
# Keep the alarm for "no run today" outside of the job. Airflow has one; for cron, let the job's last line write a file,
# and watch its age. The age of the newest row of the progress is no measure, since a run without new rows may write none.
#
# ## Which bound does a second join of the output need?
#
# The enriched rows may be the left input of another query, which looks up a second dimension: products, say, beside
# customers. How late do they come?

# %%
cj.lateness(cj.sources.delta("lake/enriched"), event_time="event_time")

# %% [markdown]
# None is late, although trades came out of order. A query emits a row when its watermark passes the row's time, so no
# row of a batch is behind one of an earlier batch, and a batch is one commit of the table. A query reads no time from a
# commit that it has not read to its end, nor from a part of the table's first snapshot. So the second query needs
# **no bound**, which is the default, whatever the bound of the first one is: `cj.sources.delta("lake/enriched")` with
# `event_time="event_time"`.
#
# It holds for as-of and temporal joins that reject late left rows, by the left input's event time. It does not hold
# where rows come out at another time than that of the column. A pair of an interval join comes out at the later of its
# two times, so by the left one's its `upper` is the bound. Functions with `order="arrival"` or timers, and other writers
# of the table, such as a job that adds late rows to it, have bounds of their own: measure them.
#
# Run the second job after the first one. Its newest rows wait for the run after: the watermark is the newest time that
# it has read, less a millisecond.

# %% [markdown]
# ## What is in the outputs?
#
# * `cj.sinks.delta(path_or_table)` is exactly once. A commit carries the query's id and the batch's number as a
#   transaction id, and in its `userMetadata` a digest of the batch's rows and of the source offsets. When a batch is
#   run again after a crash, the table has it already: if it is the same, it is passed over; if not, the query stops and
#   nothing is written.
# * cojoin makes new tables with `delta.checkpointInterval` 100, unless your session sets a default: with Delta's own 10
#   every tenth batch takes some seconds more.
# * `cj.sinks.delta(..., upsert=["trade_id"])` keeps one row for each key, exactly once as well. The driver writes a plain
#   table: files that hold replaced rows are written again without them, in one commit with the new rows, on the version
#   that it has compared. Where no file holds a key of the batch, the commit is an append. Spark merges into all other
#   tables (partitions, deletion vectors, a change feed, a batch or a rewriting of more than 1 GB). Its MERGE has the
#   batch's id in the transaction, and not the epoch of the query's lease: that is compared right before. So a driver
#   that was suspended between the two, and replaced, may still write the batch that its successor would write, and only
#   if that has not written it yet.
# * `cj.sinks.sql(url, table, upsert=[...])` is exactly once: a batch's rows and the query's row in `cojoin_fence` are one
#   transaction. Where the answer to a commit is lost, that row tells whether it was made. A driver that takes over ends
#   the sessions of its predecessor.
# * `cj.sinks.parquet(folder)` writes a folder for each batch, and replaces it when the batch is run again. It names its
#   query in `_cojoin.json`, and refuses the folder of another query. Readers may move batches away; where the whole
#   folder is gone, the query ends.
# * `cj.sinks.kafka(servers, topic, ...)` is exactly once for consumers that read committed records: one transaction a
#   batch carries its rows and its marker. Guide [04](04_replay_kafka.ipynb) has it.
# * A callable gets `(DataFrame, batch_id)`. It may see a batch twice, and can tell by the number.
#
# Outputs stay where they are from run to run; a query that is to write elsewhere begins with `restore_from`.

# %%
history = spark.sql(f"DESCRIBE HISTORY delta.`{Path.cwd()}/lake/enriched`").orderBy("version")
history.selectExpr(
    "version",
    "operation",
    "get_json_object(userMetadata, '$.cojoin.batch_id') AS batch",
    "get_json_object(userMetadata, '$.cojoin.rows') AS rows",
).toPandas()

# %% [markdown]
# The workers write the files of a plain table, and the driver commits them, without the JVM. Spark writes tables with
# partitions, writer options, constraints or NOT NULL columns; `query.progress.written_by_spark` has the outputs that it
# writes, with the reason, and of the checkpoint's tables `checkpoint/state` and `checkpoint/progress`. Batches without
# rows commit nothing. Others may change a table between two batches: where the new feature is one that only Spark writes, it
# writes from then on. Where the rows do not fit any more, the query ends; change the table back, and start it again.
#
# Leave `delta.setTransactionRetentionDuration` out. With it, Delta forgets after that time which batches a table has. No
# row is written twice, since the next start is refused, but only a new table and a restored query help then. A start warns.
#
# ### What if others write the table of an upsert?
#
# | | |
# |---|---|
# | other rows | nothing: a commit in between is seen, and the batch is compared with it again |
# | rows of the same keys | the later batch replaces them. With `order_by=` the greater row stays, whoever wrote it; a MERGE by Spark compares again in its own condition, but for ties |
# | another query | each has its own transactions, or its own row in `cojoin_fence`. A start into a table of a database that another query has written warns: give `order_by=` where keys are the same |
# | others bring an older version back (`RESTORE TABLE`) | rows of later batches are gone, as the table's owner has decided: the query goes on. Restore the query into a new table to have them again |
# | the table is gone | the start is refused |
# | two MERGEs at once | Spark's MERGE is tried again, five times in all |
# | a key is there twice | a batch with that key replaces both rows by its one. Before: `SELECT trade_id FROM t GROUP BY trade_id HAVING count(*) > 1` |
# | a key of the left input is not unique | by design: one row stays, the others are counted as `superseded`; the log has an example. Where that is wrong, name further columns in `upsert=`, or choose `conflict="error"` |
# | `upsert=` is changed between runs | the start is refused, since the table would have rows of two rules |
# | the row in `cojoin_fence` is gone | the start is refused, and says which `INSERT` brings it back: right where the table has all rows up to that batch. Else restore into a new checkpoint with a new table |
#
# A database needs rights to read and write the table, and to create tables in its schema. For TLS give libpq's options in
# the URL, such as `?sslmode=verify-full`. The password is in no message, progress or checkpoint. A lock is awaited for a
# minute; then the query ends with an error, and the next start continues. With `order_by=` or `conflict="error"` other
# writers of the table wait while a batch is merged into it from its staging table.
#
# ## How large is the state?
#
# `query.progress.state_bytes` says it after each batch, and `state_bytes_by_key_group` shows whether one part is larger
# than the others. `cj.read_state` opens the state: how many rows of what there are; its `largest_keys()` names the keys
# with the most.

# %%
state = cj.read_state(spark, "lake/checkpoint")
pd.DataFrame(state.tables(), columns=["holds", "rows", "bytes"])

# %% [markdown]
# What bounds the state: rows wait until the watermark passes them. An as-of join keeps the newest version of each key;
# with `tolerance`, a version that is older than that is dropped. A temporal join keeps versions for `retention`, and an
# interval join keeps rows as long as its interval. A function keeps what it does not clear, or for a state's
# time-to-live. Guide [07](07_speed.ipynb) says what a size costs.
#
# ## What is in the checkpoint directory?
#
# Everything is data that a person can read: JSON, Arrow and Delta. Restoring never runs code from it.

# %%
print(*sorted(path.name for path in Path("lake/checkpoint").iterdir()))
table("""
name | what it is
query.json | which query it belongs to: inputs, columns, operation, key groups; and which sources the inputs read
lease.json, beats | who runs on it (host, process, epoch), and the sign of life of that one
restored.json | the snapshot that the query began with, where it was restored
runs.json | with which batches the last runs began, where the clock matters
spark | Spark's own checkpoint: offsets, commits, its state store
control | what the driver tells the key groups: a restored state, the end of the inputs
drain.json | whether a drain was promised, and the newest run that knows of it
manifest | a small file a batch, written last: with it the batch counts; the newest 100 are kept
progress | Delta: a row a batch
state, snapshots | Delta: a row a key group and snapshot, with the content of those that changed; the index of each
  snapshot, which makes it count
snapshots_removed | the index of snapshots that are being removed
segments | Arrow files with state that rarely changes; removed once neither the last ten manifests nor a snapshot names them
rejected, side_outputs | Delta: the rows that were not admitted; a table for each side output of a function
""")

# %% [markdown]
# **Damaged files.** Each JSON file has a SHA-256 of its path, its content and its query's id; segments have digests in
# the state that names them, and the rows of a snapshot in its index. The values in Spark's state store name their key
# group, batch and query, and the manifests say how new they must be; a manifest also has the sources' positions and a sum
# of each log of files that were read. So a flipped bit, a cut file, another checkpoint's file and a former version of a
# file are refused, and the message names the file. On local disks Hadoop's own `.crc` files notice some of that before.
# These are not covered:
#
# | file | what notices damage |
# |---|---|
# | the outputs, `rejected`, `side_outputs`, `progress`: Delta's logs and parquet files | Delta or Spark, if they can't read it; no query goes on from their rows |
# | the Delta log of `state` | the rows that are read by it are compared with the snapshot's index |
# | in `spark/offsets` the line with the batch's time and settings; positions after the last manifest | Spark, if it can't read it |
# | `spark/commits`, `spark/metadata`, descriptions in `spark/state` | Spark, if it can't read it; of the commits only the numbers count |
# | in `snapshots` whether it is a savepoint | nothing: where the index from before is put back, it is an ordinary snapshot again |
# | the newest manifest, where a run was killed within five seconds after it wrote it a second time | nothing, if the first one is put back |
# | tests that `cojoin.testing.capture` has written | the tests: their rows are texts that you may edit |
#
# Nothing in it is to be deleted by hand: `cojoin checkpoints clean` removes snapshots, and the whole directory can go
# once the query is over for good. A query takes a **snapshot** of its state every `checkpoint_interval` (`"10 minutes"`
# of the batches' clock by default, a number of batches, or `None`) and keeps the newest `retained_checkpoints` (3). It
# costs what a state value does: rows in segments are not copied, and their files stay as long as a snapshot names them. A
# **savepoint** is taken when you ask for it, and kept until you remove it: `query.savepoint()`,
# `query.stop(savepoint=True)`, or `cojoin checkpoints savepoint PATH`, also of a query that rests or was killed.
# Ordinary restarts need neither: they go by Spark's own checkpoint.
#
# ## How do I back up a query, and put it back?
#
# Copy the checkpoint while the query rests. A copy that was made while it ran may have parts of different moments, and
# a start refuses what does not fit together. Back up the outputs at the same moment, or keep their Delta history.
#
# Here the copy of the first run is put back while the output already has the second run's rows. Going on would write
# some rows twice, so the start is refused, and the message says what to do:

# %%
shutil.move("lake/checkpoint", "backup/newer")
shutil.copytree("backup/checkpoint", "lake/checkpoint")


def refusal(start, *arguments, **options):
    """Print why a start is refused, without the folder of this notebook."""
    try:
        start(*arguments, **options)
    except cj.CojoinError as error:
        print(f"{type(error).__name__}: {error}".replace(os.path.realpath("."), ""))


refusal(run, join())

# %% [markdown]
# The best cure is the newest copy. Where there is none, restore a snapshot of the old copy into a new checkpoint:
#
# ```python
# cj.savepoint(spark, "lake/checkpoint")  # if the copy has no snapshot
# joined.start(
#     output=cj.sinks.delta("lake/enriched"),
#     checkpoint="lake/checkpoint_2",
#     restore_from=cj.Snapshot("lake/checkpoint"),
#     cut_back_output=True,
#     trigger=...,
# )
# ```
#
# `cut_back_output=True` takes back what was written to the table after that snapshot, in a commit of its own, so that
# the table's history keeps it. It does so only if all later commits are the old query's; and it ends the old query for
# good. Where the old query wrote nothing after that snapshot, rows that others appended meanwhile stay. Without it the
# restored query writes to a new table, as guide [03](03_checkpoints.ipynb) shows. The sources go on at the exact
# offsets of the snapshot's batch, inside a Delta version or a folder, too. Inputs must be `cj.sources` or
# `cj.kafka.source`: of a bare DataFrame nobody can tell where it would go on. Records that a source no longer has are
# listed, by partition and number; `allow_data_loss=True` continues without them.
#
# ## What may I change?
#
# | change | on the same checkpoint | with `restore_from` |
# |---|---|---|
# | the trigger, `checkpoint_interval`, `retained_checkpoints`, `max_records`, `maxFilesPerTrigger` | yes | yes |
# | a watermark strategy, its bound, `late=`, `max_ahead`, `when_all_idle` | yes | yes |
# | idleness, or a strategy by the clock, added | runs with an end: yes; others where the first start had one | yes |
# | idleness, or a strategy by the clock, removed | yes | yes |
# | the code of a function | yes | yes |
# | a function's states: one more, or a wider type | yes | yes |
# | a nullable column more in an input, the output or a side output | with `evolve=True` | yes |
# | a wider type of a column | refused | yes |
# | another name of the function's class, a side output more | refused | yes |
# | `key_groups`, `spark.sql.shuffle.partitions` | refused; ignored | yes |
# | where an output goes | refused | yes |
# | a Kafka sink's `delivery=` and `tasks=` | yes, after a run that ended well | yes |
# | topics added to an input's list, or by its pattern | yes | yes |
# | a topic taken from the list | refused | refused |
# | a column less, a narrower or another type, another operation | refused | refused |
# | an input's `name`, `key`, `event_time`, `partition` or `sequence` | refused | refused |
# | a join's `how`, `tolerance`, `direction`, bounds or `retention` | refused | refused |
# | a function's state less | it stays stored, unused | refused |
# | a time-to-live added to a state, or taken from it | refused | refused |
#
# A refusal names each difference by what you wrote: a column, or an argument.

# %%
regions = join(customers="customer string, event_time timestamp, tier string, region string")
refusal(run, regions)

# %% [markdown]
# **Columns that were added.** With `start(..., evolve=True)`, which a scheduled job may leave set, the query takes up
# columns that its inputs or its function's output have by now. Rows that wait in the state have null there. A Delta
# output gets the column in the same transaction as its rows where its sink has `options={"mergeSchema": "true"}`;
# otherwise add it to the table first, and the start says so. A savepoint of before can still be restored, by the query
# with the column and by the one without. A column that is gone, has another type or place, or has become a key is
# refused by its name, and so is one whose name takes another column's place in a join's output.
#
# **A watermark strategy that changes** takes over the watermarks of the one before: no watermark goes back, so a larger
# bound lets the watermark stand still until the rows have come so far. A smaller bound counts with the next batch, also
# for a partition that has no new rows. A column of watermarks counts from its next row on. Without idleness, what was
# idle holds time again.
#
# **A function's state** evolves without loss only: a state or a nullable field more, a wider whole number, up to 32
# bits a `double`, a decimal with more digits. A test with the harness shows in milliseconds whether types fit. (That a
# state is no longer declared only `restore_from` tells.)


# %%
class CountTrades(cj.KeyedCoProcessFunction):
    def __init__(self, declared):
        self.declared = declared

    def open(self, ctx):
        self.seen = ctx.get_state(cj.ValueStateDescriptor("seen", self.declared))

    def process_element1(self, trade, ctx):
        self.seen.update((self.seen.value() or 0) + 1)


def count_one(declared, moment, snapshot=None):
    """Count a trade of Ann's, beginning with a snapshot if there is one."""
    sides = {f"input{side}": HarnessInput("customer string", key="customer", name=f"n{side}") for side in (1, 2)}
    harness = Harness(CountTrades(declared), "customer string", **sides)
    if snapshot is not None:
        harness.restore(snapshot)
    harness.process_element1(("ann",), moment)
    harness.process_watermark(moment)
    return harness


old = count_one("int", 1_000).snapshot()
print(count_one("bigint", 2_000, old).state("ann"))
refusal(count_one, "string", 2_000, old)

# %% [markdown]
# **Upgrades of cojoin.** Checkpoints of 0.5.0 can be continued, restored, read and explained by every later release;
# older ones are refused. A file of a newer format is refused with "upgrade cojoin", so an upgrade can be taken back
# only with a copy: end the run, copy the checkpoint, upgrade, start. The versions of
# Spark and of other packages are listed further below.
#
# On several hosts, or with a Spark Connect server, the order is: install the new release beside the old one, in an
# environment of its own; end the queries (`query.stop()`); copy their checkpoints; point `PYSPARK_PYTHON` of all hosts,
# and of the server, to the new environment; start the queries. Every task runs the driver's release: before it takes a
# row, a Python worker compares cojoin's version, a digest of its sources, Python's minor version and pyarrow's major
# version with the driver's. A start asks all hosts first and is refused with the host, what it has and what is expected.
# So where hosts are exchanged one by one under a query that runs, tasks on an exchanged host fail, Spark tries them on
# other hosts, and after four failures of one the query ends with that message: never with rows of two releases.
#
# **A batch that a crash interrupted** is run again first, with the columns and the settings with which it was planned,
# whatever the query has by now. Its code is not kept: run it with the code that it was run with, and change that after
# the run. Where the second execution gives other rows, an output that has the batch already refuses it. A user's own
# `WatermarkGenerator` is code, too: a start that has another one is refused while a batch is planned.
#
# ## How do I rescale or fork a query?
#
# Both are a restore, and guide [03](03_checkpoints.ipynb) does one. Rescaling sets other `key_groups`, and if need be
# another `spark.sql.shuffle.partitions` in the session; the state is cut anew. (Spark fixes the number of shuffle
# partitions with a checkpoint's first batch, so the setting has no effect on a checkpoint in use.) A fork is a restore
# into a table of its own while the old query goes on; fork as often as you like, each fork has its own state. Take a
# savepoint first: other snapshots of a running query may be cleaned away while they are read.
#
# ```python
# saved = query.savepoint()
# join(key_groups=8).start(
#     output=cj.sinks.delta("lake/fork"), checkpoint="lake/checkpoint_fork", restore_from=saved, trigger=...
# )
# ```
#
# ## What keeps a second query away?
#
# A lease: `lease.json` names the one that runs on a checkpoint, and its sign of life grows every five seconds. A second
# start is refused. After a kill, the query starts again at once on the same machine, where the process itself tells
# whether it lives; on another machine, or in another container, it first watches the sign of life for half a minute.
#
# On local disks and on object stores a takeover is a compare-and-swap of `lease.json`: of two that try, one succeeds. A
# driver that stood still and was replaced is fenced off: it stops at its next look, can't overwrite a manifest or a
# snapshot of its successor, and its commits to Delta are refused, as each compares the epoch on the version on which it is made. Where Spark itself
# writes a Delta output (`query.progress.written_by_spark`), and for parquet and callables, the lease is compared right
# before instead. A topic is fenced by its producer's epoch. On HDFS, which has no
# compare-and-swap, two that take over within the same moment may both run until their next look.
#
# ## How do I keep a query on S3?
#
# Checkpoint and outputs may be on S3, or on what speaks its protocol, also each on another store. Spark needs Hadoop's
# connector of its own version, and three modules of Amazon's SDK: together 13 MB, where the bundle that the connector names
# has 686 MB. Leave out `endpoint` and `path.style.access` for Amazon's own S3, and the keys where the machine has its own.
#
# ```python
# spark = cj.spark_session(conf={
#     "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:s3:2.35.4,"
#                            "software.amazon.awssdk:s3-transfer-manager:2.35.4,software.amazon.awssdk:sts:2.35.4",
#     "spark.jars.excludes": "software.amazon.awssdk:bundle,io.netty:*",
#     "spark.hadoop.fs.s3a.endpoint": "https://store.example:9000", "spark.hadoop.fs.s3a.path.style.access": "true",
#     "spark.hadoop.fs.s3a.access.key": access_key, "spark.hadoop.fs.s3a.secret.key": secret_key,
# })
# joined.start(output=cj.sinks.delta("s3a://lake/enriched"), checkpoint="s3a://lake/_cojoin/enriched", trigger=...)
# ```
#
# cojoin itself reads and writes there without the JVM, with the same settings, and so do the tasks with segments and
# with the files of a Kafka archive. The settings travel with the tasks as Spark's do; they are in no file and no message.
# The store must know conditional writes (`If-None-Match` and `If-Match`), which is tried before the start. A store that
# is away is told after some seconds by cojoin; Spark's own requests go on for minutes, unless `fs.s3a.attempts.maximum`,
# `fs.s3a.retry.limit` and `fs.s3a.connection.establish.timeout` say less. Credentials that expire end the query between
# two batches or within one: start it again with new ones, and it goes on where it stopped.
#
# Slower is all that consists of many small files: a batch makes about 200 requests, three quarters of them Spark's for
# its state and its logs. Two other classes of Spark's make that 120, and both are refused, since they lose files in
# silence: `AbortableStreamBasedCheckpointFileManager` (`spark-hadoop-cloud`) logs a warning where the store refuses a file,
# and `FileSystemBasedCheckpointFileManager` keeps the state of an earlier attempt where a task is repeated. In a run with
# 4,000 trades in four batches and a drain, a join took 1.9 times as long as on local
# files, and plain Spark's copy 1.2 to 1.4 times, with a server on the same machine (`python -m benchmarks.stores`, which
# also counts the requests by object). Delta tables as inputs, fewer key groups, fewer shuffle partitions and longer
# triggers help.
#
# What is not fenced there: cojoin writes a commit only where the store has none of that version (`If-None-Match`).
# Delta 4.4 writes its log on S3 by a look and then a write, exact within one driver only, so a commit by Spark could
# replace one that came in between. cojoin reads each of its commits back: if another one is in its place, the query
# ends, and the next start writes those rows again; one that is replaced later stops the next batch, or the next start.
# Delta's `S3DynamoDBLogStore` does not help: it keeps off only the writers that make an entry in DynamoDB, and cojoin
# makes none. So let only one kind of writer commit to a table at a time: cojoin, or Spark's `OPTIMIZE`, `MERGE` and the
# like while the query stands still. Or let Spark make all commits, with `spark.cojoin.storage=hadoop` in every session
# that writes there, and that log store in all of them. And leave `fs.s3a.performance.flags=create` out: with it, Hadoop
# does not even look whether a file is there.
#
# ## How do I run it on a cluster?
#
# Three things must be the same for the driver and for every host: Delta's jars, Python's packages, and the places.
#
# **Jars.** A plain Python program needs nothing: `cj.spark_session(master="spark://host:7077")` fetches Delta's package
# and sends it to the executors. In a program that `spark-submit` starts, the JVM runs before the program does, so the
# command line names the package; without it `cj.spark_session()` says which one is missing.
#
# ```shell
# spark-submit --master spark://host:7077 \
#     --packages io.delta:delta-spark_4.2_2.13:4.4.0 \
#     --archives environment.tar.gz#environment \
#     --conf spark.pyspark.python=./environment/bin/python \
#     --conf spark.pyspark.driver.python=/opt/jobs/bin/python \
#     --py-files my_functions.py \
#     enrich_trades.py
# ```
#
# **Python's packages.** Either each host has an environment at the same path, named by `PYSPARK_PYTHON`, or an archive
# is sent with the job: `conda pack -o environment.tar.gz` or `venv-pack -o environment.tar.gz` makes it, and each
# executor unpacks it as the folder behind the `#`. (A venv keeps its base: the hosts need the same Python at the same
# path. An environment of conda brings its own.) What hosts do not share is told with the host before a row is out:
#
# | the message says | cause | what to do |
# |---|---|---|
# | expected cojoin 0.6.0, found none, or another version, or other sources | another environment on that host | the same environment for all |
# | expected Python 3.12, found 3.11; expected pyarrow 26, found 25.0.0 | as above; minor versions of Python and major ones of pyarrow must be equal | as above |
# | lacks a module of the query's functions: No module named 'my_functions' | your function's module is only where the driver is | `--py-files` (`spark.submit.pyFiles`), `spark.sparkContext.addPyFile`, or in the environment |
#
# A function of the program's own file, or of a notebook, travels with the query and needs none of that.
#
# **Places.** Checkpoint and outputs lie where the driver and all hosts reach them by one path: on an object store
# (*How do I keep a query on S3?*), on HDFS, or on a file system that all hosts mount. A path on each host's own disk is
# none of these, however equal it looks.
#
# | cluster | what is particular |
# |---|---|
# | standalone (tried) | as above; workers may have different things installed, so an archive is safest |
# | YARN, `--deploy-mode client` | `spark.pyspark.driver.python` is the Python of the machine that submits |
# | YARN, `--deploy-mode cluster` | the driver is on a host, too: leave `spark.pyspark.driver.python` out, so that it has the archive's Python; Spark finds HDFS by the cluster's own settings |
# | Kubernetes | put Python, cojoin and Delta's jars (in `$SPARK_HOME/jars`) into the image, one for driver and executors (`spark.kubernetes.container.image`); a pod's disk ends with it, so all places are on an object store or a shared volume |
# | Spark Connect | the server's command line names the package and the environment; modules are sent with `spark.addArtifacts("my_functions.py", pyfile=True)` |
#
# The lease takes a driver for dead half a minute after its last sign of life, so a job that the cluster starts again on
# another host goes on by itself. Standalone was tried with two workers, with kills, with other releases on one of them,
# with an archive and a module sent by `spark-submit`; YARN and Kubernetes follow Spark's documentation.
#
# ## What does the command line do?
#
# | `cojoin checkpoints ...` | does |
# |---|---|
# | `list PATH` | lists the snapshots, how far the query has come, and who holds the checkpoint |
# | `show PATH --at MOMENT` | one snapshot: source positions, the outputs' versions, sizes, the lease |
# | `state PATH --key ann` | what a key has; `--name trades`, `versions`, `timers`, `keys` or a state's name: rows |
# | `progress PATH --limit 20` | the last batches |
# | `explain PATH --input trades --row trade_id=30` | what became of a row, or what it waits for |
# | `savepoint PATH` | keeps the state after the last batch, also of a query that runs, rests or was killed |
# | `erase PATH --key ann --into NEW` | takes keys out of the state of a stopped query, and lists what remains where |
# | `clean PATH --keep 3` | removes snapshots; `--batch N` one of them; `--dry-run` only says which |
#
# All but `savepoint`, `erase` and `clean` only read, also while the query runs. `--json` prints JSON for a script.
# `cojoin run JOB.py:NAME --output delta:PATH --checkpoint PATH` runs a join of a file, such as `cojoin init` writes: once
# over what is there, by a scheduler, or with `--every '10 seconds'` until Ctrl-C. `--restore-from OLD --at MOMENT` begins
# with a snapshot's state, `--evolve` takes up added columns, and `--set NAME=VALUE` is an argument of the file's function.
# The exit code is 0, 2 where something must be put right, 3 for an error that nobody foresaw, and 130 after Ctrl-C.
# Here from Python:

# %%
from cojoin.__main__ import main as cojoin

assert cojoin(["checkpoints", "list", "backup/newer"]) == 0

# %% [markdown]
# ## What does my own Spark session need?
#
# `cj.spark_session()` returns a session that runs already as it is; else it makes one with the settings below. A
# session of your own needs the first three, and Delta's package for its version of Spark, such as
# `io.delta:delta-spark_4.2_2.13:4.4.0`. The others cost time or disk where they are missing. On a local Linux a new
# session's Python processes also import PySpark from where pip has installed it (`spark.python.daemon.module`, and
# `spark.executorEnv.PYTHONPATH`; the variable `PYTHONPATH` counts as well): half a second for each stream of Python's.
#
# `start()` gives two settings to its own query, unless the session has them. For the moment of the start, up to two
# seconds, the session itself has them. `spark.sql.streaming.pollingDelay` is 30 ms
# between two looks for new rows: at Spark's 10 ms an idle query takes a third of a core. For a checkpoint on a local disk
# `spark.sql.streaming.checkpointFileManagerClass` is Spark's class that starts no program but `chmod`: its usual one takes
# 28 ms more for each file, and a batch writes four to six.

# %%
WHY = {
    "spark.sql.extensions": "needed: Delta",
    "spark.sql.catalog.spark_catalog": "needed: Delta",
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "needed, as false: if a DataFrame applies an Arrow "
    "Python UDF straight to a parquet scan, Spark 4.2 otherwise hangs, since cojoin adds a mapInArrow to every input",
    "spark.sql.shuffle.partitions": "the tasks of a batch, as many as there are cores; fixed by the first batch",
    "spark.sql.streaming.minBatchesToRetain": "Spark keeps the state of so many batches: its default, 100, fills disks",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "larger pieces between the JVM and Python; the default is 10,000",
    "spark.databricks.delta.snapshotPartitions": "Delta reads small logs with 2 tasks instead of 50",
    "spark.databricks.delta.allFilesInCrc.enabled": "spares a job after each commit where the time zone is not UTC",
}
values = {name: spark.conf.get(name).rsplit(".", 1)[-1] for name in WHY}
table("\n".join(["setting | here | why", *(f"{name} | {values[name]} | {why}" for name, why in WHY.items())]))

# %% [markdown]
# ## Which packages and versions does it need?
#
# | command | for | adds |
# |---|---|---|
# | `pip install cojoin` | joins in memory, `diff`, `lateness`, the harness | numpy 1.26, pyarrow 18, or later |
# | `pip install "cojoin[spark]"` (`[delta]` is its former name) | everything on Spark, Delta tables among it | PySpark 4.0.1, pandas 2.2, deltalake 1.6.6, tqdm, obstore (for object stores) |
# | `cojoin[kafka]`, `[registry]`, `[sql]`, `[metrics]`, `[connect]` | topics, schemas of a registry, PostgreSQL, OpenTelemetry, Spark Connect | the same as `[spark]`, and a client |
# | `cojoin[plots]` | pictures | matplotlib |
#
# Nothing of this has an upper bound, so an installation leaves what is there, and a new one takes PySpark 4.3: add
# `"pyspark<4.3"` where Delta's own classes are needed. Delta's jars are fetched by `cj.spark_session()`: those of Delta
# 4.4.0 for your PySpark. Its package for Python, delta-spark, is not needed, and would put a PySpark after 4.2.0 back;
# one that is there and is for a later Spark says which jars are fetched. What is missing is named before anything
# starts, with the command that installs it. `to_pandas()` and inputs that are DataFrames of pandas need pandas 2.2 or
# 3. PySpark itself warns of pandas 3.
#
# | PySpark | what works |
# |---|---|
# | below 4.0.1 | nothing on Spark; refused |
# | 4.0.1 to 4.1 | all but `cojoin.kafka` |
# | 4.2 | all |
# | 4.3 | all but tables that only Delta's own classes read or write (below), for Delta has no build for it yet; they are refused before a query starts. `cojoin.kafka` is untried |
# | later | as 4.3; a warning says what is untested, and names `python -m cojoin.session.probes`, which tries each thing of Spark that is not public and that cojoin needs |
#
# Which versions go together is said by the packages themselves, and by the builds that they have:
#
# | Python | PySpark | pandas | pyarrow |
# |---|---|---|---|
# | 3.10 | 4.0.1 to 4.2; 4.3 takes Python 3.11 or later | 2.2.0 to 2.3.3; 3 takes Python 3.11 or later | 18.0 to 25.0.1 |
# | 3.11, 3.12 | 4.0.1 to 4.3 | 2.2.0 and later | 18.0 and later |
# | 3.13 | 4.0.1 to 4.3 | 2.2.3 and later | 18.0 and later |
# | 3.14 | 4.1 to 4.3; 4.0 does not name this Python | 2.3.3 and later | 22.0 and later |
#
# `python -m tests.versions.smoke --join`, from a clone, tries them: plain PySpark's `mapInArrow` and
# `applyInPandasWithState`, without which cojoin can't run, and then a join. Where it was run:
#
# | Python | PySpark | pandas | pyarrow | plain PySpark | a join |
# |---|---|---|---|---|---|
# | 3.10 | 4.0.1 | 2.2.0 | 18.0.0 | passes | passes |
# | 3.13 | 4.3.0 | 3.1.1 | 26.0.1 | passes | not run |
# | 3.14 | | | | not run: it is tried in CI alone, with PySpark 4.3.0 | |
#
# A Delta table is read as a stream by cojoin's own source on Spark 4.2 and later, or by Delta's:
#
# | of the table, or of the session | who reads |
# |---|---|
# | partitions, a change data feed, `timestamp_ntz`, v2 checkpoints, columns mapped by name, nested columns, deletion vectors, any feature that only writers must know; on local and shared disks, S3, and on Azure and Google untried | cojoin |
# | columns mapped by id, type widening, deletion vectors where its changes are read, files outside of its folder | Delta |
# | variants, an expression as event time, partitions by a timestamp, options other than limits, `startingVersion`, `skipChangeCommits`, `ignoreChanges` and `ignoreDeletes` | Delta |
# | Spark Connect, HDFS, `spark.cojoin.delta=spark` | Delta |
# | a static table | Delta where the session has it, else cojoin by the same rules |
#
# A Delta output is *plain* where the workers may write its files and the driver commits them, without Delta's jars:
#
# | of the table, or of the session | who writes |
# |---|---|
# | nothing special, a change data feed, `appendOnly`, `timestamp_ntz`, deletion vectors, v2 checkpoints | the workers |
# | partitions, NOT NULL or other columns than the output's, writer options, `autoCompact` | Spark |
# | CHECK constraints, generated columns, column mapping, defaults, identity, row tracking, type widening, clustering, in-commit timestamps, collations, a feature that cojoin does not know | Spark |
# | a table by name that is not there yet; defaults of the session for new tables other than Delta's plain ones | Spark |
# | local and shared disks, S3, and what speaks its protocol | the workers; on Azure and Google the same, untried |
# | HDFS and other places that only Hadoop reaches, `spark.cojoin.storage=hadoop`, `spark.cojoin.output=spark` | Spark |
# | Spark Connect with a local path | Spark |
#
# The checkpoint's tables follow the same rules. A table that both write stays exact: each looks for the other's batches.
#
# Java is 17 or later, but not 25.0.0 to 25.0.2, which give wrong data (SPARK-55852) and are refused. Of executors on
# other hosts, and of a Spark Connect server, the Java is not looked at.
#
# ## Does it run with Spark Connect, and on Databricks?
#
# With Spark Connect it does: `spark = cj.spark_session(master="sc://host:15002")`, or a session of your own that
# `SparkSession.builder.remote(...)` made (`pip install "cojoin[connect]"`). The server needs Delta's package and the
# settings above. Its Python and that of its workers need this version of cojoin, which is asked before the start.
#
# The process that starts a query checks and restores it, keeps its lease alive, watches it and stops it. The batches are
# executed and written by a process beside the server, so both must reach the checkpoint by the same path, which is tried
# before the start. Paths of inputs and outputs are given in full. If the first process dies, the query goes on until
# another start takes its lease over. `stop` ends the process beside the server in the midst of a batch, which the next
# start executes again. If the server is gone, PySpark tries to reach it for ten minutes before the query ends. A batch
# takes about two seconds longer, since Spark writes each output table itself. A checkpoint may go on in a session of the
# other kind.
#
# | | a session in this process | Spark Connect | Databricks, by its documentation |
# |---|---|---|---|
# | `to_dataframe()` of static inputs, `diff` | yes | yes | yes, also serverless |
# | `to_dataframe()` of streams | yes | yes | classic compute: yes |
# | `start`, `restore_from=`, `savepoint` | yes | yes | standard compute may; serverless does not: it caches no rows |
# | `Trigger.processing_time` | yes | yes | not on serverless: only `available_now` |
# | `read_state`, `read_progress`, `explain`, `cojoin checkpoints` | yes | yes; the commands in a session of their own | where the checkpoint is on a volume |
# | `cojoin.kafka` | yes | yes, the brokers reached from both sides | where Spark is 4.2 |
# | `debug`, `capture` | yes | yes, with a temporary folder that both reach | not with a folder of this machine |
# | output to Delta | workers write, fenced within the commit | Spark writes, the lease compared right before; on object stores as on the left | as with Spark Connect |
# | upserts into Delta | workers write, or Spark's MERGE | on object stores as on the left; else refused, since a MERGE's settings would hold for the whole session | as with Spark Connect |
# | output to parquet, to a callable | yes; a callable in this process | yes; a callable is sent to the server | as with Spark Connect |
# | a large table's first snapshot | time follows the files' statistics | time waits until all of it is read | as with Spark Connect |
# | places of inputs that are DataFrames | compared with the outputs' | not known, so not compared | as with Spark Connect |
# | checkpoints on HDFS | yes | no: local paths and object stores | volumes, external locations |
#
# Nothing was tried on Databricks. Its standard and serverless compute offer Spark Connect's interface alone, without
# `SparkContext` and the JVM, and runtime 17 has Spark 4.0.0, which is older than what cojoin takes. What only a trial there can tell: whether a function that
# `foreachBatch` calls may reach a volume as files, whether settings that begin with `spark.cojoin.` may be set, and
# whether a table's `_delta_log` may be read by its path, which Unity Catalog refuses for managed tables. Dedicated
# compute has a JVM with Databricks' own Delta, whose classes have other names, so `start` ends there with an error.
#
# ## What do I do about this error?
#
# All errors are `cj.CojoinError`. `ConfigurationError` and its kinds (`SchemaError`, `CheckpointError`,
# `EnvironmentSetupError`) come before a query starts, and no output has a row more. `QueryFailedError` is what
# `await_termination` raises when a running query ended, whatever ended it: its message is the cause's own. A static run
# and the harness raise the cause itself: `FunctionError` where a user's function raised, `CodecError` where state can't
# be read. Starting again is safe: in outputs to Delta, databases, parquet and Kafka a batch takes effect once. The table has the beginning or the telling part of each message.

# %%
table("""
error | message | cause | what to do
EnvironmentSetupError | Spark needs Java 17 or later, and the PATH has no java | Java is missing or too old |
  install it as the message says; JAVA_HOME wins over the PATH
EnvironmentSetupError | could not fetch io.delta:... | no way to Maven Central on the first start | a mirror in
  spark.jars.repositories, a proxy, or copy the folder of jars (COJOIN_JARS) from another machine
EnvironmentSetupError | this Spark 4.2.0 has no Delta: expected the jars of io.delta:... | spark-submit, or a session of
  your own, without Delta's package | --packages as the message names it
EnvironmentSetupError | the workers of spark://... must have what this process has ... host b: expected cojoin 0.6.0,
  found ... | a host has another cojoin, Python or pyarrow, or none | the same environment on all hosts
QueryFailedError | the Python worker on host b lacks a module of the query's functions: ... | your function's module is
  not on that host | addPyFile, --py-files, or the same environment
ConfigurationError | ...: its Spark session was stopped; make a new one ... | DataFrames of a session that has ended |
  make the session and the DataFrames anew
SchemaError | input 'trades' has no key column 'custmer'; did you mean 'customer'? | a wrong name | take the proposal
SchemaError | input 'trades': event time column 'ts': expected a timestamp, got bigint; ... | a number or text as the
  time | timestamp_millis(ts), try_to_timestamp(ts): the message has the cure for the type
SchemaError | the key types differ: 'id' of input 'trades' is int, ... | int and bigint keys are different keys | cast
  the column that the message names
SchemaError | inputs 'trades' and 'customers' both have 'name'; distinguish them with suffixes=... | equal names on
  both sides | suffixes=("", "_customers"), or drop the columns in one input
ConfigurationError | input 'trades' is a stream, input 'customers' is static | one was read with spark.read | read
  both as streams, or both static
ConfigurationError | output: Delta ... lies within the checkpoint (...); give it its own place | outputs, inputs
  and the checkpoint share a folder | give each a folder of its own
CheckpointError | checkpoint ...: another query runs on it (host 'a', process 17, epoch 3) | a second start, or a
  killed driver of another machine within half a minute | stop the other one; after a kill, wait
CheckpointError | checkpoint ... belongs to another query, or to another shape of this one: ... | the query was
  changed, or the path is another query's | a checkpoint of its own; restore_from= where it has evolved
CheckpointError | ...: its query was drained after batch 41: all inputs are finished, so it is over | a start after
  drain=True | a new checkpoint and a new query; without drain next time
CheckpointError | checkpoint ... was ended for good: its output continues from batch 2 as that of ... | another query
  was restored from it into the same table | run the other one
CheckpointError | ...: output went to delta a and would now go to Delta b: ... | the output's place was changed
  | the old place, or restore_from= with a new checkpoint
CheckpointError | ... the checkpoint is older than its output, as one that was put back from a backup | an old copy of
  the checkpoint | the newest copy; or restore_from= with cut_back_output=True
CheckpointError | the checkpoint records that batch 7 was written to it, and the table does not exist | the output was
  deleted, replaced or put back | put it back as it was; or restore_from= with a new output
QueryFailedError | the table has the query's batches up to 6, and had them up to 7: ... | the output was deleted, made
  again or put back while the query ran | put it back as it was; or restore_from= with a new output
QueryFailedError | Delta table ...: it was made again, as another table; ... | the table of an input was dropped and made
  again, replaced, or put back | the former table; or a new query
QueryFailedError | Wrong basePath lake/new for the root path: ... | a source of files reads another folder than before
  | the folder as it was; or a new query
CheckpointError | ... parts of it are of other moments, as in a copy that was made while the query ran | a copy of a
  running query | a copy of one moment; or restore one of its snapshots
CheckpointError | ...: manifest/000000000041.json, the manifest of a batch, is damaged: ... | a file was cut, changed
  or mixed up | put the file back from a backup, or restore a snapshot
CheckpointError | ... has the format 3, which is newer than 2: upgrade cojoin | a newer release ran on the checkpoint
  | that release or a later one
CheckpointError | ... no snapshot of batch 12 exists; it has those of batches 30, 40, 50 | it was cleaned away, or
  never taken | one of those named; savepoints for what must stay
CheckpointError | ... can't continue as this query: input 'customers': column 'tier' changes from string to int | a
  restore into a query that has not only evolved | undo that change, or begin without the state
CheckpointError | ... since the checkpoint, at version 4, it was changed by someone else: ... | others wrote
  to the output, so it can't be cut back, or removed rows from it | a new table for the output
CheckpointError | the query's columns are not those of the checkpoint: input 'trades' has the column 'note' more; ... | a
  table or a schema got a column | start(..., evolve=True), or drop the column
CheckpointError | ...: this needs micro-batches while no rows come, for which Spark's state must have timeouts | idleness
  or a clock was added to a query that runs on | runs with an end, or restore_from=
CheckpointError | restore_from: records that should be read next no longer exist: ... | Kafka's retention, or a vacuumed
  table | allow_data_loss=True continues without them
QueryFailedError | checkpoint ...: fenced off: another query took over at epoch 4 | the driver stood still, and
  another start took over | nothing, if the other one runs; else start again
QueryFailedError | the table has the query's batch 12 already, from another execution: ... | settings, code or input
  changed between a crash and the second run of the batch | run once as it was, then change; else restore with
  cut_back_output=True
QueryFailedError | batch 12: output to Delta ...: ... | the sink's own error: rights, a constraint, a changed schema |
  what the message says, then start again: the batch is run again
QueryFailedError | ... records that were to be read next are gone: ...; they aged out, or were deleted | Kafka:
  retention is shorter than the query's pauses | a new query, or data_loss='skip': the gaps become rejected rows
QueryFailedError | ... did not answer as a Kafka cluster for 60 s | brokers are away, or a wrong protocol or
  certificate | start again when they are back; patience= waits longer
QueryFailedError | EnrichTrades.process_element1 raised KeyError: ... (file:line) | your function | repair it and
  start again: it goes on from the last good batch
(no error) | a batch never ends, and no task uses the processor | Spark's hang with parquet scans and Arrow Python
  UDFs | the setting columnarInput, in the section above
""")

# %% [markdown]
# Worth knowing as well:
#
# * Where the clock matters (processing-time timers, idleness, `for_clock_lag`), micro-batches run without rows, one a
#   trigger. A bounded `start` looks at the clock once more at its end; `to_dataframe` under `availableNow` would never
#   end.
# * In a drain, timers that *rows* set fire, however late they are set for. Those that `on_timer` sets beyond the
#   largest event time seen are counted as `timers_not_fired`, so that timers that set themselves again come to an end.

# %%
spark.stop()

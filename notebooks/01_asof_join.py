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
# Each **trade** gets the **customer** record that was in force when the trade happened. First on two small tables, where everything
# can be seen at once; then on streams, where rows come out of order, one input lags behind the other, and some rows are broken.
#
# It needs Java 17 and `pip install cojoin matplotlib`. The first start fetches Delta's packages, which may take a minute.

# %%
import tempfile
from pathlib import Path

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import pandas as pd

import cojoin as cj

spark = cj.spark_session(
    "01_asof_join",
    master="local[2]",
    conf={"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR", "spark.ui.enabled": "false"},
)

# %% [markdown]
# ## Two small tables
#
# A helper makes times of one day, so that the tables stay readable.


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
trades_pdf

# %%
customers_pdf

# %% [markdown]
# An `Input` says which column is the key and which one is the event time. `connect` checks that the two go together, and
# `asof_join` joins them. Static inputs give a static DataFrame.

# %%
trades_df, customers_df = spark.createDataFrame(trades_pdf), spark.createDataFrame(customers_pdf)
pair = cj.connect(
    cj.Input(trades_df, key="customer", event_time="event_time", name="trades"),
    cj.Input(customers_df, key="customer", event_time="event_time", name="customers"),
    key_groups=2,
)
enriched_pdf = pair.asof_join().to_dataframe().orderBy("trade_id").toPandas()
enriched_pdf

# %% [markdown]
# * Trade 3 happened in the very instant of Ann's change to silver: **a record of the same instant is in force**.
# * Trade 5 came before Bob's first record: a left join gives nulls.
#
# The picture: bars are records in force, dots are trades in the colour of what they found; the hollow one found nothing.

# %%
COLOURS = {"bronze": "#b87333", "silver": "#8c96a3", "gold": "#d4a017"}


def draw_timeline(enriched, customers, end):
    figure, axes = plt.subplots(figsize=(9, 2.6))
    names = sorted(customers["customer"].unique(), reverse=True)
    for height, name in enumerate(names):
        versions = customers[customers["customer"] == name].sort_values("event_time")
        ends = [*versions["event_time"][1:], end]
        for (_, version), until in zip(versions.iterrows(), ends):
            colour = COLOURS[version["tier"]]
            axes.barh(
                height, until - version["event_time"], left=version["event_time"], height=0.3, color=colour, alpha=0.45
            )
            axes.text(version["event_time"], height - 0.34, version["tier"], fontsize=8, color=colour, va="center")
        for _, trade in enriched[enriched["customer"] == name].iterrows():
            matched = isinstance(trade["tier"], str)
            axes.plot(
                trade["event_time"],
                height,
                "o",
                markersize=9,
                color=COLOURS[trade["tier"]] if matched else "white",
                markeredgecolor="black",
            )
            axes.text(trade["event_time"], height + 0.24, trade["trade_id"], ha="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
    axes.set_title("Trades and the records in force", loc="left", fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    plt.tight_layout()
    plt.show()


draw_timeline(enriched_pdf, customers_pdf, at("10:50"))

# %% [markdown]
# ### Not too old, and only what matches
#
# `tolerance` says how old a record may be: Ann's gold of 09:55 is 45 minutes old at trade 4. `how="inner"` leaves out the trades
# without a match: trade 5, which has none, and now trade 4, whose record is too old.

# %%
pair.asof_join("inner", tolerance="30 minutes").to_dataframe().orderBy("trade_id").toPandas()

# %% [markdown]
# ## The same as streams
#
# Now rows arrive in files. A **watermark** says how far an input's time has come: the largest event time seen, less the minute
# by which rows may be out of order here. The join's watermark is the lesser of the two, and a trade comes out when it passes.
#
# Each call of `run` is a scheduled run: it takes what is there, pauses, and leaves what waits in its checkpoint.

# %%
lake = Path(tempfile.mkdtemp())
inputs = {}
for name, columns in (
    ("trades", "trade_id long, customer string, event_time timestamp, amount double"),
    ("customers", "customer string, event_time timestamp, tier string"),
):
    (lake / name).mkdir()
    inputs[name] = cj.Input(
        cj.sources.files(str(lake / name), "parquet", schema=columns),
        key="customer",
        event_time="event_time",
        name=name,
        watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("1 minute"),
    )
joined = cj.connect(inputs["trades"], inputs["customers"], key_groups=2).asof_join()
reports = []


def arrive(name, frame):
    """Write a file, as another system would."""
    frame.to_parquet(lake / name / f"{len(list((lake / name).glob('*.parquet')))}.parquet", coerce_timestamps="us")


def run(drain=False):
    query = joined.start(
        output=cj.sinks.delta(str(lake / "enriched")),
        checkpoint=str(lake / "checkpoint"),
        trigger=cj.Trigger.available_now(drain=drain),
    )
    query.await_termination(progress=False)
    reports.append(query.progress)
    print(query.progress.ending())
    return query


def read(path):
    return spark.read.format("delta").load(str(lake / path))


# %% [markdown]
# **First run.** Trades until 09:50 are there, but the customers' file ends at 09:25. Who could know what a trade of 09:50 will find?
# So the trades after 09:24 wait, and the message names the input that holds time back.

# %%
arrive("trades", trades_pdf.iloc[[1, 0, 4, 2, 5]])  # out of order
arrive("customers", customers_pdf.iloc[[0, 3]])
run()
read("enriched").orderBy("trade_id").toPandas()

# %% [markdown]
# **Second run.** The customers catch up, and trade 3 comes out. Trade 6 of 09:50 waits for its own input now: within the minute of
# disorder, an earlier trade might still come. (Nothing new came from the trades in this run; no matter.)

# %%
arrive("customers", customers_pdf.iloc[[1, 4, 2]])
run()
read("enriched").orderBy("trade_id").toPandas()

# %% [markdown]
# **Third run**, with rows as they sometimes are: a trade without a customer, one without a time, and one of 09:15, which is more than
# a minute late: its result can't be put in order any more.

# %%
broken = pd.DataFrame(
    [(7, None, at("10:30"), 5.0), (8, "ann", pd.NaT, 6.0), (9, "ann", at("09:15"), 7.0)], columns=trades_pdf.columns
).astype({"event_time": trades_pdf["event_time"].dtype})
arrive("trades", pd.concat([trades_pdf.iloc[[3]], broken]))
query = run()
print(query.progress.table())

# %% [markdown]
# For each input, *rows in = done + buffered + rejected*: nothing vanishes. What was rejected can be read, with the reason:

# %%
assert query.progress.is_conserved
pd.set_option("display.max_colwidth", None)
read("checkpoint/rejected").select("input", "reason", "row").toPandas()

# %% [markdown]
# **The end.** Trade 4 of 10:40 still waits for the customers' watermark. If no more rows will come, `drain=True` ends both inputs:
# everything comes out, and the query is over.

# %%
query = run(drain=True)
result = read("enriched").orderBy("trade_id").toPandas()
result

# %% [markdown]
# ## How time went
#
# The checkpoint has a table `progress` with a row for each batch. The join's watermark (black) follows the slower input.

# %%
progress = read("checkpoint/progress").orderBy("batch_id")
progress.selectExpr(
    "batch_id",
    "watermark",
    "holding_input",
    "drained",
    "rows_out",
    "inputs[0].buffered AS trades_waiting",
    "state_bytes",
).toPandas()

# %%
steps = progress.selectExpr(
    "batch_id", "watermark", "inputs[0].watermark AS trades", "inputs[1].watermark AS customers"
).toPandas()
steps = steps[steps["watermark"].notna()]
figure, axes = plt.subplots(figsize=(9, 2.8))
for name, colour in (("trades", "#3b7dd8"), ("customers", "#c8553d")):
    axes.plot(steps["batch_id"], steps[name], "o-", color=colour, label=name, markersize=7)
axes.plot(steps["batch_id"], steps["watermark"], "k--", label="the join", linewidth=2)
axes.set_xticks(steps["batch_id"], [f"run {number + 1}" for number in steps["batch_id"]])
axes.yaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))
axes.set_title("Watermarks after each run; the drain then ends time", loc="left", fontsize=10)
axes.legend(frameon=False)
for side in ("top", "right"):
    axes.spines[side].set_visible(False)
plt.tight_layout()
plt.show()

# %% [markdown]
# ## The same as all at once
#
# Three runs and a drain, out of order, gave what the static join gave from the same rows, and what pandas gives:

# %%
pandas_says = pd.merge_asof(
    trades_pdf.sort_values("event_time"), customers_pdf.sort_values("event_time"), on="event_time", by="customer"
).sort_values("trade_id")
assert result.equals(enriched_pdf)
assert result["tier"].fillna("none").tolist() == pandas_says["tier"].fillna("none").tolist()

# %% [markdown]
# Next: write a function of your own with timers and state (`pair.process(...)`, see the README), or join your own data with
# `cojoin run`.

# %%
spark.stop()

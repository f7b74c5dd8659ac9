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
# # Functions of your own: state, timers, and their tests
#
# Where no ready join does what you need, write a `KeyedCoProcessFunction`. It gets the rows of both inputs key by key,
# keeps keyed state, sets timers, and yields rows. The names are PyFlink's.
#
# This guide writes such a function, tests it, and runs it on Spark. All but the last part needs only `pip install
# cojoin matplotlib`: `cojoin.testing` runs the operator of a real query in this process, in milliseconds, without Java.

# %%
import random
import re
import textwrap
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd

import cojoin as cj
from cojoin.testing import Element, Harness, HarnessInput, Record, assert_output, parse_table

pd.set_option("display.max_colwidth", None)

# %% [markdown]
# ## What does a function look like?
#
# Each trade is enriched with its customer's tier. A trade whose customer is not known yet waits for up to a minute of
# event time.
#
# | method | when it is called |
# |---|---|
# | `open(ctx)` | before the first row or timer of a call: it declares the states and keeps their handles on `self` |
# | `process_element1(row, ctx)` | for each row of the first (left) input, here a trade |
# | `process_element2(row, ctx)` | for each row of the second (right) input, here a customer |
# | `on_timer(timestamp, ctx)` | for each timer that fires |
# | `close()` | at the end of a call, also after an error: it closes what `open` opened |
#
# All methods are optional. `ctx` has the row's `timestamp()` in epoch milliseconds, `get_current_key()` and
# `timer_service()`.


# %%
class EnrichTrades(cj.KeyedCoProcessFunction):
    def open(self, ctx):
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
        self.waiting = ctx.get_list_state(cj.ListStateDescriptor("waiting", "trade_id long, until long"))

    def process_element1(self, trade, ctx):
        tier = self.tier.value()
        if tier is not None:
            yield trade.trade_id, ctx.get_current_key(), tier
        else:
            until = ctx.timestamp() + 60_000
            self.waiting.add((trade.trade_id, until))
            ctx.timer_service().register_event_time_timer(until)

    def process_element2(self, customer, ctx):
        self.tier.update(customer.tier)
        for trade in self.waiting:
            yield trade.trade_id, ctx.get_current_key(), customer.tier
        self.waiting.clear()

    def on_timer(self, timestamp, ctx):
        for trade in self.waiting:
            if trade.until <= timestamp:
                yield trade.trade_id, ctx.get_current_key(), None
        self.waiting.update([trade for trade in self.waiting if trade.until > timestamp])


# %% [markdown]
# A `Harness` runs it. A `HarnessInput` says which columns an input has and which one is the key; the event time is
# added. Rows may be tables of text, as here, or tuples and dicts. Everything in this guide happens on 1970-01-01, so
# that times need no date.

# %%
OUTPUT = "trade_id long, customer string, tier string"
TRADES = HarnessInput("customer string, trade_id long, event_time timestamp", key="customer", name="trades")
CUSTOMERS = HarnessInput("customer string, tier string, event_time timestamp", key="customer", name="customers")


def at(clock):
    """Epoch milliseconds of a time of the day 1970-01-01."""
    return pd.Timestamp(f"1970-01-01 {clock}").value // 1_000_000


def clock(millis):
    """The time of the day as text."""
    named = {None: "", -(2**63): "none", 2**63 - 1: "the end"}
    return named[millis] if millis in named else f"{pd.Timestamp(millis, unit='ms'):%H:%M:%S.%f}"[:-3]


def new_harness(function, output=OUTPUT, **options):
    return Harness(function, output, input1=TRADES, input2=CUSTOMERS, **options)


def events(harness):
    """What came out since the last look, as a table."""
    rows = [
        (type(event).__name__, clock(getattr(event, "timestamp", None)), getattr(event, "value", ""))
        for event in harness.take()
    ]
    return pd.DataFrame(rows, columns=["event", "time", "row"])


TRADE_ROWS = """
    customer | trade_id | event_time
    ann      | 1        | 09:00:10
    bob      | 2        | 09:00:20
    cat      | 3        | 09:00:30
"""
CUSTOMER_ROWS = """
    customer | tier   | event_time
    ann      | silver | 09:00:00
    bob      | bronze | 09:00:50
"""
harness = new_harness(EnrichTrades())
harness.process_table2(CUSTOMER_ROWS)
harness.process_table1(TRADE_ROWS)
assert harness.output == []
pd.DataFrame(harness.buffered(1), columns=["customer", "trade_id", "event_time"])

# %% [markdown]
# Nothing came out: in event-time order rows wait until the **watermark** has passed them, since an earlier row could
# still come. The test moves the watermarks of both inputs. Then a key's rows and timers come in the order of event
# time, whatever the order of arrival was.

# %%
harness.process_watermark(at("09:01:00"))
events(harness)

# %% [markdown]
# Trade 2 came before Bob's record and got it all the same: it waited from 09:00:20 to 09:00:50. Cat's trade still
# waits, and can be seen to wait. Its timer fires when the watermark reaches 09:01:30.

# %%
print(harness.state("cat"), harness.timers("cat"))
harness.process_watermark(at("09:01:30"))
events(harness)

# %%
figure, axes = plt.subplots(figsize=(9, 2.5))
lines = {"ann": 2, "bob": 1, "cat": 0}
for customer, trade, start, end, how in (
    ("ann", 1, 10, 10, "silver, at once"),
    ("bob", 2, 20, 50, "bronze, when the record comes"),
    ("cat", 3, 30, 90, "null, when the timer fires"),
):
    axes.plot([start, end], [lines[customer]] * 2, color="#3b7dd8", linewidth=7, alpha=0.3, solid_capstyle="butt")
    axes.plot(start, lines[customer], "o", color="#3b7dd8", markersize=8, label="trade" if trade == 1 else None)
    axes.text(end + 2.5, lines[customer], how, va="center", fontsize=9)
axes.plot([0, 50], [2, 1], "s", color="#c8553d", markersize=8, label="customer record")
axes.plot(90, 0, "^", color="#555555", markersize=9, label="timer")
axes.set_yticks(list(lines.values()), list(lines))
axes.set_xticks([0, 30, 60, 90, 120], ["09:00:00", "09:00:30", "09:01:00", "09:01:30", "09:02:00"])
axes.set_xlim(-4, 130)
axes.set_ylim(-0.5, 2.6)
axes.set_xlabel("event time")
axes.set_title("How long a trade waits (blue bar), and what ends it", loc="left", fontsize=10)
axes.legend(frameon=False, fontsize=8, loc="upper right")
for side in ("top", "right", "left"):
    axes.spines[side].set_visible(False)
plt.tight_layout()
plt.show()

# %% [markdown]
# ### What goes in, and what comes out?
#
# * A row is an immutable named tuple: `trade.trade_id`, `trade["trade_id"]`, `trade[1]`, `trade.as_dict()`. Timestamps
#   are datetimes in UTC with microseconds, structs are rows, arrays are lists, maps are dicts.
# * A callback yields rows, or returns a list of them, or returns nothing. A row is a tuple or a dict that fits the
#   output type.
# * The key of several columns is a row, too. `on_timer` knows its key as well.

# %% [markdown]
# ## What can a function remember?
#
# Keyed state: each key has its own value, both callbacks and `on_timer` see the same one, and it survives restarts.
# Types are Spark's DDL.
#
# | descriptor | holds | methods of the handle |
# |---|---|---|
# | `ValueStateDescriptor(name, type)` | one value | `value()`, `update(v)` |
# | `ListStateDescriptor(name, type)` | a list | `get()`, `add(v)`, `add_all(vs)`, `update(vs)`; it can be iterated |
# | `MapStateDescriptor(name, key_type, type)` | a map, by insertion | `get(k)`, `put(k, v)`, `remove(k)`, `items()` |
# | `ReducingStateDescriptor(name, function, type)` | one value of all that were added | `get()`, `add(v)` |
# | `AggregatingStateDescriptor(name, aggregate, type)` | an accumulator of all that were added | `get()`, `add(v)` |
#
# All have `clear()`. What is not there is `None` or empty. A map also has `contains`, `put_all`, `keys`, `values`,
# `is_empty`; `state[k]` and `k in state` work, too.


# %%
class Mean(cj.AggregateFunction):
    def create_accumulator(self):
        return 0.0, 0

    def add(self, value, accumulator):
        return accumulator.total + value, accumulator.count + 1

    def get_result(self, accumulator):
        return accumulator.total / accumulator.count


class Statistics(cj.KeyedCoProcessFunction):
    def open(self, ctx):
        self.tier = ctx.get_state(cj.ValueStateDescriptor("tier", "string"))
        self.amounts = ctx.get_list_state(cj.ListStateDescriptor("amounts", "double"))
        self.by_tier = ctx.get_map_state(cj.MapStateDescriptor("by_tier", "string", "long"))
        self.largest = ctx.get_reducing_state(cj.ReducingStateDescriptor("largest", max, "double"))
        self.mean = ctx.get_aggregating_state(cj.AggregatingStateDescriptor("mean", Mean(), "total double, count long"))

    def process_element1(self, trade, ctx):
        tier = self.tier.value() or "none"
        self.amounts.add(trade.amount)
        self.by_tier[tier] = (self.by_tier.get(tier) or 0) + 1
        self.largest.add(trade.amount)
        self.mean.add(trade.amount)
        yield ctx.get_current_key(), self.largest.get(), self.mean.get()

    def process_element2(self, customer, ctx):
        self.tier.update(customer.tier)


amounts = HarnessInput("customer string, amount double, event_time timestamp", key="customer")
with Harness(Statistics(), "customer string, largest double, mean double", input1=amounts, input2=CUSTOMERS) as harness:
    harness.process_table1("""
        customer | amount | event_time
        ann      | 120    | 09:00
        ann      | 80     | 09:10
        ann      | 310    | 09:20
    """)
    harness.process_element2(("ann", "gold"), at("09:05"))
    harness.process_watermark(at("10:00"))
pd.DataFrame(harness.output, columns=["customer", "largest", "mean"])

# %%
pd.DataFrame({"kept for ann": harness.state("ann")})

# %% [markdown]
# * What is set is checked against the type at once and copied; what is read can't change what is stored.
# * `update(None)` clears a value. `ReducingState.add(None)` is an error, where Flink's heap state would be cleared.
# * Keep in states what must be remembered. Every call of a key group works on a copy of the function, so **attributes
#   are lost**:


# %%
class Counts(cj.KeyedCoProcessFunction):
    in_attribute = 0

    def open(self, ctx):
        self.in_state = ctx.get_state(cj.ValueStateDescriptor("in_state", "long"))

    def process_element1(self, trade, ctx):
        self.in_attribute += 1
        self.in_state.update((self.in_state.value() or 0) + 1)
        yield self.in_attribute, self.in_state.value()


harness = new_harness(Counts(), "in_attribute long, in_state long", order="arrival")
for trade_id in (1, 2, 3):
    harness.process_element1(("ann", trade_id), at("09:00"))  # each call is a micro-batch of its own
pd.DataFrame(harness.output, columns=["in_attribute", "in_state"])

# %% [markdown]
# ### How does a state forget?
#
# By `clear()`, or by a **time-to-live**: `ttl=cj.StateTtlConfig("1 hour")`. Something is gone once it was not accessed
# for so long. Each element of a list and each entry of a map has a time of its own. No code of yours is called then;
# use a timer where something is to happen.
#
# | option | values; the first is the default |
# |---|---|
# | `time_domain` | `"processing_time"`, the micro-batches' clock, as in Flink; or `"event_time"`: deterministic |
# | `update_type` | `"on_create_and_write"`; or `"on_read_and_write"`: reads prolong it, too |
# | `state_visibility` | `"never_return_expired"`; or `"return_expired_if_not_cleaned_up"`, not in event time |


# %%
class RecentTier(EnrichTrades):
    def open(self, ctx):
        super().open(ctx)
        hour = cj.StateTtlConfig("1 hour", time_domain="event_time")
        self.tier = ctx.get_state(cj.ValueStateDescriptor("recent_tier", "string", ttl=hour))


harness = new_harness(RecentTier())
harness.process_element2(("ann", "gold"), at("09:00:00"))
for trade_id, time in ((1, "09:59:59"), (2, "10:00:00")):
    harness.process_element1(("ann", trade_id), at(time))
harness.process_watermark(at("10:02"))
events(harness)

# %% [markdown]
# At 10:00:00 the record is one hour old, and trade 2 finds none. A time-to-live can be made longer or shorter later. As
# in Flink, it can't be added to a state that is in a checkpoint already, nor taken from it.

# %% [markdown]
# ## What do timers do?
#
# * `register_event_time_timer(t)` fires when the watermark reaches `t`, `register_processing_time_timer(t)` when the
#   clock of a micro-batch does. `ctx.time_domain()` tells `on_timer` which of the two it was. All times are epoch
#   milliseconds.
# * There is at most one timer for a key, a domain and a timestamp, so registering it twice is the same as once.
#   `delete_..._timer(t)` deletes it; deleting what is not there does nothing. Timers are part of the state and survive
#   restarts.
# * A timer for the past fires when the watermark moves next; one set inside `on_timer` fires in the same sweep.
# * Event-time timers fire before processing-time timers of the same micro-batch.
# * A timer per row may be more than you need: rounded up to the minute, `t - t % 60_000 + 60_000`, it is one timer a
#   key and minute.
#
# Here a customer who did nothing for five minutes of *processing time* is reported: each trade moves the timer.


# %%
class Silence(cj.KeyedCoProcessFunction):
    def open(self, ctx):
        self.alarm = ctx.get_state(cj.ValueStateDescriptor("alarm", "long"))

    def process_element1(self, trade, ctx):
        timers = ctx.timer_service()
        if self.alarm.value() is not None:
            timers.delete_processing_time_timer(self.alarm.value())
        self.alarm.update(timers.current_processing_time() + 300_000)
        timers.register_processing_time_timer(self.alarm.value())

    def on_timer(self, timestamp, ctx):
        self.alarm.clear()
        yield ctx.get_current_key(), ctx.time_domain().value


harness = new_harness(Silence(), "silent string, time_domain string", order="arrival", processing_time=at("12:00"))
harness.process_element1(("ann", 1), at("09:00"))
harness.set_processing_time(at("12:04"))
harness.process_element1(("ann", 2), at("09:01"))
print([(key, domain, clock(time)) for key, domain, time in harness.timers()])
harness.set_processing_time(at("12:08:59"))
assert harness.output == []
harness.set_processing_time(at("12:09"))
events(harness)

# %% [markdown]
# The clock is each micro-batch's own processing time as Spark logged it, so a batch that is run again sees the same. A
# query with such timers runs micro-batches without rows, one a trigger; a bounded `start` looks at the clock once more
# at its end, and a streaming `to_dataframe()` under `availableNow` never ends. Such timers are noticed by their name
# `register_processing_time_timer` in the methods of the class. Where a helper outside of the class sets them, say
# `process(..., processing_time_timers=True)`.

# %% [markdown]
# ## How do I send rows elsewhere?
#
# With a side output: declare an `OutputTag` with its columns, and yield `tag, row`. Each output has columns and a sink
# of its own.

# %%
UNKNOWN = cj.OutputTag("unknown", "trade_id long, customer string")


class EnrichKnown(EnrichTrades):
    def on_timer(self, timestamp, ctx):
        for trade_id, customer, tier in super().on_timer(timestamp, ctx):
            yield UNKNOWN, (trade_id, customer)


harness = new_harness(EnrichKnown(), side_outputs=[UNKNOWN])
harness.process_element1(("ann", 1), at("09:00:10"))
harness.process_element1(("cat", 2), at("09:00:20"))
harness.process_element2(("ann", "gold"), at("09:00:30"))
harness.process_watermark(at("09:05"))
print("main:", harness.output, " unknown:", harness.side_output(UNKNOWN))

# %% [markdown]
# ## In which order does it see rows?
#
# You choose with `process(..., order=...)`. A function that only notes what it is called with shows the difference. The
# rows arrive in two micro-batches, out of order; each trade sets a timer two seconds after it.


# %%
def note(what, ctx):
    return [(what, clock(ctx.timestamp()), clock(ctx.timer_service().current_watermark()))]


class Notes(cj.KeyedCoProcessFunction):
    def process_element1(self, trade, ctx):
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2_000)
        return note(f"trade {trade.trade_id}", ctx)

    def process_element2(self, customer, ctx):
        return note(f"customer {customer.tier}", ctx)

    def on_timer(self, timestamp, ctx):
        return note("timer", ctx)


LATE_BY = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second")  # rows move the watermark, as in a query


def notes(order):
    inputs = {"input1": replace(TRADES, watermark=LATE_BY), "input2": replace(CUSTOMERS, watermark=LATE_BY)}
    harness = Harness(Notes(), "called_with string, time string, watermark string", order=order, **inputs)
    harness.process_batch(
        [Element(("ann", 2), at("09:00:04")), Element(("ann", 1), at("09:00:03"))],
        [Element(("ann", "gold"), at("09:00:04"))],
    )
    harness.process_batch(
        [Element(("ann", 3), at("09:00:09")), Element(("ann", 9), at("09:00:01"))],
        [Element(("ann", "silver"), at("09:00:08"))],
    )
    harness.end_input()
    return harness


columns = ["called with", "timestamp()", "current_watermark()"]
pd.concat(
    {order: pd.DataFrame(notes(order).output, columns=columns) for order in ("event_time", "arrival")}, axis=1
).fillna("")

# %% [markdown]
# | | `"event_time"`, the default | `"arrival"`, Flink's |
# |---|---|---|
# | a row comes | when the watermark reaches its time | in its micro-batch, at once |
# | rows of a key, by | time (µs), second input first, sequence, content | input, sequence, content; never time |
# | timers | in one sequence of time with the key's rows | after the batch's rows, all keys of a key group by time |
# | a row of time t sees the watermark | t - 1 ms | of the operator before the micro-batch |
# | an event-time timer t sees the watermark | t | of the operator after the micro-batch |
# | `current_watermark1()`, `current_watermark2()` | the same as `current_watermark()` | each input's own |
# | late rows | rejected | given to the function |
# | equal rows, equal results | whatever batches, arrival and restarts were | for a batch that is run again |
#
# *Sequence* is the source's own, such as Kafka's topic, partition and offset. Keys come one after the other in
# event-time order. A processing-time timer sees the operator's watermark after the micro-batch in both orders.
#
# Trade 9 is missing on the left: it was late. Its time, 09:00:01, is below the watermark that its micro-batch began
# with, 09:00:02.999.

# %%
print([(each.input, each.reason, each.row["trade_id"]) for each in notes("event_time").rejected])
print(notes("event_time").report().table())

# %% [markdown]
# In arrival order a function gets late rows and decides itself: a row is late where `ctx.timestamp() <=
# current_watermark()`. An input without event time (`event_time=None`) works in arrival order only; its
# `ctx.timestamp()` is `None`. A join by processing time is such a function of a few lines: keep the newest record in a
# value state, and yield it with each trade.

# %% [markdown]
# ## What happens when it fails?
#
# The message names the function, the callback, the input, the key, the row, and the file and line (left out below, for
# in a notebook they are those of a temporary file). Mistakes that can be found before are refused before.


# %%
class Faulty(EnrichTrades):
    def process_element1(self, trade, ctx):
        if trade.trade_id == 1:
            yield trade.trade_id / 0, "ann", None
        elif trade.trade_id == 2:
            yield "two", "values"
        else:
            self.tier.update(trade.trade_id)


class Misspelled(cj.KeyedCoProcessFunction):
    def on_timers(self, timestamp, ctx):
        yield 1, "ann", None


def fails(action):
    try:
        action()
    except cj.CojoinError as error:
        text = re.sub(r" \([^()]*:\d+, in \w+\)|; \w+ is written in .*", "", f"{type(error).__name__}: {error}")
        print(textwrap.fill(text, 120, subsequent_indent="    "))


harness = new_harness(Faulty(), order="arrival")
before = harness.snapshot()
for trade_id in (1, 2, 3):
    fails(lambda: harness.process_element1(("ann", trade_id), 1_000))
assert harness.snapshot() == before  # a call that fails changes nothing
fails(lambda: new_harness(Misspelled()))

# %% [markdown]
# In a query the same message ends the run (`QueryFailedError`), and nothing of that micro-batch is written. Correct the
# function, keep its name, and start the query again: the same batch is run again, with the state before it. An
# `on_timer` that sets timers at or below the one that fires is stopped after 10,000 of them.

# %% [markdown]
# ## What happens at the end?
#
# A bounded run **pauses**: waiting rows, states and timers stay in the checkpoint, and the next run goes on. A
# **drain** finishes both inputs: the watermark goes to the end of time, all rows come, and every timer that was set
# before fires, processing-time timers too. In a drain, a timer that a *row* sets fires however late it is. One that
# `on_timer` sets fires up to the largest event time seen; later ones are counted as `timers_not_fired`. So a function
# whose timers set the next one comes to an end:


# %%
class Heartbeat(cj.KeyedCoProcessFunction):
    def process_element1(self, trade, ctx):
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp, ctx):
        yield (ctx.get_current_key(),)
        ctx.timer_service().register_event_time_timer(timestamp + 60_000)


harness = new_harness(Heartbeat(), "alive string")
harness.process_element1(("ann", 1), at("09:00:00"))
harness.process_element1(("bob", 2), at("09:03:30"))
harness.end_input()
print(harness.report().ending())
events(harness)

# %% [markdown]
# ## How do I test a function?
#
# With pytest and the harness: send rows, move watermarks and the clock, and compare. `assert_output` takes a table of
# text; it looks only at the columns that the table names.


# %%
def test_a_trade_waits_a_minute_for_its_customers_first_record():
    with new_harness(EnrichTrades()) as harness:
        harness.process_element1({"customer": "ann", "trade_id": 1}, at("09:00:00"))
        harness.process_element1({"customer": "bob", "trade_id": 2}, at("09:00:00"))
        harness.process_element2({"customer": "bob", "tier": "gold"}, at("09:00:59"))
        harness.process_watermark(at("09:01:00") - 1)
        assert_output(harness, "trade_id | tier\n2 | gold")
        harness.process_watermark(at("09:01:00"))
        assert_output(
            harness,
            """
            trade_id | customer | tier
            2        | bob      | gold
            1        | ann      | null
            """,
        )


def test_a_known_customer_keeps_no_trade():
    harness = new_harness(EnrichTrades())
    harness.process_element2(("ann", "gold"), at("09:00"))
    harness.process_element1(("ann", 1), at("09:30"))
    harness.process_watermark(at("09:30"))
    assert harness.take()[0] == Record((1, "ann", "gold"), at("09:30"))
    assert (harness.state("ann"), harness.timers(), harness.buffered(1)) == ({"tier": "gold"}, [], [])


test_a_trade_waits_a_minute_for_its_customers_first_record()
test_a_known_customer_keeps_no_trade()

# %% [markdown]
# Where an output differs, the message shows how:

# %%
try:
    assert_output([(1, "gold"), (2, "silver")], "id | tier\n1 | gold\n2 | bronze", schema="id long, tier string")
except AssertionError as error:
    print(error)

# %% [markdown]
# ### What can a test do?
#
# | to | call |
# |---|---|
# | send rows, each as a micro-batch of its own | `process_element1(row, time)`, `process_table1(text)`, and `2` |
# | send several rows in one micro-batch | `process_batch([Element(row, time), ...], [...])` |
# | move watermarks | `process_watermark(t)`; `process_watermark1(t, partition=...)`, and `2` |
# | let rows move the watermark, as in a query | `HarnessInput(watermark=cj.WatermarkStrategy...)` |
# | move the clock | `set_processing_time(t)` |
# | let an input fall silent, return or end | `set_idle(1)`, `set_active(1)`, `set_finished(1)` |
# | drain; run everything at once as static inputs do | `end_input()`; `run_static(rows1, rows2)` |
# | see what came out | `output`, `side_output(tag)`, `rejected`, `log`, `take()` |
# | look inside | `state(key)`, `timers()`, `buffered(1)`, `current_watermark()`, `input_watermark(1)`, `report()` |
# | save and go on | `snapshot()`, `restore(data)` |
#
# After each call the harness checks that no row was lost: rows in = done + buffered + rejected. A watermark that goes
# back is a mistake of the test and an error (`regressing_watermarks="ignore"` allows it).
#
# ### Does it survive a restart, other key groups, a new version?
#
# A snapshot is what a checkpoint keeps. It may be restored into another number of key groups, and into a function that
# has changed (more states, wider types; what can't be restored is refused with the difference):


# %%
class EnrichAndCount(EnrichTrades):
    """The next version: it has a state more."""

    def open(self, ctx):
        super().open(ctx)
        self.records = ctx.get_state(cj.ValueStateDescriptor("records", "long"))

    def process_element2(self, customer, ctx):
        self.records.update((self.records.value() or 0) + 1)
        yield from super().process_element2(customer, ctx)


def test_the_next_version_goes_on_where_this_one_stopped():
    old = new_harness(EnrichTrades(), key_groups=2)
    old.process_element1(("ann", 1), at("09:00:00"))
    old.process_element1(("bob", 2), at("09:00:10"))
    old.process_watermark(at("09:00:30"))
    new = new_harness(EnrichAndCount(), key_groups=3)
    new.restore(old.snapshot())
    new.process_element2(("ann", "gold"), at("09:00:40"))
    new.process_watermark(at("09:02"))
    assert_output(new, "trade_id | tier\n1 | gold\n2 | null", any_order=True)
    assert new.state("ann") == {"tier": "gold", "records": 1}


test_the_next_version_goes_on_where_this_one_stopped()

# %% [markdown]
# ### Does the order of arrival matter?
#
# In event-time order it must not. Shuffle the rows, cut them into micro-batches anywhere, and compare (the seed makes
# it repeatable):


# %%
def test_the_result_depends_on_the_rows_alone():
    rows = [(1, Element((key, number), at(f"09:0{number}:00"))) for number in range(8) for key in ("ann", "bob")]
    rows += [(2, Element((key, f"tier {n}"), at(f"09:0{n}:30"))) for n in (2, 5) for key in ("ann", "cat")]
    results = set()
    for seed in range(20):
        chance = random.Random(seed)
        chance.shuffle(rows)
        harness = new_harness(EnrichTrades(), key_groups=chance.choice([1, 2, 4]))
        waiting = list(rows)
        while waiting:
            size = chance.randint(1, 6)
            batch, waiting = waiting[:size], waiting[size:]
            harness.process_batch(*([row for number, row in batch if number == side] for side in (1, 2)))
        harness.end_input()
        results.add(tuple(sorted(harness.output, key=repr)))
    assert len(results) == 1


test_the_result_depends_on_the_rows_alone()

# %% [markdown]
# **What the harness does not do**: no packing, shuffle, sinks, checkpoints on disk or reading of sources; how Spark
# cuts micro-batches and the order of rows across keys are not simulated, and the clock stands still but for
# `set_processing_time`. Run the function once on Spark, too.

# %% [markdown]
# ## How do I run it on Spark?
#
# `connect` two inputs and `process`. These are the rows of the beginning, as static DataFrames: the function runs once,
# to the end of time. (This part needs Java 17. The first start fetches Delta's packages.)

# %%
spark = cj.spark_session(
    "02_functions",
    master="local[2]",
    conf={
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 1,
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
    },
)
trades_df = spark.createDataFrame(parse_table(TRADE_ROWS, TRADES.columns), TRADES.columns)
customers_df = spark.createDataFrame(parse_table(CUSTOMER_ROWS, CUSTOMERS.columns), CUSTOMERS.columns)
pair = cj.connect(
    cj.Input(trades_df, key="customer", event_time="event_time", name="trades"),
    cj.Input(customers_df, key="customer", event_time="event_time", name="customers"),
    key_groups=2,
)
enriched = pair.process(EnrichKnown(), OUTPUT, side_outputs=[UNKNOWN])
enriched.to_dataframe().orderBy("trade_id").toPandas()

# %%
unknown = enriched.to_dataframe(UNKNOWN).toPandas()
harness = new_harness(EnrichKnown(), side_outputs=[UNKNOWN])
harness.run_static(
    *(parse_table(*table) for table in ((TRADE_ROWS, TRADES.columns), (CUSTOMER_ROWS, CUSTOMERS.columns)))
)
assert [tuple(row) for row in unknown.itertuples(index=False)] == harness.side_output(UNKNOWN)
unknown

# %% [markdown]
# Each `to_dataframe()` runs the function by itself. Streams give a streaming DataFrame; better, `start(output=...,
# side_outputs={UNKNOWN: cj.sinks.delta(...)}, checkpoint=..., trigger=...)` writes all outputs from one run, exactly
# once, and continues from its checkpoint, as guide 01 shows with a join. A side output without a sink is a Delta table
# in the checkpoint directory.

# %%
spark.stop()

# %% [markdown]
# ## What is it called in PyFlink, and in `transformWithState`?
#
# PyFlink's names are kept wherever PyFlink has the thing. [A table](coming_from.md) has the three next to each other.
#
# Guide 05 has the semantics in full, guide 03 shows how to look at the states of a running query.

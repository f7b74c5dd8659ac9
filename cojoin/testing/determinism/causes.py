"""What a result may depend on besides its rows, in the words of the message: what it is, what causes it, the cure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARRIVAL", "CHANCE", "CLOCK", "CUTS", "HASH_SEED", "KEYS", "LEFTOVERS", "MIXED", "RESTARTS", "Cause"]


@dataclass(frozen=True)
class Cause:
    """What a result depends on.

    Attributes:
        name: It in a few words, which follow "depends on".
        usually: What usually causes it.
        cure: What to do about it.
        first: What the first of two runs is that differ.
        second: What the second run is.
    """

    name: str
    usually: str
    cure: str
    first: str
    second: str


CLOCK = Cause(
    "the clock",
    "the function calls time.time(), datetime.now(), date.today() or current_processing_time(); or it sets timers of "
    "processing time, or keeps state with a time-to-live in processing time.",
    "take the time from the rows: ctx.timestamp(), or ctx.timer_service().current_watermark(); and use timers and "
    "time-to-live in event time.",
    "at one time of the clock",
    "at another time",
)
CHANCE = Cause(
    "random numbers",
    "the function calls random, numpy.random, uuid4() or os.urandom().",
    "draw from a generator with a seed that is made of the row, such as random.Random(trade.trade_id); make an id from "
    "the row's columns, such as with uuid5().",
    "the first run",
    "the same run again",
)
LEFTOVERS = Cause(
    "what earlier runs left behind in the process",
    "the function changes an attribute of its class or a global variable of its module, or uses id() or the default "
    "hash() of objects, which are memory addresses.",
    "keep what must last in a keyed state, which open() gets from its context; nothing else may change what it yields.",
    "the first run",
    "the same run again in the same process",
)
HASH_SEED = Cause(
    "the order in which a set is iterated",
    "the function iterates over a set or frozenset of strings, or calls hash() on one. Python orders them differently "
    "in each process, by PYTHONHASHSEED.",
    "iterate over sorted(the_set), or keep a dict or a list, which have an order.",
    "one hash seed",
    "another hash seed",
)
KEYS = Cause(
    "which keys are processed together, and so on the number of key groups",
    "the function keeps something of one key for the next one in an attribute, such as a counter, a dict or the last "
    "row in self.",
    "keep it in a keyed state, which open() gets from its context. If it is meant to span keys, put these rows under "
    "one key.",
    "the key alone",
    "the key beside other keys",
)
RESTARTS = Cause(
    "where micro-batches begin, and where it is restarted",
    "the function keeps something in an attribute from one row to the next, or does something in open() for every "
    "batch. On Spark each micro-batch has a new copy of the function, and after a restart it is new everywhere.",
    "keep it in a keyed state, which open() gets from its context.",
    "the function kept from batch to batch",
    "a new copy of the function in some batches",
)
ARRIVAL = Cause(
    "the order in which rows arrive",
    'with order="arrival" a row is processed as soon as it arrives, with whatever has arrived before it.',
    'use order="event_time"; or make the function indifferent to the order, such as with sets, sums and largest times. '
    'With order="arrival" this is the contract: if it is meant, don\'t check this function.',
    "in the order of event time",
    "in another order",
)
CUTS = Cause(
    "where the stream is cut into micro-batches",
    "the function looks at current_watermark(), which advances only between micro-batches in arrival order; or it "
    "counts its calls in open() or close().",
    'use order="event_time", where time advances row by row; and compare event times, such as ctx.timestamp().',
    "in one micro-batch",
    "in several micro-batches",
)
MIXED = Cause(
    "how its rows are delivered",
    "the function keeps something in an attribute, or goes by the order of arrival.",
    'keep it in a keyed state, which open() gets from its context, and use order="event_time".',
    "all rows in one micro-batch",
    "the delivery below",
)

"""``cojoin init``: writes a job file to begin with, whose comments say what to change.

The file of each kind of input runs as it is where its data is: ``--files`` over the folders of ``cojoin demo``, the
others over tables and topics of these names.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from cojoin.cli.day import CUSTOMERS_DDL, TRADES_DDL
from cojoin.cli.run_report import say
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from cojoin.cli.arguments import Arguments

__all__ = ["job_text", "write_job"]

_HEAD = '''\
"""Each trade with the customer record that was in force at the trade's event time.

    cojoin run {file}:enriched --output delta:./enriched --checkpoint ./_cojoin/enriched

runs it over the rows that exist now, and pauses. The same command goes on from the checkpoint; `--drain` writes the
rows that still wait, and ends it; `--then-live '10 seconds'` goes on with new rows. `cojoin run --help` has the rest.
"""

from __future__ import annotations

import os

import cojoin as cj

# How far the rows of an input come out of order: a trade waits until no earlier customer record can come any more.
# {idle}
WATERMARK = cj.WatermarkStrategy.for_bounded_out_of_orderness("5 seconds"){idleness}
'''

_TABLES = '''
# {about}
LAKE = os.environ.get("LAKE", "{lake}")
TRADES = cj.Input(
    {trades},
    name="trades",  # in counts and messages
    key="customer_id",  # or several columns: ["venue", "customer_id"]
    event_time="event_time",  # a timestamp, which Spark holds in UTC
    watermark=WATERMARK,
)
CUSTOMERS = cj.Input(
    {customers},
    name="customers",  # its event time becomes the column customers_event_time
    key="customer_id",
    event_time="event_time",
    watermark=WATERMARK,
)


def enriched(spark):
    """Return the join; `cojoin run` starts Spark, and gives the session to the argument that has no default."""
    streams = cj.connect(TRADES, CUSTOMERS, key_groups=8)  # at most so many tasks at a time
    # tolerance="1 day" forgets older records. temporal_join, interval_join and process are the other joins.
    return streams.asof_join(how="left")
'''

_FILES_ABOUT = "Folders of parquet files; each run reads the files that are new. The demo makes folders to try it with."
_DELTA_ABOUT = "Delta tables; each run reads the commits that are new. changes=True reads updates and deletes, too."

_TOPICS = '''
# The columns of the values, which are JSON; value=cj.kafka.avro(...) reads Avro by a schema registry.
TRADES = "{trades}"
CUSTOMERS = "{customers}"
SERVERS = os.environ.get("KAFKA", "localhost:9092")
OPTIONS = {{
    # librdkafka's settings. A password from the environment stands in no file, and cojoin shows it nowhere.
    # "security.protocol": "SASL_SSL",
    # "sasl.mechanism": "PLAIN",
    # "sasl.username": "enrich",
    # "sasl.password": os.environ["KAFKA_PASSWORD"],
}}

# For `--output enriched_topic`: JSON records, exactly once.
enriched_topic = cj.sinks.kafka(SERVERS, "enriched", key="customer_id", options=OPTIONS)


def topic(name, schema, since, to):
    """Return a topic as an input; the columns topic, partition and offset come after those of its values."""
    source = cj.kafka.source(SERVERS, name, schema=schema, from_=since, to=to, options=OPTIONS)
    return cj.Input(source, name=name, key="customer_id", event_time="event_time", watermark=WATERMARK)


def enriched(spark, since="earliest", to=None):
    """Return the join; `cojoin run` starts Spark, and gives the session to the argument that has no default.

    `--set since=2026-01-05 --set to=2026-01-26` reads three weeks, by the records' timestamps.
    """
    trades = topic("trades", TRADES, since, to)
    customers = topic("customers", CUSTOMERS, since, to)
    streams = cj.connect(trades, customers, key_groups=8)  # at most so many tasks at a time
    # suffixes= since columns of both have one name. tolerance="1 day" forgets older records.
    return streams.asof_join(how="left", suffixes=("", "_customer"))
'''


def write_job(arguments: Arguments) -> int:
    """Write the file, print what to do next, and return the exit code.

    Raises:
        ConfigurationError: The file exists, can't be written, or is not named as one of Python.
    """
    path = Path(arguments.file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        msg = f"{arguments.file}: expected the name of a Python file, such as job.py"
        raise ConfigurationError(msg)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(job_text(arguments.kind, arguments.file))
    except OSError as error:
        reason = "it exists; choose another name" if isinstance(error, FileExistsError) else error.strerror
        msg = f"{arguments.file}: it can't be written: {reason}"
        raise ConfigurationError(msg) from error
    say(f"Wrote {path}. Next:\n")
    if arguments.kind == "files":
        say("  cojoin demo --directory ./cojoin-demo")
    job = shlex.quote(f"{arguments.file}:enriched")
    say(f"  cojoin run {job} --output delta:./enriched --checkpoint ./_cojoin/enriched")
    return 0


def job_text(kind: str, file: str) -> str:
    """Return the text of a job file.

    Args:
        kind: The kind of its inputs: ``files``, ``delta`` or ``kafka``.
        file: The file's name, for the command in its docstring.
    """
    if kind == "kafka":
        head = _HEAD.format(
            file=file,
            idle="A partition without rows for a minute no longer holds time back.",
            idleness='.with_idleness("1 minute")',
        )
        return head + _TOPICS.format(trades=TRADES_DDL, customers=CUSTOMERS_DDL)
    head = _HEAD.format(
        file=file,
        idle='.with_idleness("1 day") at its end lets time go on without an input that has no new rows.',
        idleness="",
    )
    if kind == "delta":
        sides = {name: f'cj.sources.delta(f"{{LAKE}}/{name}")' for name in ("trades", "customers")}
        return head + _TABLES.format(lake="/lake", about=_DELTA_ABOUT, **sides)
    sides = {
        name: f'cj.sources.files(\n        f"{{LAKE}}/{name}",\n        "parquet",\n        schema="{ddl}",\n    )'
        for name, ddl in (("trades", TRADES_DDL), ("customers", CUSTOMERS_DDL))
    }
    return head + _TABLES.format(lake="./cojoin-demo", about=_FILES_ABOUT, **sides)

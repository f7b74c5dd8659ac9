"""The options for reading Kafka topics, in ``cojoin run`` and in ``cojoin replay``.

No option has a default here, so that an option that is given for inputs other than topics is noticed
(``kafka_arguments``). The defaults are those of ``cojoin.kafka.source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.cli import typed_values
from cojoin.cli.record_options import add_record_options

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["REPLAY_ABOUT", "REPLAY_EXAMPLES", "REPLAY_USAGE", "add_for_both", "add_kafka_options", "add_then_live"]

REPLAY_USAGE = """\
cojoin replay --left kafka:HOST:PORT/TOPIC --right kafka:HOST:PORT/TOPIC
                     --key COLUMNS --event-time COLUMN [--left-schema DDL --right-schema DDL]
                     --output KIND:PATH --checkpoint PATH [--from WHERE] [--to WHERE]
                     [further options]"""

REPLAY_ABOUT = """\
Joins the history of Kafka topics: each row of the left one with the row of the right one in
force at its event time. Both topics and all their partitions are read in step by event time:
none makes the rows of another late, and few rows are buffered, however different the topics
are. A replay ends at --to, or after the records that exist at its start, and pauses; --drain
writes all waiting rows; --then-live continues with new records. The same command continues
from the checkpoint."""

REPLAY_EXAMPLES = """\
examples:
  All rows of three weeks of two topics:
    cojoin replay --left kafka:localhost:9092/trades --right kafka:localhost:9092/customers \\
      --left-schema 'trade_id long, customer_id long, event_time timestamp, amount double' \\
      --right-schema 'customer_id long, event_time timestamp, tier string' \\
      --key customer_id --event-time event_time --delay '5 seconds' --suffixes ,_customers \\
      --from 2026-01-05 --to 2026-01-26 --drain \\
      --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched

  The same topics from their beginnings, then live until Ctrl-C, one batch every 10 seconds.
  The file has the first four lines of options above, and the broker's login. Live, a partition
  without new records holds the join back until it has been silent for --idleness, and where
  all are silent, the last rows wait for new ones, unless --when-all-idle is max:
    cojoin replay @topics.args --then-live '10 seconds' --idleness '1 minute' \\
      --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched

  Older trades, which Kafka no longer has, from an archive with columns for topic, partition,
  offset and timestamp:
    cojoin replay @topics.args --left-archive delta:/lake/trades_archive \\
      --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched

  Avro by a schema registry, the customer from the records' keys, lag seen in a group:
    cojoin replay --left kafka:localhost:9092/trades --right kafka:localhost:9092/customers \\
      --format avro --registry http://localhost:8081 --left-column customer_id=key:long \\
      --key customer_id --event-time event_time --suffixes ,_customers --group enrich-trades \\
      --output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched

Rows of both topics have the columns topic, partition and offset, so two topics need --suffixes.
A place may name several topics, kafka:HOST:PORT/TOPIC,TOPIC, or a pattern of their names,
'kafka:HOST:PORT/^trades-.*'; from start to start topics may be added.

WHERE is earliest, latest, a time such as 2026-01-05T09:30Z (UTC if it has no zone), an
offset, or JSON by topic and partition, such as '{"trades": {"0": 1200, "1": "latest"}}'.
Times refer to the records' timestamps. `cojoin run --every '10 seconds'` continues live later.

Option values that may be secret are never printed. Exits with 0; with 1 if --verify finds
a difference; with 2 for an error that you can correct; with 3 for an unexpected error;
with 130 after Ctrl-C.
"""


def add_for_both(group: Any, name: str, metavar: str, text: str, read: Callable[[str], Any] = str) -> None:
    """Add an option for both inputs, and one for each input alone, which overrides it."""
    group.add_argument(f"--{name}", type=read, metavar=metavar, help=f"{text}, for both inputs")
    for side in ("left", "right"):
        group.add_argument(f"--{side}-{name}", type=read, metavar=metavar, help=f"the same for the {side} input alone")


def add_kafka_options(parser: argparse.ArgumentParser, *, replays: bool) -> None:
    """Add the options for reading topics.

    Args:
        parser: The command's parser.
        replays: Whether the command is ``replay``, in which reading may have an end.
    """
    group = parser.add_argument_group("reading Kafka topics")
    add_for_both(
        group,
        "from",
        "WHERE",
        "where a new query begins: earliest (default), latest, a time, an offset, or JSON by topic and partition",
        typed_values.bound,
    )
    if replays:
        add_for_both(
            group,
            "to",
            "WHERE",
            "where reading ends, in the same forms (default: after the records that exist at the start)",
            typed_values.bound,
        )
    add = group.add_argument
    add(
        "--max-drift",
        type=typed_values.reader(typed_values.duration),
        metavar="DURATION",
        help="how far a partition may be behind the others: a record's event time, and its arrival in the topic, must "
        "be at most this far from its timestamp; in the history, a partition without records for longer than this does "
        "not hold back the join (default: 10 minutes)",
    )
    add(
        "--max-records",
        type=typed_values.positive,
        metavar="N",
        help="the most records of each input in a batch (default: 500000)",
    )
    add(
        "--patience",
        type=typed_values.reader(typed_values.duration_or_none),
        metavar="DURATION",
        help="how long to wait while no broker answers; 'none' waits forever (default: 1 minute)",
    )
    add(
        "--undecodable",
        choices=("reject", "fail"),
        help="whether a record that can't be decoded goes to the rejected rows (default) or ends the query",
    )
    add(
        "--tombstones",
        choices=("reject", "keep"),
        help="whether a record without a value goes to the rejected rows (default) or is a row of nulls",
    )
    add(
        "--data-loss",
        choices=("fail", "skip"),
        help="whether records that were deleted before they were read end the query (default) or are reported as "
        "rejected",
    )
    add_for_both(
        group,
        "group",
        "NAME",
        "a consumer group to which the offsets of counted batches are committed, for tools that watch its lag",
    )
    add_record_options(group, add_for_both)
    for side in ("left", "right"):
        add(
            f"--{side}-archive",
            type=typed_values.reader(typed_values.archive),
            metavar="KIND:PLACE",
            help=f"delta:PATH or parquet:FOLDER with the {side} topic's older records, which Kafka may no longer have; "
            f"with columns for topic, partition, offset and timestamp",
        )


def add_then_live(ends: Any) -> None:
    """Add the option to go on live after the end of a replay."""
    ends.add_argument(
        "--then-live",
        type=typed_values.reader(typed_values.duration),
        metavar="DURATION",
        help="then continue with new records until Ctrl-C, with one batch per interval, such as '10 seconds'",
    )

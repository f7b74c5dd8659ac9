"""Whether a source still has what follows the position at which a restored query goes on with it.

A position is a line of Spark's offset log. Rows that the source no longer keeps are a loss, told with its size, which
the user may accept; ``with_losses_accepted`` then gives the position moved to the earliest there is. What can't be gone
on with at all, such as a topic or table that was made anew, is an error. A source may have been made anew and filled
beyond the position: Delta's tables have an id that tells, of Kafka's topics nothing tells. Options may hold secrets:
no message shows any but the servers' address.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from cojoin.checkpoints.outputs import commit_versions, open_log, unhindered
from cojoin.errors import CheckpointError, did_you_mean
from cojoin.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["check_position", "with_losses_accepted"]

# Kafka's own default is a minute in which it seems to hang.
_PATIENCE = {"default.api.timeout.ms": "20000", "request.timeout.ms": "10000"}
_NOTHING_READ = ("", "-", "null")
_SERVERS = "kafka.bootstrap.servers"


@dataclass(frozen=True)
class _Partition:
    """A Kafka partition: where the query stood, and what there is now."""

    topic: str
    number: int
    saved: int
    earliest: int
    latest: int


def check_position(
    spark: SparkSession,
    what: str,
    format: str,  # noqa: A002 - Spark's word
    location: str | None,
    options: Mapping[str, str],
    offset: str | None,
) -> list[str]:
    """See whether a source still has what follows a position.

    Args:
        spark: The session.
        what: The source's name for people, such as ``"input 'trades'"``.
        format: Spark's name of its format.
        location: A path, a table's name, or topics.
        options: Spark's options for the format.
        offset: The line of Spark's offset log; None or ``-`` where nothing was read yet.

    Returns:
        What is lost, a text for each loss, which the user may accept; nothing where all is there.

    Raises:
        CheckpointError: The query can't go on with this source.
    """
    if offset is None or offset.strip() in _NOTHING_READ:
        return []
    if format == "kafka":
        return [
            f"{what}: topic {each.topic} partition {each.number}: {each.earliest - each.saved:,} records are gone "
            f"(offsets {each.saved:,} to {each.earliest - 1:,})"
            for each in _partitions(spark, what, options, offset)
            if each.earliest > each.saved
        ]
    if format == "delta":
        first, earliest = _delta_versions(spark, what, str(location), offset)
        if earliest > first:
            which = f"version {first} is" if earliest == first + 1 else f"versions {first} to {earliest - 1} are"
            return [f"{what}: Delta table {location}: {which} gone from the log"]
    # Of files nothing need be there but those to come.
    return []


def with_losses_accepted(
    spark: SparkSession,
    what: str,
    format: str,  # noqa: A002 - Spark's word
    location: str | None,
    options: Mapping[str, str],
    offset: str | None,
) -> str | None:
    """Give the position behind all losses: the earliest that there is, where that is later.

    Args:
        spark: The session.
        what: The source's name for people.
        format: Spark's name of its format.
        location: A path, a table's name, or topics.
        options: Spark's options for the format.
        offset: The line of Spark's offset log.

    Returns:
        A line of the same form; the same line where nothing is lost.

    Raises:
        CheckpointError: The query can't go on with this source.
    """
    if offset is None or not check_position(spark, what, format, location, options, offset):
        return offset
    position = json.loads(offset)
    if format == "kafka":
        for each in _partitions(spark, what, options, offset):
            position[each.topic][str(each.number)] = max(each.saved, each.earliest)
    else:
        _, earliest = _delta_versions(spark, what, str(location), offset)
        position |= {"sourceVersion": 1, "reservoirVersion": earliest, "index": -1, "isStartingVersion": False}
    return json.dumps(position, separators=(",", ":"))


def _partitions(spark: SparkSession, what: str, options: Mapping[str, str], offset: str) -> list[_Partition]:
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no client of Kafka's
    client = jvm.org.apache.kafka.clients.admin.AdminClient
    if not isinstance(client, JavaClass):
        # Spark itself will ask for the connector.
        return []
    saved: dict[str, dict[str, int]] = _parsed(what, offset)
    _check_subscribed(what, options, saved)
    settings = jvm.java.util.HashMap()
    own = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    for name, value in (_PATIENCE | own).items():
        settings.put(name, str(value))
    try:
        admin = client.create(settings)
        try:
            _check_topics(jvm, admin, what, options, saved)
            earliest = _offsets(jvm, admin, saved, jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())
            latest = _offsets(jvm, admin, saved, jvm.org.apache.kafka.clients.admin.OffsetSpec.latest())
        finally:
            admin.close()
    except Py4JJavaError as error:
        # Without the cause: the client's settings, which may be secret, could stand in the JVM's stack.
        msg = f"{what}: {options.get(_SERVERS)} does not tell its topics' offsets: {_shown(error, options)}"
        raise CheckpointError(msg) from None
    found = [
        _Partition(topic, number, position, earliest[topic, number], latest[topic, number])
        for topic, positions in saved.items()
        for number, position in sorted((int(number), position) for number, position in positions.items())
    ]
    for each in found:
        if each.latest < each.saved:
            msg = (
                f"{what}: topic {each.topic} partition {each.number} ends at offset {each.latest:,}, before the "
                f"checkpoint's {each.saved:,}: the topic was made anew or cut off since; start a new query"
            )
            raise CheckpointError(msg)
    return found


def _check_subscribed(what: str, options: Mapping[str, str], saved: Mapping[str, Any]) -> None:
    if "subscribe" not in options:
        return
    subscribed = {topic.strip() for topic in options["subscribe"].split(",")}
    for topic in saved:
        if topic not in subscribed:
            msg = (
                f"{what}: the checkpoint has read topic {topic!r}, which the source no longer names: it names "
                f"{options['subscribe']!r}; name it, or start a new query"
            )
            raise CheckpointError(msg)


def _check_topics(
    jvm: Any, admin: Any, what: str, options: Mapping[str, str], saved: Mapping[str, Mapping[str, int]]
) -> None:
    servers = options.get(_SERVERS)
    there = {str(name) for name in admin.listTopics().names().get()}
    for topic in saved:
        if topic not in there:
            msg = f"{what}: {servers} no longer has topic {topic!r}, which the checkpoint has read"
            raise CheckpointError(msg + did_you_mean(topic, there))
    names = jvm.java.util.ArrayList()
    for topic in saved:
        names.add(topic)
    described = admin.describeTopics(names).allTopicNames().get()
    for topic, positions in saved.items():
        numbers = {int(partition.partition()) for partition in described[topic].partitions()}
        gone = sorted({int(number) for number in positions} - numbers)
        if gone:
            msg = (
                f"{what}: topic {topic} of {servers} has {len(numbers)} partitions and no partition {gone[0]}, which "
                f"the checkpoint has read: the topic was made anew; start a new query"
            )
            raise CheckpointError(msg)


def _offsets(jvm: Any, admin: Any, saved: Mapping[str, Mapping[str, int]], which: Any) -> dict[tuple[str, int], int]:
    asked = jvm.java.util.HashMap()
    for topic, positions in saved.items():
        for number in positions:
            asked.put(jvm.org.apache.kafka.common.TopicPartition(topic, int(number)), which)
    answer = admin.listOffsets(asked).all().get()
    return {(str(each.topic()), int(each.partition())): int(answer[each].offset()) for each in answer}


def _delta_versions(spark: SparkSession, what: str, location: str, offset: str) -> tuple[int, int]:
    """Give the version that is read next, and the earliest from which all are there, no earlier than that one."""
    position, log = _parsed(what, offset), open_log(spark, location)
    where = f"{what}: Delta table {location}"
    if log is None:
        msg = f"{where}: there is no such table, and the checkpoint has read it; start a new query"
        raise CheckpointError(msg)
    newest, table_id = int(log.unsafeVolatileSnapshot().version()), str(log.unsafeVolatileSnapshot().metadata().id())
    first = int(position["reservoirVersion"])
    if table_id != position["reservoirId"] or first > newest + 1:
        got = f"id {table_id}, version {newest}"
        msg = (
            f"{where}: the checkpoint has read a table of the id {position['reservoirId']} up to version {first}; "
            f"got {got}: it was replaced by another; start a new query"
        )
        raise CheckpointError(msg)
    in_snapshot = bool(position["isStartingVersion"])
    if in_snapshot:
        _check_snapshot(spark, where, location, first)
        first += 1
    there = set(commit_versions(spark, log))
    earliest = newest + 1
    while earliest > first and earliest - 1 in there:
        earliest -= 1
    if in_snapshot and earliest > first:
        # There is no position to move to: in the snapshot's middle, and behind what is gone.
        msg = (
            f"{where}: the checkpoint has read a part of its version {first - 1}, and the versions {first} to "
            f"{earliest - 1} are gone from the log; start a new query"
        )
        raise CheckpointError(msg)
    return first, earliest


def _check_snapshot(spark: SparkSession, where: str, location: str, version: int) -> None:
    """See that the rest of a table's first reading is there: the version, and the files that were removed since."""
    session, by_path = unhindered(spark), is_path(location)
    try:
        reader = session.read().format("delta")
        now = set((reader.load if by_path else reader.table)(location).inputFiles())
        reader = reader.option("versionAsOf", version)
        then = set((reader.load if by_path else reader.table)(location).inputFiles())
        gone = [file for file in sorted(then - now) if not _exists(spark, file)]
        why = f"{len(gone):,} of its {len(then):,} files" if gone else None
    except (PySparkException, Py4JError):
        why = "its commits"
    if why is not None:
        msg = (
            f"{where}: the checkpoint has read a part of its version {version}, and {why} are gone, so the rest can't "
            f"be read; start a new query"
        )
        raise CheckpointError(msg)


def _exists(spark: SparkSession, file: str) -> bool:
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public way to Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(file))
    return bool(path.getFileSystem(spark._jsc.hadoopConfiguration()).exists(path))  # noqa: SLF001


def _parsed(what: str, offset: str) -> dict[str, Any]:
    try:
        position = json.loads(offset)
    except ValueError:
        position = None
    if not isinstance(position, dict):
        msg = f"{what}: the checkpoint's position is not in the form of Spark's offset log; got {offset[:60]!r}"
        raise CheckpointError(msg)
    return position


def _shown(error: Py4JJavaError, options: Mapping[str, str]) -> str:
    """Give the cause's words without anything that stands in the options."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    text = str(cause.getMessage() or cause.toString())
    values = [str(value) for name, value in options.items() if name.startswith("kafka.") and name != _SERVERS]
    # A login module's passwords stand within one option.
    values += [part for value in values for pair in re.findall(r"\"([^\"]*)\"|'([^']*)'", value) for part in pair]
    for value in sorted(filter(None, values), key=len, reverse=True):
        text = text.replace(value, "***")
    return text

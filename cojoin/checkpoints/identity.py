"""Which query a checkpoint belongs to: ``query.json``, written before the first batch and compared at every start.

Compared is what the stored state depends on: the inputs' names, columns and keys, the operation, the output's
columns, the key groups, whether the clock matters. Watermark strategies, triggers and sinks may change between runs;
only from one that needs the clock (idleness, a lag behind it) to one that does not, or back, they may not. A new query
that is restored from a checkpoint may have other key groups, clock or not, a further state or side output, a nullable
column more, or wider types (``cojoin.evolution``). Also kept: which sources the inputs read, without their options.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

from cojoin import evolution
from cojoin.errors import CheckpointError
from cojoin.types import parse_schema, schema_to_ddl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from cojoin.checkpoints.files import CheckpointFiles
    from cojoin.inputs import InputSpec

__all__ = ["SourceDescription", "check_evolution", "claim_checkpoint", "describe_query", "note_sources", "read_query"]

SourceDescription: TypeAlias = "Mapping[str, str | None] | None"
"""What tells a source from others: its ``format`` and ``location``; None for a bare DataFrame, of which nothing is
known."""

FORMAT = 4
_FILE = "query.json"


def describe_query(
    operation: dict[str, Any],
    inputs: tuple[InputSpec, InputSpec],
    output: pa.Schema,
    key_groups: int,
    *,
    needs_clock: bool = False,
) -> dict[str, Any]:
    """Give the shape of a query, as JSON values.

    Args:
        operation: What the operation says of itself.
        inputs: Both inputs.
        output: The output's columns.
        key_groups: How many there are.
        needs_clock: Whether batches without rows matter: Spark's state has another form where they do.
    """
    return {
        **operation,
        "output": schema_to_ddl(output),
        "key_groups": key_groups,
        "needs_clock": needs_clock,
        "inputs": [
            {
                "name": spec.name,
                "columns": schema_to_ddl(spec.schema),
                "key": list(spec.key),
                "event_time": spec.event_time,
                "partition": list(spec.partition),
                "sequence": list(spec.sequence),
            }
            for spec in inputs
        ],
    }


def claim_checkpoint(
    files: CheckpointFiles, query: dict[str, Any], sources: Sequence[SourceDescription] = (None, None)
) -> str:
    """Make the checkpoint this query's, or see that it already is.

    Args:
        files: The checkpoint.
        query: What ``describe_query`` gives.
        sources: What the inputs read.

    Returns:
        The query's id, the same for all runs on this checkpoint.

    Raises:
        CheckpointError: It belongs to another query, to another shape of this one, or to something else.
    """
    if files.read(_FILE) is None:
        found = files.names("")
        if found:
            msg = (
                f"checkpoint {files.root}: the directory holds {', '.join(map(repr, found[:3]))} and no {_FILE}, "
                f"so it is no checkpoint of cojoin's; choose another directory, or an empty one"
            )
            raise CheckpointError(msg)
        query_id = str(uuid.uuid4())
        _write(files, query_id, query, sources)
        return query_id
    stored = read_query(files)
    # Two operations have little in common, so that one differs says it all.
    same_operation = stored["query"].get("operator") == query.get("operator")
    asked = query if same_operation else {**stored["query"], "operator": query.get("operator")}
    differences = _differences(stored["query"], asked)
    if differences:
        listed = "; ".join(differences)
        msg = (
            f"checkpoint {files.root} belongs to another query, or to another shape of this one: {listed}. "
            f"Start this query with a checkpoint of its own, or make it the query that the checkpoint holds; where it "
            f"has evolved, restore_from= takes the state into a new checkpoint"
        )
        raise CheckpointError(msg)
    return str(stored["query_id"])


def note_sources(files: CheckpointFiles, sources: Sequence[SourceDescription]) -> str:
    """Keep what the inputs read from now on; only for who holds the checkpoint.

    Returns:
        The query's id.
    """
    stored = read_query(files)
    if list(sources) != stored["sources"]:
        _write(files, stored["query_id"], stored["query"], sources)
    return str(stored["query_id"])


def read_query(files: CheckpointFiles) -> dict[str, Any]:
    """Give what a checkpoint says of its query: ``query_id``, ``query``, ``sources``.

    Raises:
        CheckpointError: It is no checkpoint, or one of another format.
    """
    text = files.read(_FILE)
    if text is None:
        there = "there is no such directory" if not files.exists() else f"the directory has no {_FILE}"
        msg = f"checkpoint {files.root}: {there}, so it is no checkpoint of cojoin's; name a query's checkpoint="
        raise CheckpointError(msg)
    stored = _parse(text, files)
    if stored["format"] > FORMAT:
        msg = f"checkpoint {files.root}: its format {stored['format']} is newer than {FORMAT}; upgrade cojoin"
        raise CheckpointError(msg)
    if stored["format"] < FORMAT:
        msg = (
            f"checkpoint {files.root}: its format {stored['format']} is that of an earlier version of cojoin, which "
            f"this one can't go on with; start with a new checkpoint, or with the version that wrote it"
        )
        raise CheckpointError(msg)
    return stored


def check_evolution(stored: Mapping[str, Any], asked: Mapping[str, Any], root: str) -> None:
    """See that a query can take the state of another: the same, or evolved from it.

    Args:
        stored: The description of the query that wrote the state.
        asked: That of the query that is to go on.
        root: The checkpoint, for the message.

    Raises:
        CheckpointError: It lists the differences.
    """
    if stored.get("operator") != asked.get("operator"):
        differences = [f"operator is {stored.get('operator')!r} there and {asked.get('operator')!r} here"]
    else:
        differences = _differences(_without_evolvable(stored), _without_evolvable(asked))
        differences += _evolution("output", stored["output"], asked["output"])
        for one, two in zip(stored["inputs"], asked["inputs"], strict=True):
            what = f"input {two['name']!r}"
            # A wider key would be another key, in another key group.
            differences += _evolution(what, one["columns"], two["columns"], fixed=two["key"])
        for tag, columns in stored.get("side_outputs", {}).items():
            if tag not in asked.get("side_outputs", {}):
                differences.append(f"side output {tag!r} is there and not here")
            else:
                differences += _evolution(f"side output {tag!r}", columns, asked["side_outputs"][tag])
    if differences:
        msg = (
            f"checkpoint {root} can't go on as this query: {'; '.join(differences)}. A state may be added, a nullable "
            f"column added, or a type widened; make the query again what the checkpoint holds, or begin without it"
        )
        raise CheckpointError(msg)


def _without_evolvable(query: Mapping[str, Any]) -> dict[str, Any]:
    evolvable = {"output", "key_groups", "needs_clock", "function", "side_outputs", "inputs"}
    inputs = [{name: value for name, value in each.items() if name != "columns"} for each in query["inputs"]]
    return {**{name: value for name, value in query.items() if name not in evolvable}, "inputs": inputs}


def _evolution(what: str, stored: str, asked: str, fixed: Sequence[str] = ()) -> list[str]:
    found = evolution.differences(parse_schema(stored, what=what), parse_schema(asked, what=what), fixed=fixed)
    return [f"{what}: {difference}" for difference in found]


def _write(
    files: CheckpointFiles, query_id: str, query: Mapping[str, Any], sources: Sequence[SourceDescription]
) -> None:
    content = {"format": FORMAT, "query_id": query_id, "query": query, "sources": list(sources)}
    files.write(_FILE, json.dumps(content, indent=2))


def _parse(text: str, files: CheckpointFiles) -> dict[str, Any]:
    try:
        stored = json.loads(text)
    except ValueError:
        stored = None
    if not isinstance(stored, dict) or not {"format", "query_id", "query"} <= set(stored):
        msg = f"checkpoint {files.root}: its {_FILE} was not written by cojoin; choose another directory"
        raise CheckpointError(msg)
    return stored


def _differences(stored: Any, asked: Any, place: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(asked, dict):
        found = []
        for name in [*stored, *(name for name in asked if name not in stored)]:
            found += _differences(stored.get(name), asked.get(name), f"{place}.{name}" if place else name)
        return found
    if isinstance(stored, list) and isinstance(asked, list) and len(stored) == len(asked):
        found = []
        for position, (one, two) in enumerate(zip(stored, asked, strict=True)):
            found += _differences(one, two, f"{place}[{position}]")
        return found
    return [] if stored == asked else [f"{place} is {stored!r} there and {asked!r} here"]

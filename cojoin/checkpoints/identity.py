"""Which query a checkpoint belongs to: ``query.json``, written before the first batch and compared at every start.

Compared is what the stored state depends on: the inputs' names, columns and keys, the operation, the output's
columns, the key groups, whether the clock matters. Watermark strategies, triggers and sinks may change between runs;
only from one that needs the clock (idleness, a lag behind it) to one that does not, or back, they may not.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError
from cojoin.types import schema_to_ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from cojoin.checkpoints.files import CheckpointFiles
    from cojoin.inputs import InputSpec

__all__ = ["claim_checkpoint", "describe_query"]

FORMAT = 2
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


def claim_checkpoint(files: CheckpointFiles, query: dict[str, Any]) -> str:
    """Make the checkpoint this query's, or see that it already is.

    Returns:
        The query's id, the same for all runs on this checkpoint.

    Raises:
        CheckpointError: It belongs to another query, to another shape of this one, or to something else.
    """
    text = files.read(_FILE)
    if text is None:
        found = files.names("")
        if found:
            msg = (
                f"checkpoint {files.root}: the directory holds {', '.join(map(repr, found[:3]))} and no {_FILE}, "
                f"so it is no checkpoint of cojoin's; choose another directory, or an empty one"
            )
            raise CheckpointError(msg)
        query_id = str(uuid.uuid4())
        files.write(_FILE, json.dumps({"format": FORMAT, "query_id": query_id, "query": query}, indent=2))
        return query_id
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
    # Two operations have little in common, so that one differs says it all.
    same_operation = stored["query"].get("operator") == query.get("operator")
    asked = query if same_operation else {**stored["query"], "operator": query.get("operator")}
    differences = _differences(stored["query"], asked)
    if differences:
        listed = "; ".join(differences)
        msg = (
            f"checkpoint {files.root} belongs to another query, or to another shape of this one: {listed}. "
            f"Start this query with a checkpoint of its own, or make it the query that the checkpoint holds"
        )
        raise CheckpointError(msg)
    return str(stored["query_id"])


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

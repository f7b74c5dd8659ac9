"""The description of a checkpoint's query: ``query.json``, written before the first batch and compared at every start.

The comparison covers what the stored state depends on: the inputs' names, columns and keys, the operation, the output's
columns, the number of key groups, and whether the query needs the processing-time clock. Watermark strategies, triggers
and sinks may change between runs, except that a strategy that needs the clock (idleness, a lag behind the clock) can't
replace one that does not, or the reverse.

A new query that is restored from a checkpoint may differ more: in its number of key groups and its need of the clock,
by an added state, side output or nullable column, and by wider types (``schema_evolution``). The file also keeps which
sources the inputs read, without their options.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from cojoin.checkpoints.lease_record import LEASE_FILE
from cojoin.checkpoints.written_state import WRITTEN, refuse_written
from cojoin.engine.values import schema_evolution
from cojoin.engine.values.texts import back_quoted
from cojoin.engine.values.types import parse_schema, schema_to_ddl
from cojoin.errors import CheckpointError
from cojoin.storage.document_text import IDENTITY, Form, damaged, to_text
from cojoin.storage.documents import read_document, replace_document, write_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cojoin.engine.inputs import InputSpec
    from cojoin.storage.store import Store

__all__ = [
    "SourceDescription",
    "check_description",
    "check_evolution",
    "claim_checkpoint",
    "describe_query",
    "describe_written",
    "known_sources",
    "note_sources",
    "read_query",
]

SourceDescription: TypeAlias = "Mapping[str, Any] | None"
"""What identifies a source: its ``format`` and ``location``, for Kafka also the ids of the cluster and the topics; None
for a bare DataFrame, of which nothing is known."""

_FILE = IDENTITY
_FORM = Form(
    "the description of its query",
    5,
    "put it back from a backup of the checkpoint; without it nothing here can be used, and a new checkpoint= begins "
    "the query anew",
    {"query_id": str, "query": dict, "sources": list},
    unsealed=4,
)
# Longer than the time from a start's read to its write.
_SETTLE_SECONDS = 0.2
_OTHERS = {"lease.json", "manifest", "spark", "snapshots", "state"}
"""Other files and directories of a checkpoint that was used."""


def describe_query(
    operation: dict[str, Any],
    inputs: tuple[InputSpec, InputSpec],
    output: pa.Schema,
    key_groups: int,
    *,
    needs_clock: bool = False,
) -> dict[str, Any]:
    """Return the description of a query, as JSON values.

    Args:
        operation: The description of the operation.
        inputs: Both inputs.
        output: The output's columns.
        key_groups: The number of key groups.
        needs_clock: Whether batches without rows matter; where they do, Spark's state has another format.
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
                **({} if spec.changes is None else {"changes": spec.changes.describe()}),
                **({"static": True} if spec.static else {}),
            }
            for spec in inputs
        ],
    }


def claim_checkpoint(files: Store, query: dict[str, Any], sources: Sequence[SourceDescription] = (None, None)) -> str:
    """Write the query's description into an empty checkpoint, or check that the checkpoint belongs to this query.

    Args:
        files: The checkpoint.
        query: The description that ``describe_query`` returned.
        sources: The descriptions of the inputs' sources.

    Returns:
        The query's id, the same for all runs on this checkpoint.

    Raises:
        CheckpointError: The directory belongs to another query, to another shape of this one, or to something else; or
            its description is damaged; or it holds a state that was written for queries to begin with.
    """
    refuse_written(files)
    if not files.exists(_FILE):
        found = files.names("")
        # Another start may have written it since.
        if found and _FILE not in found:
            raise _without_description(files, found)
        query_id = str(uuid.uuid4())
        # Of two starts one writes it, and the other continues with that: a second id would write all rows again.
        written = replace_document(files, _FILE, _FORM, _content(query_id, query, sources), None)
        if written and files.swaps:
            return query_id
    if not files.swaps and not files.exists(LEASE_FILE):
        # Without compare-and-swap, starts of the same moment all write it; what the last one wrote holds.
        time.sleep(_SETTLE_SECONDS)
    stored = read_query(files)
    # Where the operations differ, the error names only them: nearly all else differs too.
    same_operation = stored["query"].get("operator") == query.get("operator")
    asked = query if same_operation else {**stored["query"], "operator": query.get("operator")}
    differences = _differences(stored["query"], asked)
    if differences and not _differences(_without_columns(stored["query"]), _without_columns(asked)):
        changes = list(_column_changes(stored["query"], asked))
        if changes:
            msg = (
                f"checkpoint {files.root}: the inputs' columns are not those of the checkpoint: {'; '.join(changes)}. "
                f"Start this query with a checkpoint of its own where that is not wanted"
            )
            raise CheckpointError(msg)
    if differences:
        listed = "; ".join(differences)
        msg = (
            f"checkpoint {files.root} belongs to another query, or to another shape of this one: {listed}. "
            f"Start this query with a checkpoint of its own, or make it the query that the checkpoint holds; where it "
            f"has evolved, restore_from= takes the state into a new checkpoint"
        )
        raise CheckpointError(msg)
    return str(stored["query_id"])


def describe_written(
    files: Store, query_id: str, query: Mapping[str, Any], sources: Sequence[SourceDescription]
) -> None:
    """Write the description of the query for which a state was written; it makes the directory a checkpoint.

    Args:
        files: The directory, with the state.
        query_id: The query whose outputs go on; a new id where there is none.
        query: The description that ``describe_query`` returned.
        sources: The descriptions of the inputs' sources.
    """
    write_document(files, _FILE, _FORM, _content(query_id, query, sources))


def note_sources(files: Store, sources: Sequence[SourceDescription], epoch: int = 0) -> str:
    """Write which sources the inputs read from now on; only the holder of the lease may call this.

    Args:
        files: The checkpoint.
        sources: The descriptions of the inputs' sources.
        epoch: The epoch of the lease.

    Returns:
        The query's id.
    """
    stored = read_query(files)
    content = _content(stored["query_id"], stored["query"], sources, stored.get("epoch", 0))
    # A description of release 0.5.0 differs by its missing checksum, so it gets one here.
    if files.read(_FILE) != to_text(_FILE, _FORM, content):
        write_document(files, _FILE, _FORM, content | {"epoch": epoch})
    return str(stored["query_id"])


def check_description(files: Store, described: int) -> int:
    """Check that ``query.json`` is not a former version of itself.

    Args:
        files: The checkpoint.
        described: The epoch of the run that had written it last, as a manifest says it.

    Returns:
        The epoch of the run that has written it last.

    Raises:
        CheckpointError: It is older.
    """
    found = int(read_query(files).get("epoch", 0))
    if found < described:
        why = f"the run of epoch {described} has written it, and this is a former version, of epoch {found}"
        raise damaged(files, _FILE, _FORM, why)
    return found


def known_sources(files: Store) -> Sequence[SourceDescription]:
    """Return the descriptions of the sources that a checkpoint's query reads; two Nones where there is no query."""
    return (None, None) if files.read(_FILE) is None else list(read_query(files)["sources"])


def read_query(files: Store) -> dict[str, Any]:
    """Return the content of a checkpoint's description: ``query_id``, ``query``, ``sources``.

    Raises:
        CheckpointError: The directory is not a checkpoint, its format is not one that this version reads, or its
            description is damaged.
    """
    stored = read_document(files, _FILE, _FORM, _parse)
    if stored is None:
        found = files.names("") if files.exists() else None
        # The query's first start may have written it since, and the other files after it.
        stored = read_document(files, _FILE, _FORM, _parse) if found is not None and _FILE in found else None
        if stored is None:
            raise _without_description(files, found)
    return stored


def check_evolution(stored: Mapping[str, Any], asked: Mapping[str, Any], root: str) -> None:
    """Check that a query can be restored from another's state: that it is the same query or has evolved from it.

    Args:
        stored: The description of the query that wrote the state.
        asked: The description of the query to restore.
        root: The checkpoint, for the message.

    Raises:
        CheckpointError: The query can't be restored; the message lists the differences.
    """
    if stored.get("operator") != asked.get("operator"):
        differences = [f"operator is {stored.get('operator')!r} there and {asked.get('operator')!r} here"]
    else:
        differences = _differences(_without_evolvable(stored), _without_evolvable(asked))
        differences += _evolution("output", stored["output"], asked["output"])
        for one, two in zip(stored["inputs"], asked["inputs"], strict=True):
            what = f"input {two['name']!r}"
            # A key of a wider type hashes differently, which moves it to another key group.
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


def _without_columns(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description without the inputs' columns, and without the output's, which follow from them."""
    inputs = [{name: value for name, value in each.items() if name != "columns"} for each in query["inputs"]]
    return {**query, "inputs": inputs, "output": None}


def _column_changes(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yield for each column of an input that came, went or changed what it is, and what to do."""
    for one, two in zip(stored["inputs"], asked["inputs"], strict=True):
        what = f"input {two['name']!r}"
        then, now = (parse_schema(each["columns"], what=what) for each in (one, two))
        before = "FIRST"
        for field in then:
            column = schema_to_ddl(pa.schema([field.with_nullable(True)]))
            if field.name not in now.names:
                yield (
                    f"{what} has lost column {field.name!r}; add it again, such as with ALTER TABLE ... ADD COLUMN "
                    f"({column} {before})"
                )
            elif now.field(field.name) != field:
                found = schema_to_ddl(pa.schema([now.field(field.name)]))
                yield (
                    f"{what} has the column {found}, in the checkpoint it is {schema_to_ddl(pa.schema([field]))}; cast "
                    f"it to that type, or, where it has become wider, take the state into a new checkpoint with "
                    f"restore_from="
                )
            before = f"AFTER {back_quoted(field.name)}"
        for field in now:
            if field.name not in then.names:
                yield (
                    f"{what} has the column {field.name!r} more; drop it from the input, or take the state into a new "
                    f"checkpoint with restore_from="
                )
        if then != now and set(then.names) == set(now.names) and all(now.field(each.name) == each for each in then):
            yield f"{what} has its columns in another order, {', '.join(now.names)}; select {', '.join(then.names)}"


def _without_evolvable(query: Mapping[str, Any]) -> dict[str, Any]:
    evolvable = {"output", "key_groups", "needs_clock", "function", "side_outputs", "inputs"}
    inputs = [{name: value for name, value in each.items() if name != "columns"} for each in query["inputs"]]
    return {**{name: value for name, value in query.items() if name not in evolvable}, "inputs": inputs}


def _evolution(what: str, stored: str, asked: str, fixed: Sequence[str] = ()) -> list[str]:
    found = schema_evolution.differences(parse_schema(stored, what=what), parse_schema(asked, what=what), fixed=fixed)
    return [f"{what}: {difference}" for difference in found]


def _content(
    query_id: str, query: Mapping[str, Any], sources: Sequence[SourceDescription], epoch: int = 0
) -> dict[str, Any]:
    return {"query_id": query_id, "query": query, "sources": list(sources), "epoch": epoch}


def _parse(content: dict[str, Any]) -> dict[str, Any]:
    """Check that the content describes two inputs and an operation, and return it."""
    query, inputs = content["query"], content["query"]["inputs"]
    is_described = all(isinstance(query[name], str) for name in ("operator", "output")) and len(inputs) == 2
    for each in inputs:
        is_described &= all(isinstance(each[name], str) for name in ("name", "columns"))
        # An input whose rows are processed in the order of their arrival may have no event time.
        is_described &= isinstance(each["event_time"], (str, type(None)))
        is_described &= all(isinstance(each[name], list) for name in ("key", "partition", "sequence"))
    if not is_described or not isinstance(query["key_groups"], int):
        msg = "it describes no operation on two inputs"
        raise ValueError(msg)
    return content


def _without_description(files: Store, found: Sequence[str] | None) -> CheckpointError:
    """Return the error for a directory without a description of its query.

    Args:
        files: The directory.
        found: The names of its files; None where the directory does not exist.
    """
    if found is None:
        why = "there is no such directory, so it is no checkpoint of cojoin's; name a query's checkpoint="
    elif WRITTEN in found:
        why = "writing a state into it was begun and not finished; write it again, into the same directory"
    elif _OTHERS & set(found):
        why = (
            f"{_FILE}, {_FORM.what}, is gone, and the rest of a checkpoint is there ({', '.join(found[:3])}): "
            f"{_FORM.cure}"
        )
    else:
        holds = f"holds {', '.join(map(repr, found[:3]))} and" if found else "has"
        why = (
            f"the directory {holds} no {_FILE}, so it is no checkpoint of cojoin's; name a query's checkpoint, or "
            f"choose an empty directory for a new one"
        )
    return CheckpointError(f"checkpoint {files.root}: {why}")


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

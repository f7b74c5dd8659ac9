"""The description of a checkpoint's query: ``query.json``, written before the first batch and compared at every start.

The comparison and its allowed changes are in ``query_changes``. The description has whether Spark's state has timeouts
(``needs_clock``), which is decided with the first batch. The file also keeps the sources that the inputs read, without
their options; the settings with which the next batches are planned (``plan_settings``), so that a batch is run again as
it was planned; and the former descriptions of a query whose columns have been added to.

``written.json`` notes that a directory holds a state for queries to begin with, which no query has made.
``write_state`` and ``erase`` write this note first and ``query.json`` last, so a directory that has the one and not the
other is unfinished: nothing can begin with it, and the next writer deletes it. No query runs on such a directory
itself. Where the state is that of another checkpoint, the note names it: a query that begins with the state and
continues the same outputs ends that one, too.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cojoin.checkpoints.lease import LEASE_FILE
from cojoin.checkpoints.query_changes import check_same_query
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import CheckpointError
from cojoin.storage.documents import (
    IDENTITY,
    SETTLE_SECONDS,
    Form,
    damaged,
    read_document,
    replace_document,
    to_text,
    write_document,
    write_fenced,
)
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from cojoin.engine.input_spec import InputSpec
    from cojoin.storage.store import Store

WRITTEN = "written.json"
_WRITTEN_FORM = Form(
    "the note of who has written the state",
    1,
    "write the state again into an empty directory",
    {"by": str, "origin": (str, type(None)), "batch_id": int},
)
_LEASE_FILES = {"lease.json", "beats"}
"""The files of a lease in a directory; later epochs must follow theirs."""
SourceDescription: TypeAlias = "Mapping[str, Any] | None"
"""The settings that identify a source: its ``format`` and ``location``, for Kafka also the ids of the cluster and the
topics; None for a bare DataFrame, whose source is unknown."""

_FILE = IDENTITY
_FORM = Form(
    "the description of its query",
    5,
    "put it back from a backup of the checkpoint; without it the checkpoint can't be used, and a new checkpoint= "
    "begins the query from the start",
    {"query_id": str, "query": dict, "sources": list},
    unsealed=4,
)

_OTHERS = {"lease.json", "manifest", "spark", "snapshots", "state"}
"""Other files and directories of a checkpoint that was used."""


@dataclass(frozen=True)
class WrittenState:
    """The writer of a state, ``"write_state"`` or ``"erase"``, and its origin.

    ``origin`` is the checkpoint from which the state is, None where it is from DataFrames alone; ``batch_id`` is the
    batch after which it is, 0 without one.
    """

    by: str
    origin: str | None = None
    batch_id: int = 0

    @classmethod
    def read(cls, files: Store) -> WrittenState | None:
        """Return the note of a directory; None without one."""
        return read_document(files, WRITTEN, _WRITTEN_FORM, lambda content: cls(**content))

    def write(self, files: Store) -> None:
        """Write the note."""
        write_document(files, WRITTEN, _WRITTEN_FORM, asdict(self))


def check_free(files: Store, label: str) -> None:
    """Check that a state can be written into a directory: it is empty, or an earlier attempt did not finish.

    ``label`` names the caller in the message.
    """
    names = files.names("") if files.exists() else []
    if not names or (WRITTEN in names and IDENTITY not in names) or {*names} <= _LEASE_FILES:
        return
    holds = "is a checkpoint already" if IDENTITY in names else f"holds {', '.join(map(repr, sorted(names)[:3]))}"
    msg = f"{label}: the directory {without_login(files.root)} {holds}; choose an empty one, nothing was written"
    raise CheckpointError(msg)


def delete_unfinished(files: Store) -> None:
    """Delete the files of an attempt that did not finish; only the holder of the lease may call this."""
    for name in files.names(""):
        if name not in {*_LEASE_FILES, WRITTEN}:
            files.delete_directory(name)
            files.delete(name)


def refuse_written(files: Store) -> None:
    """Refuse a directory whose state is for queries to begin with; a query can't run on it."""
    written = WrittenState.read(files)
    if written is not None:
        msg = (
            f"{files.named}: it holds a state that {written.by} has written, and no query runs on it; give "
            f"the query an empty checkpoint=, and restore_from=cojoin.Snapshot({without_login(files.root)!r})"
        )
        raise CheckpointError(msg)


def describe_query(
    operation: dict[str, Any],
    inputs: tuple[InputSpec, InputSpec],
    output: pa.Schema,
    key_groups: int,
    *,
    needs_clock: bool = False,
) -> dict[str, Any]:
    """Return the description of a query, as JSON values.

    ``needs_clock``: batches without rows matter; where they do at a query's first start, Spark's state gets timeouts.
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
                **({} if spec.declared_axis is None else spec.declared_axis.describe()),
                **({} if spec.known is None else spec.known.describe()),
                **({"static": True} if spec.static else {}),
            }
            for spec in inputs
        ],
    }


def claim_checkpoint(
    files: Store,
    query: dict[str, Any],
    sources: Sequence[SourceDescription] = (None, None),
    *,
    settings: Mapping[str, Any] | None = None,
    evolve: bool = False,
) -> str:
    """Write the query's description into an empty checkpoint, or check that the checkpoint belongs to this query.

    ``query`` is from ``describe_query``, ``settings`` are those with which batches are planned; with ``evolve``,
    columns may have been added to those of the checkpoint. Returns the query's id, the same for all runs on this
    checkpoint. Raises ``CheckpointError`` where the directory belongs to another query, to another shape of this one,
    or to something else, its description is damaged, or it holds a state that was written for queries to begin with.
    """
    refuse_written(files)
    if not files.exists(_FILE):
        names = files.names("")
        # Another start may have written it since.
        if names and _FILE not in names:
            raise _without_description(files, names)
        query_id = str(uuid.uuid4())
        content = _content({"query_id": query_id, "query": query, "settings": settings}, sources)
        # Of two starts one writes it, and the other continues with that: a second id would write all rows again.
        written = replace_document(files, _FILE, _FORM, content, None)
        if written and files.has_conditional_writes:
            return query_id
    if not files.has_conditional_writes and not files.exists(LEASE_FILE):
        # Without compare-and-swap, starts of the same moment all write it; what the last one wrote holds.
        time.sleep(SETTLE_SECONDS)
    stored = read_query(files)
    check_same_query(stored["query"], query, files.named, evolve=evolve)
    return str(stored["query_id"])


def describe_written(
    files: Store, query_id: str, query: Mapping[str, Any], sources: Sequence[SourceDescription]
) -> None:
    """Write the description of the query for which a state was written; it makes the directory a checkpoint.

    ``query_id`` is the query whose outputs continue, or a new id.
    """
    write_document(files, _FILE, _FORM, _content({"query_id": query_id, "query": query}, sources))


def note_sources(
    files: Store,
    sources: Sequence[SourceDescription],
    epoch: int = 0,
    *,
    query: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    last_batch: int | None = None,
) -> str:
    """Write what a run reads and plans with from now on; only the holder of the lease may call this.

    Args:
        files: The checkpoint.
        sources: The descriptions of the inputs' sources.
        epoch: The epoch of the lease.
        query: The description of the query, whose columns may have been added to; None where it stays.
        settings: The settings with which its batches are planned; None where those that are there stay.
        last_batch: The last batch of the description that is there; None where no batch has it.

    Returns:
        The query's id.
    """
    stored = read_query(files)

    def over(noted: Mapping[str, Any]) -> dict[str, Any]:
        content = {**noted, "settings": noted.get("settings") if settings is None else settings}
        if query is not None:
            content["query"] = dict(query)
            if last_batch is not None:
                # Whether Spark's state has timeouts was decided with the first batch.
                content["query"]["needs_clock"] = noted["query"].get("needs_clock", False)
        if last_batch is not None and content["query"] != noted["query"]:
            content["former"] = _ended(noted, last_batch)
        return _content(content, sources)

    _replace_query(files, stored, epoch, over)
    return str(stored["query_id"])


def note_last_batch(files: Store, epoch: int, last_batch: int) -> None:
    """Write which batch is the last one of the description that is there; the next one runs in the form of another.

    Only the holder of the lease may call this. A run that is interrupted before it calls ``note_sources`` leaves it for
    the next one.

    Args:
        files: The checkpoint.
        epoch: The epoch of the lease.
        last_batch: The batch.
    """

    def over(noted: Mapping[str, Any]) -> dict[str, Any]:
        return _content({**noted, "former": _ended(noted, last_batch)}, noted["sources"])

    _replace_query(files, read_query(files), epoch, over)


def _replace_query(
    files: Store, stored: Mapping[str, Any], epoch: int, over: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> None:
    """Replace the description within the lease: where a later run has written it meanwhile, that one's stays."""

    def renewed(noted: Mapping[str, Any]) -> dict[str, Any]:
        content = over(noted)
        # A description of release 0.5.0 differs by its missing checksum, so it gets one here.
        is_new = to_text(_FILE, _FORM, content) != to_text(_FILE, _FORM, noted)
        return content | {"epoch": epoch} if is_new else content

    written = {**renewed(stored), "epoch": epoch}
    write_fenced(files, _FILE, _FORM, written, "has begun", over=renewed)


def _ended(stored: Mapping[str, Any], last_batch: int) -> list[Mapping[str, Any]]:
    """Return the former descriptions, with the present one as the last."""
    former = list(stored.get("former", ()))
    if former and former[-1]["query"] == stored["query"]:
        noted = former.pop()["until"]
        # An interrupted run has written it, unless batches of this description came after it.
        last_batch = noted if last_batch == noted + 1 else last_batch
    return [*former, {"until": last_batch, "query": stored["query"]}]


def described_at(stored: Mapping[str, Any], batch_id: int) -> dict[str, Any]:
    """Return the description that a checkpoint's query, as ``read_query`` returns it, had in a batch."""
    former = [each["query"] for each in stored.get("former", ()) if batch_id <= int(each["until"])]
    description: dict[str, Any] = [*former, stored["query"]][0]
    return description


def check_description(files: Store, described: int) -> dict[str, Any]:
    """Return the content of ``query.json``; raise ``CheckpointError`` where it is a former version of itself.

    ``described`` is the epoch, in a manifest, of the run that had last written it.
    """
    stored = read_query(files)
    epoch = int(stored.get("epoch", 0))
    if epoch < described:
        why = f"the run of epoch {described} has written it, and this is a former version, of epoch {epoch}"
        raise damaged(files, _FILE, _FORM, why)
    return stored


def known_sources(files: Store) -> Sequence[SourceDescription]:
    """Return the descriptions of the sources that a checkpoint's query reads; two Nones without a query."""
    return (None, None) if files.read(_FILE) is None else list(read_query(files)["sources"])


def read_query(files: Store) -> dict[str, Any]:
    """Return the content of a checkpoint's description: ``query_id``, ``query``, ``sources``.

    Raises ``CheckpointError`` where the directory is not a checkpoint, or its description is damaged or has a newer
    format.
    """
    stored = read_document(files, _FILE, _FORM, _parse)
    if stored is None:
        names = files.names("") if files.exists() else None
        # The query's first start may have written it since, and the other files after it.
        stored = read_document(files, _FILE, _FORM, _parse) if names is not None and _FILE in names else None
        if stored is None:
            raise _without_description(files, names)
    return stored


def _content(stored: Mapping[str, Any], sources: Sequence[SourceDescription]) -> dict[str, Any]:
    """Return the content of the file; unknown entries are left out, as in earlier releases."""
    more = {name: stored[name] for name in ("settings", "former") if stored.get(name)}
    return {
        "query_id": stored["query_id"],
        "query": stored["query"],
        "sources": list(sources),
        "epoch": stored.get("epoch", 0),
        **more,
    }


def _parse(content: dict[str, Any]) -> dict[str, Any]:
    """Check that the content describes two inputs and an operation, and return it."""
    query, inputs = content["query"], content["query"]["inputs"]
    is_described = all(isinstance(query[name], str) for name in ("operator", "output")) and len(inputs) == 2
    for side in inputs:
        is_described &= all(isinstance(side[name], str) for name in ("name", "columns"))
        # An input whose rows are processed in the order of their arrival may have no event time.
        is_described &= isinstance(side["event_time"], (str, type(None)))
        is_described &= all(isinstance(side[name], list) for name in ("key", "partition", "sequence"))
    former = content.get("former", [])
    is_described &= all(isinstance(each["query"], dict) and isinstance(each["until"], int) for each in former)
    if not is_described or not isinstance(query["key_groups"], int):
        msg = "it describes no operation on two inputs"
        raise ValueError(msg)
    return content


def _without_description(files: Store, names: Sequence[str] | None) -> CheckpointError:
    """Return the error for a directory without a description; ``names`` is None where it does not exist."""
    if names is None:
        why = "the directory does not exist, so it is not a checkpoint of cojoin's; name a query's checkpoint="
    elif WRITTEN in names:
        why = "writing a state into it was begun and not finished; write it again, into the same directory"
    elif _OTHERS & set(names):
        why = (
            f"{_FILE}, {_FORM.label}, is gone, and the rest of a checkpoint exists ({', '.join(names[:3])}): "
            f"{_FORM.cure}"
        )
    else:
        holds = f"holds {', '.join(map(repr, names[:3]))} and" if names else "has"
        why = (
            f"the directory {holds} no {_FILE}, so it is not a checkpoint of cojoin's; name a query's checkpoint, or "
            f"choose an empty directory for a new one"
        )
    return CheckpointError(f"{files.named}: {why}")

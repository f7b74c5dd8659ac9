"""The facts of a micro-batch that the driver passes to the calls, and the check of the state with which it begins.

They are in local properties of Spark's jobs, or in a setting of the session where these do not reach the workers (Spark
Connect).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.session.spark_checkpoint import BATCH_ID_PROPERTY
from cojoin.storage.place_tokens import Tokens, described_faults

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES_PROPERTY = "cojoin.files"
"""The local property with the places where calls may write the rows of outputs (``written_files``)."""

HOLDS_PROPERTY = "cojoin.holds"
"""The local property with the limits of the inputs' watermarks (``spark.query.input_progress``)."""

LOADS_PROPERTY = "cojoin.loads"
"""The local property of a micro-batch's jobs with how far tables' snapshots are read (``Loads``)."""

PLACES_PROPERTY = "cojoin.places"
"""The local property of a micro-batch's jobs with the tokens that a worker must find (``place_tokens.Tokens``)."""

STATE_PROPERTY = "cojoin.state"
"""The local property of a micro-batch's jobs with what is known of the state that it begins with."""


_FOUND: set[str] = set()
"""The tokens that this process has found."""


@dataclass(frozen=True)
class Loads:
    """The progress of a micro-batch in the snapshots with which streams of Delta tables begin, by the input's number.

    Attributes:
        snapshots: The version that is the snapshot of a change feed; only where the batch may have rows of it.
        rows: How many rows of its snapshot are read after the batch, and how many it has; only inside of it, and where
            the table's statistics have these numbers.
    """

    snapshots: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"snapshots": dict(self.snapshots), "rows": {number: list(rows) for number, rows in self.rows.items()}}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Loads:
        """Return what ``as_dict`` returned; nothing for nothing."""
        rows = {int(number): (int(read), int(total)) for number, (read, total) in stored.get("rows", {}).items()}
        return cls(_holds(stored.get("snapshots", {})), rows)


@dataclass(frozen=True)
class BatchFacts:
    """The facts of a micro-batch for its calls.

    Attributes:
        batch_id: Its id.
        holds: The limit of each input's watermark, which the driver derived from the offset log, by the input's number.
        state: What is known of the state that it begins with: the last batch that has called the key groups
            (``called``), and ``query_id``.
        loads: How far it is in the tables' snapshots.
        files: Where the calls may write the rows of some outputs (``FileTarget.as_dict``), by the output's kind.
            Nothing with Spark Connect, where the driver knows no such place.
        places: The tokens that a worker must find, as ``check_places`` takes them; None where nothing has to be found.
    """

    batch_id: int
    holds: Mapping[int, int]
    state: Mapping[str, Any]
    loads: Loads = field(default_factory=Loads)
    files: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    places: str | None = None

    def to_json(self) -> str:
        """Return them as a text, which ``read`` reads."""
        facts = {"batch_id": self.batch_id, "holds": self.holds, "state": self.state, "loads": self.loads.as_dict()}
        return json.dumps(facts | ({} if self.places is None else {"places": self.places}))

    @classmethod
    def read(cls, text: str) -> BatchFacts:
        """Read a text that ``to_json`` returned."""
        stored = json.loads(text)
        loads, places = Loads.read(stored["loads"]), stored.get("places")
        return cls(int(stored["batch_id"]), _holds(stored["holds"]), stored["state"], loads, places=places)


def batch_facts(setting: str | None) -> BatchFacts:
    """Return the facts of the micro-batch; its id is -1 outside of a query, as in tests."""
    if setting is not None:
        text = _property(setting)
        if text is None:
            msg = f"the setting {setting} of the micro-batch's session did not reach the workers; start the query again"
            raise QueryFailedError(msg)
        return BatchFacts.read(text)
    batch_id = _property(BATCH_ID_PROPERTY)
    names = (HOLDS_PROPERTY, STATE_PROPERTY, LOADS_PROPERTY, FILES_PROPERTY)
    holds, state, loads, files = (json.loads(_property(name) or "{}") for name in names)
    places = {int(kind): place for kind, place in files.items()}
    return BatchFacts(-1 if batch_id is None else int(batch_id), _holds(holds), state, Loads.read(loads), places)


def check_places(text: str | None = None) -> None:
    """Check, at a Python process's first task of a query, that it sees the places that the driver sees.

    Args:
        text: The driver's tokens; None reads them from Spark's local properties, which have them if they must be
            checked.

    Raises:
        CheckpointError: This host has other places.
    """
    text = _property(PLACES_PROPERTY) if text is None else text
    if not text or text in _FOUND:
        return
    tokens, own = Tokens.read(text), uuid.uuid4().hex
    faults = tokens.look(own)
    tokens.forget(own)
    if faults:
        raise CheckpointError(described_faults(faults, tokens.driver))
    _FOUND.add(text)


def _holds(stored: Mapping[str, int]) -> dict[int, int]:
    return {int(number): until for number, until in stored.items()}


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return context.getLocalProperty(name) if context else None


def check_state(written: Any, group: int, expected: Mapping[str, Any]) -> None:
    """Check that a state value is the key group's own, and as new as the manifests say.

    Args:
        written: Who wrote it, as its header says; None where there is no value, or it does not say so.
        group: The key group.
        expected: What the driver says: the last batch that has called the key groups (``called``), and ``query_id``.

    Raises:
        CheckpointError: It is another's, or older.
    """
    called, query_id = expected.get("called"), expected.get("query_id")
    if written is None:
        is_right = called is None
    else:
        is_query = written[2] is None or query_id in (None, written[2])
        is_right = written[0] == group and is_query and (called is None or written[1] >= called)
    if is_right:
        return
    got = "there is none that says so" if written is None else f"got key group, batch and query {written}"
    known = "" if called is None else f" after batch {called} or a later one, as the manifests say"
    msg = (
        f"spark/state of the checkpoint, Spark's own state store: expected the state of key group {group} of the query "
        f"{query_id}{known}; {got}: its files were exchanged or are former ones; put the checkpoint back from a "
        f"backup, or restore a snapshot into a new one with restore_from="
    )
    raise CheckpointError(msg)

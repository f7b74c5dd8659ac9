"""The facts of a micro-batch that the driver passes to the calls, and the check of the state with which it begins.

They travel as local properties of Spark's jobs; with Spark Connect, where these do not reach the workers, in a setting
of the session.
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

CLOCK_PROPERTY = "cojoin.clock"
"""The local property with the batch's logged time in epoch milliseconds (``spark_checkpoint.logged_time``)."""

FILES_PROPERTY = "cojoin.files"
"""The local property with the places where calls may write the rows of outputs (``written_files``)."""

HOLDS_PROPERTY = "cojoin.holds"
"""The local property with the limits of the inputs' watermarks (``spark.query.input_progress``)."""

LOADS_PROPERTY = "cojoin.loads"
"""The local property with the progress in tables' snapshots (``Loads``)."""

PLACES_PROPERTY = "cojoin.places"
"""The local property with the tokens for ``check_places`` (``place_tokens.Tokens``)."""

STATE_PROPERTY = "cojoin.state"
"""The local property with ``BatchFacts.state``."""

_CHECKED: set[str] = set()
"""The tokens that this process has checked."""


@dataclass(frozen=True)
class Loads:
    """Progress in the snapshots with which streams of Delta tables begin, by the input's number.

    ``snapshots`` has the version that is the snapshot of a change feed, where the batch may have rows of it. ``rows``
    are the rows of a snapshot that are read after the batch, and all of its rows, where the table's statistics have
    them.
    """

    snapshots: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"snapshots": dict(self.snapshots), "rows": {number: list(rows) for number, rows in self.rows.items()}}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Loads:
        """Return the progress that ``as_dict`` returned; an empty mapping gives none."""
        rows = {int(number): (int(read), int(total)) for number, (read, total) in stored.get("rows", {}).items()}
        return cls(_holds(stored.get("snapshots", {})), rows)


@dataclass(frozen=True)
class BatchFacts:
    """The facts of a micro-batch for its calls.

    Attributes:
        batch_id: Its id.
        holds: The limit of each input's watermark, which the driver derived from the offset log, by the input's number.
        state: The last batch that has called the key groups (``called``), and ``query_id``, for ``check_state``.
        loads: Its progress in the tables' snapshots.
        files: The folders to which calls may write rows of outputs (``FileTarget.as_dict``), by the output's kind; none
            with Spark Connect.
        places: The tokens for ``check_places``; None where none must be checked.
    """

    batch_id: int
    holds: Mapping[int, int]
    state: Mapping[str, Any]
    loads: Loads = field(default_factory=Loads)
    files: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    places: str | None = None

    def to_json(self) -> str:
        """Return the facts as JSON for ``read``, without ``files``."""
        facts = {"batch_id": self.batch_id, "holds": self.holds, "state": self.state, "loads": self.loads.as_dict()}
        return json.dumps(facts | ({} if self.places is None else {"places": self.places}))

    @classmethod
    def read(cls, text: str) -> BatchFacts:
        """Return the facts that ``to_json`` wrote."""
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


def batch_time() -> int | None:
    """Return the logged time of the task's batch, in epoch milliseconds; None where it is not a local property."""
    time = _property(CLOCK_PROPERTY)
    return None if time is None else int(time)


def check_places(text: str | None = None) -> None:
    """Raise a CheckpointError, at a process's first task of a query, unless this host sees the places of the driver.

    Without ``text``, the driver's tokens are read from Spark's local properties, if they must be checked.
    """
    text = _property(PLACES_PROPERTY) if text is None else text
    if not text or text in _CHECKED:
        return
    tokens, own = Tokens.read(text), uuid.uuid4().hex
    faults = tokens.look(own)
    tokens.forget(own)
    if faults:
        raise CheckpointError(described_faults(faults, tokens.driver))
    _CHECKED.add(text)


def _holds(stored: Mapping[str, int]) -> dict[int, int]:
    return {int(number): until for number, until in stored.items()}


def _property(name: str) -> str | None:
    context = TaskContext.get()
    return context.getLocalProperty(name) if context else None


def check_state(written: Any, group: int, expected: Mapping[str, Any]) -> None:
    """Raise a CheckpointError unless a state value belongs to the key group, and is as new as the manifests record.

    ``written`` is the key group, the batch and the query in the value's header; None where the value is missing, or has
    none of them. ``expected`` is ``BatchFacts.state``.
    """
    called, query_id = expected.get("called"), expected.get("query_id")
    if written is None:
        is_right = called is None
    else:
        is_query = written[2] is None or query_id in (None, written[2])
        is_right = written[0] == group and is_query and (called is None or written[1] >= called)
    if is_right:
        return
    got = "got none with these" if written is None else f"got key group, batch and query {written}"
    known = "" if called is None else f" after batch {called} or a later one, which the manifests record"
    msg = (
        f"spark/state of the checkpoint, Spark's own state store: expected the state of key group {group} of the query "
        f"{query_id}{known}; {got}: its files were exchanged or are former ones; put the checkpoint back from a "
        f"backup, or restore a snapshot into a new one with restore_from="
    )
    raise CheckpointError(msg)

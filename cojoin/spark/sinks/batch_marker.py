"""The identity of a batch's rows in one output, stored in each commit of a Delta output.

A batch is run again after a crash, after a stalled driver was replaced, and after a checkpoint was restored from a
backup. The table then already has the batch. The second execution may be skipped only if it is the same as the first:
if it read the same source offsets and emitted the same rows. If it is not, its input, settings or code were different:
skipping it would lose rows, and writing it would write some twice. The settings only serve to report what changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cojoin.engine.upsert import is_same_rule, spelled_rule
from cojoin.errors import QueryFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = 1
_NAME = "cojoin"


@dataclass(frozen=True)
class BatchMarker:
    """The identity of one batch's rows in one output.

    ``rows_digest`` does not depend on the order of rows; None if only their number is known. ``offsets`` is the digest
    of the source offsets at which the batch was planned to end, and of the files to which these refer; None if it is
    not known. ``settings`` determine which rows are emitted and when; only messages use them. ``upsert`` is the rule by
    which the rows are written; None where they are appended.
    """

    batch_id: int
    rows: int
    rows_digest: int | None
    offsets: str | None
    settings: Mapping[str, str] = field(default_factory=dict)
    upsert: Mapping[str, Any] | None = None

    def to_json(self, user_metadata: str | None = None) -> str:
        """Return the marker as the ``userMetadata`` of a Delta commit, with the user's own metadata in it."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "batch_id": self.batch_id,
            "rows": self.rows,
            "rows_digest": None if self.rows_digest is None else f"{self.rows_digest:016x}",
            "source_offsets": self.offsets,
            "settings": dict(self.settings),
        }
        if self.upsert is not None:
            content["upsert"] = dict(self.upsert)
        document = {_NAME: content} | ({} if user_metadata is None else {"user_metadata": user_metadata})
        return json.dumps(document)

    @classmethod
    def from_json(cls, text: str | None) -> BatchMarker | None:
        """Return the marker of a commit, or None if the commit has none that this version can read.

        >>> BatchMarker.from_json(BatchMarker(7, 3, 255, "ab").to_json("nightly"))
        BatchMarker(batch_id=7, rows=3, rows_digest=255, offsets='ab', settings={}, upsert=None)
        >>> BatchMarker.from_json("nightly") is None
        True
        """
        try:
            content = json.loads(text or "")[_NAME]
            if content["format"] != FORMAT:
                return None
            digest = content["rows_digest"]
            return cls(
                int(content["batch_id"]),
                int(content["rows"]),
                None if digest is None else int(digest, 16),
                content["source_offsets"],
                dict(content["settings"]),
                content.get("upsert"),
            )
        except (ValueError, TypeError, KeyError):
            return None

    def differences(self, stored: BatchMarker) -> list[str]:
        """Return the differences of a stored marker from this one, as texts; none if both executions are the same.

        Values that the stored marker lacks are not compared: for a commit of release 0.5.0 only the number of rows is
        known.
        """
        different = []
        if stored.offsets is not None and stored.offsets != self.offsets:
            different.append("it ended at other source offsets then")
        if stored.rows != self.rows:
            different.append(f"it had {stored.rows:,} rows then and has {self.rows:,} now")
        elif stored.rows_digest is not None and stored.rows_digest != self.rows_digest:
            different.append(f"its {self.rows:,} rows are different now")
        if not is_same_rule(stored.upsert, self.upsert):
            different.append(f"it was written {spelled_rule(stored.upsert)} then, now {spelled_rule(self.upsert)}")
        return different

    def is_reached(self, newest: int, known: int, place: str) -> bool:
        """Return whether ``newest``, the last of the query's batches that an output has, is this batch.

        A QueryFailedError means that it is a later one, or an earlier one than ``known``, the last one that this run
        has seen in the output. ``place`` is the output, such as ``"the table"``.
        """
        if newest < known:
            has = f"has the query's batches up to {newest}" if newest >= 0 else "has none of the query's batches"
            msg = (
                f"{place} {has}, and had them up to {known}: it was deleted, made again, or put back from a backup "
                f"while the query ran. Batch {self.batch_id} was not written, since rows would be left out: put the "
                f"output back as it was, or restore the query into a new checkpoint with a new output"
            )
            raise QueryFailedError(msg)
        if newest > self.batch_id:
            msg = (
                f"{place} has the query's batches up to {newest} already, so another run has continued meanwhile; "
                f"nothing was written"
            )
            raise QueryFailedError(msg)
        return newest == self.batch_id

    def compare(self, stored: BatchMarker, place: str, cure: str) -> None:
        """Raise a QueryFailedError if the batch stored in an output is from another execution.

        ``place`` is the output, such as ``"the table"``; ``cure`` is the advice, as the end of a sentence. For equal
        source offsets it is the second choice, after a start with the former settings and code.
        """
        differences = self.differences(stored)
        if not differences:
            return
        changed = self.changed_settings(stored)
        since = f" Since then {'; '.join(changed)}." if changed else ""
        if stored.offsets == self.offsets:
            cure = (
                f"start the query once with the settings and the code of that execution, and change them afterwards; "
                f"if that is impossible, {cure}"
            )
        msg = (
            f"{place} has the query's batch {self.batch_id} already, from another execution: "
            f"{'; '.join(differences)}.{since} Nothing was written: {cure}"
        )
        raise QueryFailedError(msg)

    def changed_settings(self, stored: BatchMarker) -> list[str]:
        """Return the settings that differ from those of a stored marker, as descriptions."""
        names = dict.fromkeys([*stored.settings, *self.settings])
        return [
            f"{name} was {stored.settings.get(name)} and is {self.settings.get(name)}"
            for name in names
            if stored.settings and stored.settings.get(name) != self.settings.get(name)
        ]


def offsets_digest(offsets: Sequence[str]) -> str:
    """Return a digest of the sources' offsets, which are lines of Spark's offset log.

    >>> offsets_digest(['{"logOffset":3}', "-"])
    '7f35463526b66d01b9ea492a21e6bcb2'
    """
    return hashlib.sha256("\n".join(offsets).encode()).hexdigest()[:32]

"""The report of a batch: counters, watermarks and state sizes, as JSON values and as text for people.

Every key group reports its own counters. Watermarks are in band, so all key groups report the same ones.
``merge_reports`` makes one report of those of all key groups, and raises an error where their watermarks differ.
``is_conserved`` checks the law of conservation: for each input, rows in = done + buffered + rejected.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cojoin.engine.display import Display, Shown, display_of, format_bytes, format_span, format_time, text_table
from cojoin.engine.input_spec import DIRECT
from cojoin.engine.state.segments import COPIES
from cojoin.engine.time.watermarks import NONE
from cojoin.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cojoin.engine.time.control_rows import Control
    from cojoin.engine.time.operator_watermark import HeldBy

RARE_COUNTERS = ("tombstones", "unchanged", "unavailable", "late_commits", "clock_changed")
"""The counters that a state has only where they are not zero."""


@dataclass
class InputCounts:
    """The counters of one input since the query's first batch."""

    rows_in: int = 0
    done: int = 0
    late_applied: int = 0
    tombstones: int = 0
    unchanged: int = 0
    unavailable: int = 0
    late_commits: int = 0
    clock_changed: int = 0
    late_commit: tuple[int, int] | None = None
    """The newest commit that broke its table's promise: its version, and its time in epoch milliseconds; or None."""
    rejected: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as JSON values."""
        return {
            "rows_in": self.rows_in,
            "done": self.done,
            "late_applied": self.late_applied,
            "rejected": dict(self.rejected),
            # Without these counters, the state is as release 0.5.0 wrote it.
            **{name: getattr(self, name) for name in RARE_COUNTERS if getattr(self, name)},
            **({} if self.late_commit is None else {"late_commit": list(self.late_commit)}),
        }

    def add_received(self, control: Control) -> None:
        """Count the rows, faults and tombstones that a map task sent; its tombstones are done."""
        self.rows_in += control.rows + len(control.faults) + control.tombstones
        self.done += control.tombstones
        self.tombstones += control.tombstones
        self.unavailable += control.unavailable

    def add_late_commits(self, commits: Sequence[tuple[int, int]]) -> None:
        """Count rows by the commits that broke their table's promise: a version and epoch milliseconds for each row."""
        self.late_commits += len(commits)
        self.late_commit = max([*commits, *([self.late_commit] if self.late_commit else [])], default=None)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the counters that ``as_dict`` returned."""
        self.rows_in, self.done, self.late_applied = saved["rows_in"], saved["done"], saved["late_applied"]
        self.rejected = Counter(saved["rejected"])
        for name in RARE_COUNTERS:
            setattr(self, name, saved.get(name, 0))
        self.late_commit = tuple(saved["late_commit"]) if "late_commit" in saved else None


_REASONS = {
    "null_key": "whose key is null",
    "null_event_time": "whose event time is null",
    "null_known_at": "whose known time is null",
    "too_far_ahead": "too far ahead of the clock",
    "moved_back": "whose event time a change of their table has moved back",
    "ends_before_it_begins": "whose validity ends before it begins",
    "no_moment": "whose event time is out of range, or in an hour of a clock change",
    "time_beyond_python": "with a time beyond the years 1 to 9999, which Python can't show to the function",
    "late": "that came late",
    "undecodable": "that can't be decoded",
    "unavailable_value": "with a value that its source could not read",
    "tombstone": "without a value",
    "gone": "for ranges of records that are gone",
    "erased": "that were erased",
}

_OTHERS = {
    "tombstones": "passed over {} as tombstones after deletes",
    "late_applied": "applied {} that came late",
    "unchanged": "left {} in the former state, since the new one was rejected",
    "unavailable": "set values of {} to null that were unavailable",
    "clock_changed": "took a moment by clock_change= for {}",
}
"""The clauses of ``BatchReport.ending`` about other counters of rows."""

_NEWER = ("held_by", "idle_after_ms", "quiet_since", "promise", "late_commits", "late_commit", "clock_changed")
"""The values of an input's report that ``as_dict`` leaves out where they are empty, as earlier releases did."""


@dataclass(frozen=True, repr=False)
class InputReport:
    """The counters and watermarks of one input after a batch.

    Counters start with the query's first batch, and times are epoch milliseconds.

    Attributes:
        name: The input's name.
        rows_in: Rows that the map tasks sent, including faults that the source returned instead of rows.
        done: Rows that are finished: emitted, without a match in an inner join, in force or superseded as a version, or
            processed by a function.
        buffered: Rows that wait for the watermark, or for a match.
        rejected: Rows that were not admitted, by reason.
        late_applied: Late rows that were processed nevertheless; they are also counted in ``done`` or ``buffered``.
        watermark: The input's watermark; ``-2**63`` before it has one.
        max_timestamp: The largest timestamp seen; ``-2**63`` before the first row.
        status: ``"active"``, ``"idle"`` or ``"finished"``.
        holding_partition: The active source partition with the smallest watermark; None where none is active.
        held_by: Why that partition's watermark is later than its rows' (``HeldBy``); None where it follows from its
            rows.
        partitions: Each source partition's watermark.
        idle_partitions: The source partitions that are idle.
        source_agrees: Whether the times by which its source is read, such as Kafka's record timestamps, are near the
            rows' event times, so that silent partitions do not hold the watermark back. None where the source is not
            read by times, or has returned no row yet.
        table: For a static side the loaded version of its table: ``version``, ``table_id``, ``loaded_at`` (the
            processing time of the batch that loaded it, in epoch milliseconds), and ``batch_id``. None for others.
        snapshot_rows: How many rows of its Delta table's initial snapshot have been read, and how many there are. None
            where the whole snapshot has been read, where the input does not begin with one, and where the table's
            statistics lack these numbers.
        reads_changes: Whether its rows are the changes of a table.
        has_idleness: Whether its watermark strategy has an idleness.
        tombstones: Records without a value that only repeat the delete before them, such as Debezium's; they are
            counted in ``rows_in`` and ``done``, too.
        unchanged: Rows of a table that stay as they were, since their new version was rejected; the new versions are
            counted in ``rejected``.
        unavailable: Rows that have nulls instead of values that the source could not read
            (``cojoin.kafka.debezium(..., unavailable="null")``).
        reading: For ``cojoin.sources.files(..., "parquet")`` and ``cojoin.kafka.source`` how the rows are read:
            ``"direct"`` where the Python workers read them, else the reason for which Spark does. None for others.
        idle_after_ms: After how many milliseconds of silence it goes idle; None where it never does.
        quiet_since: Since when it had no row, where it is idle by complete readings; else None.
        promise: The promise of its table, on which its watermark may rest where event time is that of the table's
            commits: the newest ``version`` that was read to its end, the moment ``asked_at`` just before that version
            was looked up, the time ``up_to``, above which all later commits are expected, and the ``watermark`` that
            follows. None for others.
        late_commits: Rows of commits that broke this promise and were late; they are counted as late, too.
        late_commit: The newest of these commits: its version, and its time. None if there is none.
        clock_changed: Rows whose local time a clock change repeats or leaves out; ``clock_change`` decided their
            moments.
    """

    name: str
    rows_in: int
    done: int
    buffered: int
    rejected: Mapping[str, int]
    late_applied: int
    watermark: int
    max_timestamp: int
    status: str
    holding_partition: str | None
    partitions: Mapping[str, int] = field(default_factory=dict)
    idle_partitions: tuple[str, ...] = ()
    source_agrees: bool | None = None
    table: Mapping[str, Any] | None = None
    snapshot_rows: tuple[int, int] | None = None
    reads_changes: bool = False
    has_idleness: bool = False
    tombstones: int = 0
    unchanged: int = 0
    unavailable: int = 0
    reading: str | None = None
    held_by: HeldBy | None = None
    idle_after_ms: int | None = None
    quiet_since: int | None = None
    promise: Mapping[str, int] | None = None
    late_commits: int = 0
    late_commit: tuple[int, int] | None = None
    clock_changed: int = 0

    @property
    def holder(self) -> str | None:
        """The holding partition in words, such as ``"partition 3"``; None where it is the only one.

        Of the columns that identify a partition, it shows only those in which the partitions differ.
        """
        if self.holding_partition is None or len(self.partitions) < 2:
            return None
        columns = zip(*(json.loads(each) for each in (self.holding_partition, *self.partitions)), strict=True)
        return f"partition {'/'.join(str(own) for own, *others in columns if any(each != own for each in others))}"

    @property
    def is_conserved(self) -> bool:
        """Whether every row is accounted for."""
        return self.rows_in == self.done + self.buffered + sum(self.rejected.values())

    def __repr__(self) -> str:
        return display_of(lambda: Display(self._line()), "InputReport").text()

    def _line(self) -> str:
        return (
            f"Input {self.name!r}: {_rows(self.rows_in)} in, {self.done:,} done, {self.buffered:,} buffered, "
            f"{sum(self.rejected.values()):,} rejected; watermark {format_time(self.watermark)}, {self.status}"
        )

    def loading(self) -> str | None:
        """Return a line on how much of the input's snapshot has been read; None where ``snapshot_rows`` is None."""
        if self.snapshot_rows is None:
            return None
        read, total = self.snapshot_rows
        return f"{self.name}: {read:,} of {total:,} rows of the snapshot read"

    def distance(self) -> str:
        """Return the end of a sentence: how far the bound of the strategy keeps the watermark behind the newest row.

        It is empty where the bound is zero, where ``held_by`` names another reason, and with several partitions.
        """
        lag = self.lag
        if lag is None or lag <= 1 or self.held_by or len(self.partitions) > 1:
            return ""
        return f", {format_span(lag - 1)} behind its newest row"

    @property
    def lag(self) -> int | None:
        """The milliseconds by which the watermark is behind the largest timestamp; None before there is a watermark."""
        return None if self.watermark == NONE else max(0, self.max_timestamp - self.watermark)


@dataclass(frozen=True, repr=False)
class BatchReport(Shown):
    """The report of a query after a batch.

    Attributes:
        batch_id: The micro-batch's number, counted from 0 in each checkpoint; -1 before the first.
        processing_time: The batch's processing time in epoch milliseconds, as Spark logged it.
        watermark: The operator's watermark in epoch milliseconds; ``-2**63`` before every input has one.
        holding_input: The name of the input that holds the watermark back; None where none is active.
        inputs: The left and the right input.
        rows_out: Output rows since the first batch.
        emitted: Rows that this batch alone emitted, by output.
        state_bytes: The size in bytes of the state of all key groups, segments included.
        state_bytes_by_key_group: The size in bytes of each key group's state, by the group's number.
        details: Counters that the operator adds, such as ``versions_in_force`` or ``timers``.
        drained: Whether all inputs are finished.
        output_delay_ms: How far an output row's event time may be behind the watermark when the row is emitted.
        segment_bytes_written: How many bytes of state this batch wrote as segments.
        written_by_spark: For each Delta table that Spark writes instead of the workers or this process, the reason, by
            the output's name; the checkpoint's tables are ``"checkpoint/state"`` and ``"checkpoint/progress"``.
        upserts: For each output with ``upsert=``, by its name, how many rows of this batch were ``inserted``,
            ``updated``, ``deleted``, ``superseded`` by another row of their key, or left out for a null in it
            (``null_keys``). A batch that the output had already counts none.
        large_key: The largest key that may need more than a task's memory (``spark.cojoin.memory``) for its rows in
            files of the state, among those that this batch has read. It has the input or state that the rows are
            ``of``, the ``key`` as text, the ``rows``, their ``bytes``, and the ``memory``. None if there is none.
    """

    batch_id: int
    processing_time: int
    watermark: int
    holding_input: str | None
    inputs: tuple[InputReport, InputReport]
    rows_out: int
    emitted: Mapping[str, int]
    state_bytes: int
    details: Mapping[str, int]
    drained: bool = False
    state_bytes_by_key_group: Mapping[str, int] = field(default_factory=dict)
    output_delay_ms: int = 0
    segment_bytes_written: int = 0
    written_by_spark: Mapping[str, str] = field(default_factory=dict)
    upserts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    large_key: Mapping[str, Any] | None = None

    @classmethod
    def before_the_first(cls, names: tuple[str, str]) -> BatchReport:
        """Return the report of a query that has seen no row."""
        left, right = (InputReport(name, 0, 0, 0, {}, 0, NONE, NONE, "active", None) for name in names)
        return cls(-1, 0, NONE, left.name, (left, right), 0, {}, 0, {})

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        values = asdict(self)
        for report in values["inputs"]:
            for name in _NEWER:
                if not report[name]:
                    del report[name]
        for name in ("written_by_spark", "upserts", "large_key"):
            if not values[name]:
                del values[name]
        return values

    @property
    def is_conserved(self) -> bool:
        """Whether every row of both inputs is accounted for."""
        return all(each.is_conserved for each in self.inputs)

    def ending(self, *, goes_on: bool = False, drain: str = "drain=True", before: BatchReport | None = None) -> str:
        """Return a line about the end of a run over the available input.

        It shows how many rows wait, for what, and the one setting that would release them. For each input it adds how
        many rows were rejected since the query's first batch, why, and how many late ones were applied. With
        ``goes_on`` the query continues at once with new rows; ``drain`` is the option by which the reader drains it.
        With ``before``, the report before the run, the line also shows which of these rows came in the run.
        """
        text = self._end(goes_on=goes_on, drain=drain)
        total = _exceptions(self.inputs)
        if total:
            text += f". Since its first batch it {total}"
        if total and before is not None:
            of_run = _exceptions(list(map(_since, self.inputs, before.inputs)))
            text += f"; in this run it {of_run}" if of_run else "; none of these rows came in this run"
        tables = [
            f"{report.name!r} is version {report.table['version']} of its table, loaded at "
            f"{format_time(report.table['loaded_at'])} UTC"
            for report in self.inputs
            if report.table is not None
        ]
        return ". ".join([text, *self._idle(), *self._late_commits(), *tables])

    def _end(self, *, goes_on: bool, drain: str) -> str:
        waiting = [f"{_rows(each.buffered)} of {each.name!r}" for each in self.inputs if each.buffered]
        if self.drained:
            left = self.details.get("timers_not_fired", 0)
            return "drained: all inputs are finished" + (
                f"; {left:,} timers set during the drain did not fire" if left else ""
            )
        state = "caught up" if goes_on else "paused"
        if not waiting:
            return f"{state}: no row waits; the watermark is {format_time(self.watermark)}"
        holder = self._holder()
        if holder is None:
            who = f"while all source partitions are idle, with the watermark at {format_time(self.watermark)}"
        elif holder.watermark >= self.watermark:
            who = f"for the watermark of {holder.name!r}, which is {format_time(self.watermark)}"
            who += holder.distance()
        else:
            # It was idle while the others advanced.
            who = f"for the watermark, which is {format_time(self.watermark)}, until {holder.name!r} has passed it"
        wait, they_come = (
            ("waits", "it comes") if sum(each.buffered for each in self.inputs) == 1 else ("wait", "they come")
        )
        out = "as new rows move it" if goes_on else "when the next run moves it"
        text = f"{state}: {' and '.join(waiting)} {wait} {who}; {they_come} out {out}"
        drifting = [
            f"The timestamps of {report.name!r}'s records are later than their event times by more than its max_drift, "
            f"so its silent partitions hold time"
            for report in self.inputs
            if report.source_agrees is False
        ]
        return ". ".join([text + self._remedy(goes_on=goes_on, drain=drain), *drifting])

    def _holder(self) -> InputReport | None:
        return next((each for each in self.inputs if each.name == self.holding_input), None)

    def _remedy(self, *, goes_on: bool, drain: str) -> str:
        """Return the one unset setting that would release waiting rows, as the end of a sentence; empty if none."""
        holder = self._holder()
        if holder is None:
            furthest = furthest_of_idle(self)
            if furthest is not None:
                setting = "With when_all_idle='max' in connect(...) the watermark advances"
                return f". {setting} to {format_time(furthest)} while all are idle"
        elif holder.promise is not None and holder.promise["watermark"] >= holder.watermark:
            asked_at = format_time(holder.promise["asked_at"])
            return (
                f", which asks for the newest version of {holder.name!r} again; the last one did so at {asked_at} UTC"
            )
        elif holder.idle_after_ms is not None:
            return f", or finds that {holder.name!r} had no row for {format_span(holder.idle_after_ms)}, and so is idle"
        elif not holder.has_idleness and (holder.reads_changes or holder.held_by):
            who = (
                f"{holder.name!r} is the changes of a table, whose watermark stands still while it does not change"
                if holder.reads_changes
                else f"The {holder.holder or 'only partition'} of {holder.name!r} has no newer rows"
            )
            live = "; a query that runs on needs the idleness from its checkpoint's first run" if goes_on else ""
            return f". {who}: with_idleness(...) in its watermark strategy lets the watermark advance without it{live}"
        if goes_on:
            return ""
        return (
            f", or with {drain}, which ends the query: it finishes all inputs, and a later run with this checkpoint is "
            f"refused"
        )

    def _idle(self) -> list[str]:
        """Return a sentence for each input that is idle since complete readings found no row of it."""
        idle = "{!r} is idle" if self._holder() is None else "The watermark advances without {!r}, which is idle"
        return [
            f"{idle.format(report.name)}: no row since {format_time(report.quiet_since)} UTC"
            for report in self.inputs
            if report.quiet_since is not None and not self.drained
        ]

    def _late_commits(self) -> list[str]:
        """Return a sentence for each table with commits that broke its promise."""
        return [
            f"Since the query's first batch, {_rows(report.late_commits)} of {report.name!r} came late, in commits "
            f"with times up to which its table had been read already, the newest one version {report.late_commit[0]} "
            f"of {format_time(report.late_commit[1])} UTC: set clock_skew= of its source to at least the time by which "
            f"its writers' clocks are slow"
            for report in self.inputs
            if report.late_commit is not None
        ]

    def _display(self) -> Display:
        return Display(self.headline(), self.table_rows(), [*self.loading(), self.ending(), *self.readings()])

    def loading(self) -> list[str]:
        """Return a line for each input whose snapshot is being read, with the progress."""
        return [line for line in (each.loading() for each in self.inputs) if line is not None]

    def readings(self) -> list[str]:
        """Return lines about a key that is too large, upserts, tables that Spark writes, and the inputs' readers."""
        upserted = [f"of the rows of {name!r} {_upserted(counts)}" for name, counts in self.upserts.items()]
        written = [f"the rows of {name!r} are written by Spark: {why}" for name, why in self.written_by_spark.items()]
        return (
            self.oversized()
            + upserted
            + written
            + [
                f"the rows of {report.name!r} are read by "
                + ("the Python workers" if report.reading == DIRECT else f"Spark: {report.reading}")
                for report in self.inputs
                if report.reading is not None
            ]
        )

    def oversized(self) -> list[str]:
        """Return a line about the key that may need more than a task's memory, with the remedies, if there is one."""
        if self.large_key is None:
            return []
        of, key, rows, size, memory = (self.large_key[name] for name in ("of", "key", "rows", "bytes", "memory"))
        line = (
            f"{of}: the key {key} has {_rows(rows)} of {format_bytes(size)} in files of the state, which are read at "
            f"once, and with their copies may need more than the {format_bytes(memory)} of a task: set "
            f"spark.cojoin.memory to {-(-size * COPIES >> 20)}m where tasks have that, keep less of a key (a shorter "
            f"tolerance, interval or time-to-live), or give the key one more column"
        )
        return [line]

    def headline(self) -> str:
        """Return a line with the batch, its watermark, and the input that holds the watermark back."""
        if self.batch_id < 0:
            return "Before the first batch"
        when = f", at {format_time(self.processing_time)} UTC" if self.processing_time > 0 else ""
        held = f", held back by {self.holding_input!r}" if self.holding_input else ""
        return (
            f"After batch {self.batch_id}{when}: watermark {format_time(self.watermark)}{held}; "
            f"{_rows(self.rows_out)} out"
        )

    def table(self) -> str:
        """Return the counts and watermarks as a text table."""
        return text_table(self.table_rows())

    def table_rows(self) -> list[tuple[str, ...]]:
        """Return the counts and watermarks as rows of texts, one for each input; the first row is the header."""
        header = ("input", "rows in", "done", "buffered", "rejected", "late applied", "watermark (UTC)", "held by")
        rows: list[tuple[str, ...]] = [header]
        for report in self.inputs:
            rejected = sum(report.rejected.values())
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.rejected.items()))
            rows.append(
                (
                    report.name,
                    f"{report.rows_in:,}",
                    f"{report.done:,}",
                    f"{report.buffered:,}",
                    f"{rejected:,}" + (f" ({reasons})" if reasons else ""),
                    f"{report.late_applied:,}",
                    format_time(report.watermark),
                    _held_by(report),
                )
            )
        return rows


def merge_reports(batch_id: int, names: tuple[str, str], groups: Sequence[Mapping[str, Any]]) -> BatchReport:
    """Return one report made of the statistics of all key groups, which must agree on time."""
    first = groups[0]
    for group in groups[1:]:
        _check_agreement(names, first, group)
    left, right = (_merge_input(name, position, groups) for position, name in enumerate(names))
    holding = first["holding_input"]
    details: Counter[str] = Counter()
    emitted: Counter[str] = Counter({"output": 0, "rejected": 0})
    for group in groups:
        details.update(group["details"])
        emitted.update(group["emitted"])
    return BatchReport(
        batch_id=batch_id,
        processing_time=max(group["processing_time"] for group in groups),
        watermark=min(group["watermark"] for group in groups),
        holding_input=None if holding is None else names[holding - 1],
        inputs=(left, right),
        rows_out=sum(group["rows_out"] for group in groups),
        emitted=dict(emitted),
        state_bytes=sum(group["state_bytes"] for group in groups),
        details=dict(details),
        drained=all(each["status"] == "finished" for each in first["input_watermarks"]),
        state_bytes_by_key_group={
            str(group["key_group"]): group["state_bytes"] for group in sorted(groups, key=itemgetter("key_group"))
        },
        output_delay_ms=first["output_delay_ms"],
        segment_bytes_written=sum(group.get("segment_bytes_written", 0) for group in groups),
        large_key=max(
            (each["large_key"] for each in groups if "large_key" in each), key=itemgetter("bytes"), default=None
        ),
    )


def parse_report(values: Mapping[str, Any]) -> BatchReport:
    """Return the report whose ``as_dict`` returned these JSON values."""
    left, right = (_read_input(each) for each in values["inputs"])
    return BatchReport(**{**values, "inputs": (left, right)})


def rejections(inputs: Iterable[tuple[str, int, Mapping[str, int]]], where: str) -> str | None:
    """Return the warning that rows were rejected, for people; None where none were.

    ``inputs`` has each input's name, its number of rows, and the numbers of rejected ones by reason. ``where`` is the
    expression that returns the rejected rows.

    >>> rejections([("trades", 300, {"null_key": 2})], "run().rejected")[:65]
    "2 of 300 rows of 'trades' were rejected (2 whose key is null), so"
    """
    clauses = []
    for name, rows_in, rejected in inputs:
        total = sum(rejected.values())
        if total:
            why = ", ".join(f"{count:,} {_REASONS.get(reason, reason)}" for reason, count in sorted(rejected.items()))
            clauses.append(f"{total:,} of {_rows(rows_in)} of {name!r} were rejected ({why})")
    return (
        f"{' and '.join(clauses)}, so the result lacks them; {where} returns them with their reasons"
        if clauses
        else None
    )


def _upserted(counts: Mapping[str, int]) -> str:
    """Return the counts of an upsert in words.

    >>> _upserted({"inserted": 1, "updated": 2, "deleted": 0, "superseded": 0, "null_keys": 3})
    '1 was inserted, 2 were updated, 3 were left out for a null in their key'
    """
    words = {"null_keys": "left out for a null in their key", "superseded": "superseded by another row of their key"}
    shown = {name: count for name, count in counts.items() if count or name == "inserted"}
    return ", ".join(
        f"{count:,} {'was' if count == 1 else 'were'} {words.get(name, name)}" for name, count in shown.items()
    )


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def furthest_of_idle(report: BatchReport) -> int | None:
    """Return a partition's largest watermark, if it is above the operator's and no input is active; else None."""
    marks: list[int] = []
    for counts in report.inputs:
        if counts.status != "finished":
            marks += [counts.watermark, *counts.partitions.values()]
    return max(marks) if report.holding_input is None and marks and max(marks) > report.watermark else None


def _exceptions(inputs: Sequence[InputReport]) -> str:
    """Return the clauses on rejected rows and on other exceptions, with their counts; empty if there are none."""
    rejected = [
        f"{_rows(count)} of {report.name!r} {_REASONS.get(reason, reason)}"
        for report in inputs
        for reason, count in sorted(report.rejected.items())
        if count
    ]
    clauses = [f"rejected {', '.join(rejected)}"] if rejected else []
    for name, clause in _OTHERS.items():
        rows = [f"{_rows(getattr(each, name))} of {each.name!r}" for each in inputs if getattr(each, name)]
        clauses += [clause.format(", ".join(rows))] if rows else []
    return " and ".join(clauses)


def _since(now: InputReport, before: InputReport) -> InputReport:
    """Return an input's report whose counts for ``_exceptions`` are those since an earlier report."""
    rejected = {reason: count - before.rejected.get(reason, 0) for reason, count in now.rejected.items()}
    return replace(now, rejected=rejected, **{name: getattr(now, name) - getattr(before, name) for name in _OTHERS})


def _held_by(report: InputReport) -> str:
    """Return the table's entry: the status, or the holding partition; empty for an input without partitions."""
    if report.status != "active":
        return report.status
    return "" if report.holding_partition in (None, "[]") else str(report.holding_partition)


def _merge_input(name: str, position: int, groups: Sequence[Mapping[str, Any]]) -> InputReport:
    rejected: Counter[str] = Counter()
    for group in groups:
        rejected.update(group["inputs"][position]["rejected"])
    counts = {
        counter: sum(group["inputs"][position][counter] for group in groups)
        for counter in ("rows_in", "done", "buffered", "late_applied")
    }
    values = dict(groups[0]["input_watermarks"][position])
    for counter in RARE_COUNTERS:
        counts[counter] = sum(group["inputs"][position].get(counter, 0) for group in groups)
    commits = [each for group in groups if (each := group["inputs"][position].get("late_commit")) is not None]
    values |= {"late_commit": max(commits)} if commits else {}
    rows = groups[0].get("loads", {}).get(str(position + 1))
    return _read_input({"name": name, "rejected": dict(rejected), **counts, **values, "snapshot_rows": rows})


def _check_agreement(names: tuple[str, str], first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Check that two key groups have the same watermarks, since every control row goes to every key group."""
    pairs = [("the operator", "watermark", first["watermark"], other["watermark"])]
    pairs += [("the operator", "holding input", first["holding_input"], other["holding_input"])]
    for name, mine, its in zip(names, first["input_watermarks"], other["input_watermarks"], strict=True):
        pairs += [(f"input {name!r}", label.replace("_", " "), mine[label], its.get(label)) for label in mine]
    for whose, label, mine, its in pairs:
        if mine != its:
            msg = (
                f"key groups {first['key_group']} and {other['key_group']} do not agree on time: the {label} of "
                f"{whose} is {mine!r} in one and {its!r} in the other, so their states are not of one moment; restore "
                f"a snapshot into a new checkpoint"
            )
            raise CheckpointError(msg)


def _read_input(values: Mapping[str, Any]) -> InputReport:
    pairs = {
        name: None if values.get(name) is None else tuple(values[name]) for name in ("snapshot_rows", "late_commit")
    }
    read = {"idle_partitions": tuple(values["idle_partitions"]), **pairs}
    return InputReport(**{**values, **read})

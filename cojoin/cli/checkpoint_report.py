"""Snapshots, progress and cleaning as text for people, and snapshots as plain values for JSON."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cojoin.engine.display import format_bytes, format_time, text_table
from cojoin.spark.sources.secrets import without_login

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cojoin.checkpoints.manifest import Manifest
    from cojoin.checkpoints.snapshot_record import Snapshot

__all__ = ["cleaned", "headline", "progress", "snapshot", "snapshot_values", "snapshots"]


def headline(path: str, query: Mapping[str, Any], last: Manifest | None, held_by: str | None) -> str:
    """Return some lines about a checkpoint: its query, its newest batch, and the run that holds it."""
    left, right = (each["name"] for each in query["inputs"])
    operator = str(query.get("function") or query["operator"].replace("_", " "))
    lines = [f"{without_login(path)}: {operator} of {left!r} with {right!r}, {query['key_groups']} key groups"]
    if last is None:
        lines.append("no batch is finished yet")
    else:
        drained = ", drained" if last.report.drained else ""
        lines.append(f"newest batch {last.batch_id}, watermark {format_time(last.report.watermark)}{drained}")
    if held_by is not None:
        lines.append(f"held by {held_by}")
    return "\n".join(lines)


def snapshots(found: Sequence[Snapshot]) -> str:
    """Return a table of snapshots."""
    if not found:
        return "no snapshots: one is taken at every --checkpoint-interval, and by `cojoin checkpoints savepoint`"
    rows = [("batch", "kind", "taken at (UTC)", "watermark (UTC)", "key groups", "rows", "size", "written")]
    rows += [
        (
            str(each.batch_id),
            each.kind,
            f"{each.taken_at:%Y-%m-%d %H:%M:%S}",
            format_time(each.manifest.report.watermark),
            str(each.key_groups),
            f"{each.rows:,}",
            format_bytes(each.state_bytes),
            format_bytes(each.written_bytes),
        )
        for each in found
    ]
    return text_table(rows)


def snapshot(found: Snapshot, query: Mapping[str, Any], held_by: str | None, *, lives: bool) -> str:
    """Return a snapshot in detail."""
    manifest, sources = found.manifest, _sources(query)
    sizes = f"{format_bytes(found.state_bytes)}, of which this snapshot wrote {format_bytes(found.written_bytes)}"
    stored = sorted((each for each, groups in found.content_batch_ids.items() if groups), key=int)
    lines = [
        f"batch {found.batch_id}, a {found.kind} taken at {found.taken_at:%Y-%m-%d %H:%M:%S} UTC",
        f"query {manifest.query_id}, run {manifest.epoch}",
        f"{found.rows:,} rows in {found.key_groups} key groups; state {sizes}",
        "its content is stored in the snapshots of batches " + ", ".join(stored),
        "",
        manifest.report.table(),
        "",
        "sources continue at",
    ]
    lines += [
        f"  {name}, {source}: {offset}" for (name, source), offset in zip(sources, manifest.offsets, strict=False)
    ]
    lines += ["", "outputs"] if manifest.outputs else ["", "no output was written yet"]
    lines += [f"  {name}: {_place(place)}" for name, place in manifest.outputs.items()]
    if held_by is None:
        lease = "no query runs on the checkpoint"
    else:
        lease = f"{'a query runs on it' if lives else 'its last query did not end properly'}: {held_by}"
    return "\n".join([*lines, "", lease])


def snapshot_values(found: Snapshot, query: Mapping[str, Any] | None = None, *, detailed: bool = False) -> Any:
    """Return a snapshot as values for JSON."""
    values = {
        "batch_id": found.batch_id,
        "kind": found.kind,
        "taken_at": found.taken_at,
        "watermark": found.manifest.report.watermark,
        "key_groups": found.key_groups,
        "rows": found.rows,
        "state_bytes": found.state_bytes,
        "written_bytes": found.written_bytes,
    }
    if not detailed or query is None:
        return values
    manifest, sources = found.manifest, _sources(query)
    return {
        **values,
        "query_id": manifest.query_id,
        "epoch": manifest.epoch,
        "content_batch_ids": {each: groups for each, groups in found.content_batch_ids.items() if groups},
        "sources": [
            {"input": name, "source": source, "offset": offset}
            for (name, source), offset in zip(sources, manifest.offsets, strict=False)
        ],
        "outputs": {
            name: {what: without_login(each) if isinstance(each, str) else each for what, each in place.items()}
            for name, place in manifest.outputs.items()
        },
        "report": manifest.report.as_dict(),
    }


def progress(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of batches.

    Args:
        rows: Rows of ``read_progress``, as dicts.
    """
    if not rows:
        return "no batch is finished yet"
    names = [each["name"] for each in rows[-1]["inputs"]]
    table = [
        (
            "batch",
            "at (UTC)",
            "watermark (UTC)",
            "held by",
            *(f"{name} {what}" for name in names for what in ("in", "wait")),
            "rejected",
            "rows out",
            "state",
        )
    ]
    for row in rows:
        inputs = row["inputs"]
        held = row["holding_input"] or ""
        partition = next((each["holding_partition"] for each in inputs if each["name"] == held), None)
        table.append(
            (
                str(row["batch_id"]),
                _moment(row["processing_time"]).partition(".")[0],
                "end of time" if row["drained"] else _moment(row["watermark"]),
                held if partition in (None, "[]") else f"{held} {partition}",
                *(f"{each[what]:,}" for each in inputs for what in ("rows_in", "buffered")),
                f"{sum(count for each in inputs for count in each['rejected'].values()):,}",
                f"{row['rows_out']:,}",
                format_bytes(row["state_bytes"]),
            )
        )
    return text_table(table)


def cleaned(removed: Sequence[int], kept: Sequence[int], freed: int | None, *, dry_run: bool) -> str:
    """Return a sentence about the snapshots that were removed, or would be removed."""
    left = f"kept: {', '.join(map(str, kept)) or 'none'}"
    if not removed:
        return f"Nothing to remove; {left}."
    batches = ", ".join(map(str, removed))
    if dry_run:
        return f"Would remove the snapshots of batches {batches}; {left}."
    return f"Removed the snapshots of batches {batches}, {format_bytes(freed or 0)} of files; {left}."


def _sources(query: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = [each["name"] for each in query["query"]["inputs"]]
    told = [
        "a DataFrame" if each is None else f"{each['format']} {without_login(str(each['location'] or ''))}".strip()
        for each in query["sources"]
    ]
    return list(zip(names, told, strict=True))


def _place(place: Mapping[str, Any]) -> str:
    where = " ".join(
        f"{kind} {without_login(str(value))}"
        for kind, value in place.items()
        if kind not in {"version", "id", "batch_id"}
    )
    if place["batch_id"] is None:
        return f"{where}, nothing written yet"
    version = f" at version {place['version']}" if "version" in place else ""
    return f"{where}{version}, last written in batch {place['batch_id']}"


def _moment(value: datetime | None) -> str:
    if value is None:
        return "none"
    moment = value.astimezone(timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"

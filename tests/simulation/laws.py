"""The laws that hold after every history, whatever went wrong in it.

Nothing is lost and nothing double: the outputs have exactly the rows that the inputs give. Nothing is unreadable: the
manifests, the snapshots with their content, and Spark's own state with its segments. Every counted row is accounted
for. Epochs never go back, in the manifests and in the output's commits. No file is left for ever. And every error that
a driver stopped with is one that says what was done to it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from cojoin.checkpoints.manifest import Manifests
from cojoin.checkpoints.segment_files import FOLDER
from cojoin.checkpoints.snapshot_row import seal_of
from cojoin.checkpoints.snapshots import Snapshots
from cojoin.delta.table_batches import FENCE
from cojoin.errors import CojoinError
from tests.simulation import simulated_clock
from tests.simulation.faults import INJECTED
from tests.simulation.simulated_delta import active_files, commits_of, rows_in
from tests.simulation.simulated_join import RIGHT_ROWS, expected_rows, value_of
from tests.simulation.simulated_query import FIRST, SECOND
from tests.simulation.simulated_store import SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.storage.store import Store
    from tests.simulation.simulated_query import Place
    from tests.simulation.world import World

__all__ = ["broken_laws"]

_TOLD = (
    INJECTED,
    "another query runs on it",
    "fenced off",
    "another start has restored into it meanwhile",
    "no batch is finished yet",
    "its query was drained",
    "let a run finish it before a drain",
    "so it is not a checkpoint of cojoin's",
    ": no snapshot",
    "has written",
    "ConcurrentTransactionException",
    "ConcurrentAppendException",
    "MetadataChangedException",
    "others commit to it at the same time",
    "so another run has continued meanwhile",
    "is already a query's own",
    "was removing the former snapshot",
    "is written again and again by other",
)
"""What an error may say: that a fault struck, that another run has taken over, or that there is nothing yet."""

_TOLD_OF_OLD_FILES = (
    "differs from the query's manifest",
    "that the query has read: it was changed or is an older copy",
    "lacks its newest entry",
    "its newest manifest is of batch",
    "and this file is gone",
    "the checkpoint is older than its output",
)
"""What an error may say, too, where a listing lacked the newest files; the next start finds them."""

_TOLD_OF_READERS = (
    "Spark's own state after batch",
    "its query has removed or replaced it while it was read",
    "it may be writing this batch again",
)
"""What a restoration may say: the first query went on and cleaned what it was reading."""


def broken_laws(world: World) -> list[str]:
    """Return the laws that a history has broken, as sentences."""
    simulated_clock._current.append(world.scheduler)
    try:
        return list(_broken(world))
    finally:
        simulated_clock._current.pop()


def _broken(world: World) -> Iterator[str]:
    told = (*_TOLD, *(_TOLD_OF_OLD_FILES if world.disk.was_stale else ()))
    for who, error in world.errors:
        if not any(each in str(error) for each in (*told, *(_TOLD_OF_READERS if world.reads_beside(who) else ()))):
            yield f"{who} stopped with an error that nothing explains: {type(error).__name__}: {error}"
    for each in world.disk.processes:
        if each.error is not None and not any(
            error is each.error for error in (*world.zombies, *(error for _, error in world.errors))
        ):
            yield f"{each.name}: {type(each.error).__name__}: {each.error}"
    yield from (f"zombie: {each}" for each in (*world.disk.hand_overs.late_commits, *world.late_drains))
    yield from _of_query(world, FIRST)
    if world.disk.below(SECOND.checkpoint):
        yield from _of_query(world, SECOND)


def _of_query(world: World, place: Place) -> Iterator[str]:
    disk, store = world.disk, SimulatedStore(world.disk, place.checkpoint)
    try:
        manifests = [each for number in Manifests(store).batch_ids() if (each := Manifests(store).read(number))]
        snapshots = Snapshots(store).all()
    except CojoinError as error:
        yield f"unreadable: {error}"
        return
    yield from _outputs(world, place, manifests)
    epochs = [each.epoch for each in manifests]
    if epochs != sorted(epochs):
        yield f"{place.checkpoint}: the epochs of its manifests go back: {epochs}"
    for manifest in manifests:
        if not manifest.report.is_conserved:
            yield f"{place.checkpoint}: batch {manifest.batch_id} does not account for every row: {manifest.report}"
    committed = sorted(int(name) for name in store.names("spark/commits") if name.isdigit())
    for batch_id in committed[-2:]:
        yield from _state(world, place, batch_id)
    yield from _snapshots(world, place, snapshots)
    if place == FIRST:
        there = {each.batch_id for each in snapshots}
        gone = sorted(set(world.savepoints) - there)
        if gone and not disk.lost_power:
            yield f"{place.checkpoint}: the savepoints of batches {gone} were removed"
    yield from _progress(world, place, manifests)
    yield from _never_back(world, place)
    # An old listing may leave files behind, and never removes one that is needed.
    if world.cleaned and not world.disk.was_stale:
        yield from _left_over(world, place, store, manifests, snapshots)


def _outputs(world: World, place: Place, manifests: list[Any]) -> Iterator[str]:
    disk = world.disk
    read = world.read.get(place, world.lake)
    output, rejected = expected_rows(read.left, read.right * RIGHT_ROWS)
    before: tuple[set[int], set[int]] = set(), set()
    if place == SECOND:
        text = disk.files[f"{SECOND.checkpoint}/restored.json"].content
        origin = json.loads(text)["content"]["batch_id"]
        app_id = "cojoin-" + json.loads(disk.files[f"{FIRST.checkpoint}/query.json"].content)["content"]["query_id"]
        before = (
            _written_until(world, FIRST.output, f"{app_id}-output", origin),
            _written_until(world, f"{FIRST.checkpoint}/rejected", f"{app_id}-rejected", origin),
        )
    for name, table, expected, earlier in (
        ("output", place.output, output, before[0]),
        ("rejected", f"{place.checkpoint}/rejected", rejected, before[1]),
    ):
        try:
            rows = rows_in(disk, table)
        except FileNotFoundError as error:
            yield f"unreadable: {error}"
            continue
        found = Counter(int(row["id"]) for row in rows)
        double = sorted(row for row, count in found.items() if count > 1 or row in earlier)
        if double:
            yield f"double: {name} of {place.checkpoint} has rows twice: {double}"
        lost = sorted(set(expected) - set(found) - earlier)
        if lost:
            yield f"lost: {name} of {place.checkpoint} lacks rows: {lost}"
        others = sorted(set(found) - set(expected))
        if others:
            yield f"{name} of {place.checkpoint} has rows that it should not have: {others}"
        if name == "output" and any(row["value"] != value_of(int(row["id"])) for row in rows):
            yield f"{name} of {place.checkpoint} has a row with another value"
        epochs = [
            action["txn"]["version"]
            for commit in commits_of(disk, table)
            for action in commit
            if "txn" in action and action["txn"]["appId"].startswith(FENCE)
        ]
        if epochs != sorted(epochs):
            yield f"zombie: the epochs in the log of {table} go back: {epochs}"
    del manifests


def _written_until(world: World, table: str, app_id: str, batch_id: int) -> set[int]:
    """Return the ids of the rows that a query's batches up to one have written."""
    found: set[int] = set()
    for commit in commits_of(world.disk, table):
        versions = [each["txn"]["version"] for each in commit if each.get("txn", {}).get("appId") == app_id]
        if versions and versions[0] <= batch_id:
            for action in commit:
                if "add" in action:
                    content = world.disk.files[f"{table}/{action['add']['path']}"].content
                    found |= {int(row["id"]) for row in json.loads(content)}
    return found


def _state(world: World, place: Place, batch_id: int) -> Iterator[str]:
    files = world.disk.files
    state = files.get(f"{place.checkpoint}/spark/state/{batch_id}")
    if state is None:
        yield f"{place.checkpoint}: Spark's state after batch {batch_id} is gone"
        return
    for group in json.loads(state.content)["groups"].values():
        for name in group["segments"]:
            if f"{place.checkpoint}/segments/{name}" not in files:
                yield f"{place.checkpoint}: segment {name}, which the state after batch {batch_id} names, was removed"


def _snapshots(world: World, place: Place, snapshots: list[Any]) -> Iterator[str]:
    try:
        rows_in(world.disk, f"{place.checkpoint}/state")
    except FileNotFoundError as error:
        yield f"unreadable: {error}"
    for snapshot in snapshots:
        for name in snapshot.manifest.segments:
            if f"{place.checkpoint}/segments/{name}" not in world.disk.files:
                yield f"{place.checkpoint}: the snapshot of batch {snapshot.batch_id} names segment {name}, now removed"
        yield from _snapshot(world, place, snapshot)


def _snapshot(world: World, place: Place, snapshot: Any) -> Iterator[str]:  # noqa: C901 - a sentence for each
    table = f"{place.checkpoint}/state"
    what = f"{place.checkpoint}: the snapshot of batch {snapshot.batch_id}"
    active = active_files(world.disk, table)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for name in active:
        file = world.disk.files.get(f"{table}/{name}")
        if file is None:
            continue
        for row in json.loads(file.content):
            key = row["batch_id"], row["key_group"]
            if key in rows:
                yield f"{place.checkpoint}: the state table has the row {key} twice"
            rows[key] = row
    seals = [row["seal"] for (batch_id, _), row in sorted(rows.items()) if batch_id == snapshot.batch_id]
    if seal_of(*seals) != snapshot.seal:
        yield f"{what}: its rows are not those of which its index was made"
    for holder, groups in snapshot.content_batch_ids.items():
        for group in groups:
            own, content = rows.get((snapshot.batch_id, group)), rows.get((int(holder), group))
            if own is None:
                yield f"{what}: the row of key group {group} is gone"
            elif content is None or content["content"] is None:
                yield f"{what}: the content of key group {group}, which batch {holder} has, is gone"
            elif content["fingerprint"] != own["fingerprint"]:
                yield f"{what}: the content of key group {group} is another's"
            elif (at := json.loads(own["header"])["at"]["left"]) != (counted := _rows_read(snapshot.manifest)):
                yield f"{what}: its state is that after {at} left rows, and its offsets that after {counted}"


def _rows_read(manifest: Any) -> int:
    """Return how many left rows were read, according to a manifest's offsets."""
    return 0 if manifest.offsets[0] == "-" else int(json.loads(manifest.offsets[0])["rows"])


def _progress(world: World, place: Place, manifests: list[Any]) -> Iterator[str]:
    try:
        found = Counter(int(row["batch_id"]) for row in rows_in(world.disk, f"{place.checkpoint}/progress"))
    except FileNotFoundError as error:
        yield f"unreadable: {error}"
        return
    double = sorted(batch_id for batch_id, count in found.items() if count > 1)
    if double:
        yield f"double: {place.checkpoint}: the progress table has batches twice: {double}"
    # Old manifests are deleted, so the output's commits say, too, which batches there were.
    written = {
        int(action["txn"]["version"])
        for commit in commits_of(world.disk, place.output)
        for action in commit
        if (app_id := action.get("txn", {}).get("appId", "")).endswith("-output") and not app_id.startswith(FENCE)
    }
    lost = sorted(({each.batch_id for each in manifests} | written) - set(found))
    if lost:
        yield f"lost: {place.checkpoint}: the progress table lacks the batches {lost}"


def _never_back(world: World, place: Place) -> Iterator[str]:
    """Find files of a later run that an earlier run has written over, and two runs of one epoch."""
    before: dict[str, tuple[int, str]] = {}
    folders = tuple(f"{place.checkpoint}/{name}" for name in ("lease.json", "manifest/", "snapshots/"))
    journal = world.disk.journal
    newest = [(path, world.disk.files.get(path)) for path in dict.fromkeys(path for path, _ in journal)]
    for path, file in [*journal, *newest]:
        if file is None:
            before.pop(path, None)
        if file is None or not path.startswith(folders) or "/." in path:
            continue
        content = json.loads(file.content)["content"]
        epoch = (content.get("manifest") or content)["epoch"]
        owner = content.get("owner", "")
        was, whose = before.get(path, (0, owner))
        if epoch < was:
            yield f"zombie: {path} of epoch {was} was written over by a run of epoch {epoch}"
        # Without compare-and-swap two may write it, and the one that then reads the other's record gives up.
        if owner != whose and epoch == was and world.disk.has_conditional_writes:
            yield f"zombie: two drivers have taken {place.checkpoint} with the epoch {epoch}"
        before[path] = epoch, owner


def _left_over(world: World, place: Place, store: Store, manifests: list[Any], snapshots: list[Any]) -> Iterator[str]:
    root = place.checkpoint
    own = [path.removeprefix(f"{root}/") for path in world.disk.files if path.startswith(f"{root}/")]
    if not manifests or manifests[-1].report.drained:
        # After a drain no run cleans any more.
        return
    last = manifests[-1].batch_id
    needed = {name for each in [*manifests[-10:], *(each.manifest for each in snapshots)] for name in each.segments}
    holders = {each.batch_id for each in snapshots} | {
        int(holder) for each in snapshots for holder in each.content_batch_ids
    }
    epoch = json.loads(store.read("lease.json") or "{}")["content"]["epoch"]
    # What no commit of the table took up is left to Delta's VACUUM, as in every Delta table.
    committed = {
        action["add"]["path"]
        for commit in commits_of(world.disk, f"{root}/state")
        for action in commit
        if "add" in action
    }
    for name in own:
        folder, _, rest = name.partition("/")
        if rest.startswith("."):
            # What a write left that was torn off; listed in the store's law.
            continue
        if folder == FOLDER and rest not in needed and int(rest.partition("-")[0]) <= last - 2:
            yield f"left for ever: {name}"
        if folder == "state" and (found := re.match(r"batch_id=(\d+)/", rest)) and int(found[1]) not in holders:
            if rest not in committed:
                continue
            yield f"left for ever: {name}"
        if folder == "snapshots_removed":
            yield f"left for ever: {name}"
        if folder == "beats" and int(rest.partition(".")[0]) != epoch:
            yield f"left for ever: {name}"
        if folder == "manifest" and int(rest.partition(".")[0]) < last - 12:
            yield f"left for ever: {name}"

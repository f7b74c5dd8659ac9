"""Short histories that are recorded: each keeps the laws, and breaks one where a step of the protocol is broken.

Most are defects that the simulation has found. The others were made for steps that random histories seldom need.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cojoin.delta.table_batches import FENCE
from tests.simulation.faults import Fault
from tests.simulation.history import run
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Action, Plan
from tests.simulation.seams import simulated
from tests.simulation.shrinking import checked
from tests.simulation.simulated_delta import commits_of
from tests.simulation.simulated_query import FIRST, SECOND

_TWO_FIRST_STARTS = (Action("rows", 8), Action("drive", 0), Action("wait", 4), Action("drive", 1), Action("await", 12))
_SAVEPOINT_BESIDE = (Action("rows", 11), Action("drive", 0), Action("await", 0), Action("savepoint", 0))
_SAVEPOINT_LATER = (
    *(Action("left rows", 12), Action("rows", 3), Action("drive", 0), Action("await", 12), Action("left rows", 12)),
    *(Action("savepoint", 0), Action("drive", 1), Action("await", 12), Action("rows", 12), Action("drive", 1)),
    Action("await", 12),
)
_SAVEPOINT_INTERRUPTED = (
    *(Action("rows", 9), Action("drive", 0), Action("await", 0), Action("rows", 5), Action("savepoint", 0)),
    *(Action("wait", 150), Action("rows", 12), Action("drive", 1), Action("await", 12), Action("wait", 40)),
)


def _savepoint_of_content(before: int) -> tuple[Action, ...]:
    """Return actions whose savepoint's batch has content to which snapshots point, until there are left rows again."""
    return (
        *(Action("rows", before), Action("drive", 0), Action("await", 12), Action("rows", 4), Action("savepoint", 0)),
        *(Action("drive", 1), Action("await", 12), Action("left rows", 4), Action("drive", 1), Action("await", 12)),
        Action("wait", 260),
    )


FOUND = {
    # A start that stood still wrote its own id over that of the query that had begun: all rows again, or none any more.
    "the description of the query is written without compare-and-swap": Plan(
        1, switching=0.0, actions=_TWO_FIRST_STARTS, faults=(Fault("pause", "write", 0, 200),)
    ),
    # A savepoint had rows in the folder of its batch's former snapshot, which a cleaning that stood still would remove.
    "a savepoint does not look whether the batch's former snapshot is being removed": Plan(
        1, switching=0.02, cadence=1, actions=_SAVEPOINT_BESIDE, faults=(Fault("pause", "delete", 0, 81),)
    ),
    # A driver that stood still wrote a snapshot whose rows its successor had removed, so that it could not be restored.
    "a snapshot stays that a run has written after another has taken over": Plan(
        1,
        switching=0.05,
        cadence=1,
        actions=(Action("rows", 6), Action("drive", 0), Action("wait", 2), Action("drain", 1)),
        faults=(Fault("pause", "replace", 2, 110, "stream"),),
    ),
    # A driver that ran a batch again, which another had committed meanwhile, made a plain snapshot of its savepoint.
    "a savepoint is no longer one once its batch has run again": Plan(
        17,
        switching=0.02,
        cadence=1,
        actions=(Action("rows", 9), Action("drive", 0), Action("wait", 3), Action("drive", 1), Action("own savepoint")),
        faults=(Fault("pause", "replace", 3, 65, wakes=100),),
    ),
    # A savepoint that stood still pointed to content that was gone: its batch still had that of another key group
    # (365982018).
    "a savepoint points to content of which only other key groups are still needed": Plan(
        6,
        switching=0.0,
        actions=(
            *(Action("rows", 13), Action("drive", 0), Action("await", 12), Action("left rows", 10)),
            *(Action("savepoint", 0), Action("drive", 1), Action("await", 12), Action("wait", 260)),
        ),
        faults=(Fault("pause", "read", 3, 60, "savepoint"), Fault("pause", "size", 1, 100, "thread")),
    ),
    # Without compare-and-swap, of three first starts one went on with an id that another had written over.
    "starts of one moment do not wait for each other where there is no compare-and-swap": Plan(
        918875,
        has_conditional_writes=False,
        switching=0.15,
        actions=(Action("drive", 0), Action("drive", 0), Action("drive", 0), Action("await", 0)),
    ),
    # Without compare-and-swap, a cleaning removed a snapshot that had just become a savepoint (365911812).
    "those who write the index of a snapshot do not wait for each other where there is no compare-and-swap": Plan(
        140892,
        has_conditional_writes=False,
        switching=0.15,
        cadence=1,
        actions=(
            *(Action("rows", 12), Action("drive", 1), Action("await", 12), Action("rows", 12), Action("savepoint", 1)),
            *(Action("drive", 0), Action("await", 12), Action("wait", 40)),
        ),
        faults=(Fault("pause", "read", 3, 237, "savepoint", 165),),
    ),
    # A savepoint that stood still pointed to content that was removed (365914996), or would, killed in its last steps.
    "cleaning does not keep the content to which a savepoint may point that is being taken": Plan(
        3,
        switching=0.0,
        cadence=3,
        actions=_SAVEPOINT_LATER,
        faults=(Fault("pause", "read state", 0, 50, "savepoint", 250),),
    ),
    # It became old enough to be taken for interrupted between two looks of one cleaning, which had not ended it.
    "cleaning does not keep the content to which an old savepoint may point that still counts in the end": Plan(
        151022576,
        has_conditional_writes=False,
        switching=0.05,
        cadence=3,
        actions=(
            *(Action("left rows", 12), Action("rows", 3), Action("drive", 0), Action("await", 0), Action("rows", 6)),
            *(Action("savepoint", 0), Action("await", 0), Action("rows", 12), Action("drive", 0), Action("await", 0)),
        ),
        faults=(
            Fault("pause", "read state", 0, 262, "savepoint", 245),
            Fault("pause", "size", 1, 61),
            Fault("fails", "size", 0, 5),
        ),
    ),
    # It counted already when it was taken for interrupted, and what it had been promised was kept with its note.
    "cleaning never removes what was promised to a savepoint that counts": Plan(
        151026456,
        has_conditional_writes=False,
        switching=0.0,
        cadence=3,
        actions=(
            *(Action("left rows", 11), Action("rows", 4), Action("drive", 0), Action("await", 0)),
            *(Action("savepoint", 0), Action("await", 0), Action("rows", 5), Action("drive", 0), Action("await", 0)),
        ),
        faults=(Fault("pause", "delta commit", 1, 135, "savepoint"), Fault("pause", "delete", 1, 66, wakes=109)),
    ),
    # The savepoint was killed instead, and nothing removed any more what was kept for it.
    "cleaning forgets a snapshot of which it has kept content for a savepoint that is being taken": Plan(
        30,
        switching=0.02,
        cadence=3,
        actions=_SAVEPOINT_LATER,
        faults=(
            Fault("pause", "delta commit", 1, 150, "savepoint", 300),
            Fault("crash before", "exists", 2, 1, "savepoint"),
        ),
    ),
    # It stood still before it had said what it might point to, and did not look again.
    "a savepoint points to content without a look whether it is still there": Plan(
        3,
        switching=0.0,
        cadence=3,
        actions=_SAVEPOINT_LATER,
        faults=(Fault("pause", "write", 0, 50, "savepoint", 250),),
    ),
    # It was taken for interrupted, and then committed files that were deleted: the table could not be read any more.
    "a savepoint that was taken for interrupted commits its rows": Plan(
        1,
        switching=0.0,
        cadence=50,
        actions=_SAVEPOINT_INTERRUPTED,
        faults=(Fault("pause", "delta commit", 1, 85, "savepoint"),),
    ),
    # It stood still right before it looked for its files, and said that the workers have another disk than the driver.
    "a savepoint whose files are deleted does not look whether its claim is over": Plan(
        1,
        switching=0.0,
        cadence=50,
        actions=_SAVEPOINT_INTERRUPTED,
        faults=(Fault("pause", "size", 0, 85, "savepoint"),),
    ),
    # A cleaning deleted the rows of a savepoint that counted between its last look and the deletion (865000187).
    "cleaning does not tell savepoints that are being taken that their rows are removed": Plan(
        22,
        switching=0.0,
        cadence=1,
        actions=_savepoint_of_content(9),
        faults=(Fault("pause", "read", 2, 60, "savepoint"), Fault("pause", "list", 32, 100, "thread")),
    ),
    # A driver that stood still replaced the rows of a snapshot that its successor had written, or removed again.
    "a run that was taken over writes over the rows of its successor's snapshot": Plan(
        3,
        switching=0.0,
        cadence=1,
        actions=(
            *(Action("left rows", 12), Action("rows", 9), Action("drive", 0), Action("wait", 4), Action("drive", 1)),
            Action("await", 12),
        ),
        faults=(Fault("pause", "write rows", 1, 120, "stream"),),
    ),
    # A drain that stood still wrote that all inputs end after its successor had begun, which went on without an end.
    "a drain that stood still ends the inputs of its successor": Plan(
        1,
        switching=0.0,
        actions=(Action("rows", 6), Action("drain", 0), Action("wait", 8), Action("drive", 1), Action("await", 12)),
        faults=(Fault("pause", "read", 2, 200, "cojoin-query"),),
    ),
    # A cleaning that stood still deleted a segment that it had seen no snapshot name; a savepoint named it meanwhile.
    "a savepoint does not look whether a cleaning may have passed over the segments that it names": Plan(
        7,
        switching=0.0,
        retained=1,
        cadence=None,
        actions=(
            *(Action("left rows", 4), Action("rows", 6), Action("drive", 0), Action("await", 12)),
            *(Action("left rows", 9), Action("savepoint", 0), Action("drive", 1), Action("await", 12)),
            *(Action("rows", 11), Action("drive", 1), Action("await", 12), Action("wait", 150)),
        ),
        faults=(Fault("pause", "read", 1, 60, "savepoint"), Fault("pause", "delete", 0, 80, "thread")),
    ),
    # A savepoint that stood still said that a segment was missing, which the query had meanwhile cleaned.
    "a savepoint is not taken again where the query has removed what it was reading": Plan(
        14,
        switching=0.0,
        retained=3,
        actions=(
            *(Action("rows", 5), Action("drive", 0), Action("await", 0), Action("left rows", 8), Action("drive", 7)),
            Action("own savepoint", 7),
        ),
        faults=(
            Fault("rival", "write segment", 1, 2),
            Fault("pause", "read segment", 0, 300),
            Fault("crash before", "read state", 1, 5),
        ),
    ),
    # A restoration that stood still changed Spark's log after its successor had read it, so that no start went on.
    "a restoration that stood still writes into Spark's logs": Plan(
        365917128,
        switching=0.0,
        cadence=1,
        actions=(Action("rows", 1), Action("drive"), Action("savepoint"), Action("restore", 2), Action("restore", 1)),
        faults=(Fault("pause", "delete directory", 0, 66),),
    ),
    # It wrote that the restoration had only begun, after its successor had finished it.
    "a restoration that stood still writes down how far it has come": Plan(
        1,
        switching=0.0,
        actions=(
            *(Action("rows", 12), Action("drive", 0), Action("await", 12), Action("restore", 0), Action("wait", 4)),
            *(Action("restore", 1), Action("await", 40)),
        ),
        faults=(Fault("pause", "replace", 7, 120),),
    ),
    # The first query went on and cleaned, and a restoration that read its snapshot meanwhile began without some rows
    # (400002658), or stopped with Spark's error.
    "a restoration does not look whether its snapshot was removed while it was read": Plan(
        1,
        switching=0.0,
        retained=1,
        cadence=1,
        actions=(
            *(Action("left rows", 12), Action("rows", 3), Action("drive", 0), Action("await", 12)),
            *(Action("restore", 1), Action("wait", 2), Action("rows", 12), Action("drive", 0), Action("await", 8)),
            *(Action("rows", 12), Action("drive", 0), Action("await", 8), Action("wait", 200)),
        ),
        faults=(Fault("pause", "list", 28, 60, "restore"),),
    ),
    # A savepoint began after the cleaning had ended all others, and wrote rows in the place of content that no snapshot
    # needed any more, before the cleaning had listed it (600006271).
    "cleaning does not look whether a savepoint was written since it has ended others": Plan(
        2,
        switching=0.0,
        cadence=1,
        actions=_savepoint_of_content(6),
        faults=(Fault("pause", "read", 3, 60, "savepoint"), Fault("pause", "list", 24, 100, "thread")),
    ),
    # A driver stood still before the manifest of its third batch, while its successor had already read those of the
    # first two (1700017358).
    "the progress table is written without a batch in the midst of those that a run has seen": Plan(
        1,
        switching=0.02,
        retained=1,
        cadence=3,
        actions=(
            *(Action("rows", 12), Action("rows", 12), Action("live", 1), Action("wait", 4), Action("drive", 0)),
            Action("await", 12),
        ),
        faults=(Fault("pause", "replace", 5, 207, wakes=94),),
    ),
    # A snapshot pointed to all content of the one before; its batch ran again and changed every key group (1700027361).
    "a snapshot that is written again forgets what its former index pointed to": Plan(
        3,
        switching=0.0,
        retained=1,
        cadence=1,
        actions=(
            *(Action("rows", 4), Action("drive", 1), Action("live", 0), Action("drain", 2), Action("left rows", 5)),
            Action("await", 0),
        ),
        faults=(Fault("fails", "replace", 8, 5), Fault("crash before", "delta commit", 31, 250)),
    ),
    # Of savepoints of one batch, one took the place of another's index and removed it, although that one was taken
    # already (1300002824, 1700080282, 1800016652, 1800053411).
    "a savepoint whose claim has ended removes what another has made sure of": Plan(
        1700080282,
        has_conditional_writes=False,
        switching=0.0,
        retained=1,
        cadence=2,
        actions=(
            *(Action("rows", 12), Action("drive", 0), Action("await", 0), Action("savepoint", 0), Action("drive", 0)),
            *(Action("live", 0), Action("savepoint", 0), Action("savepoint", 0)),
        ),
        faults=(
            Fault("pause", "write rows", 1, 267, task="savepoint", wakes=429),
            Fault("fails", "exists", 13, 3),
            Fault("fails", "plan batch", 1, 6),
        ),
    ),
    # A former driver counted a batch between the successor's looks at the manifests and at Spark's logs.
    "a start does not look again where a former run has counted a batch meanwhile": Plan(
        7,
        switching=0.02,
        retained=1,
        cadence=3,
        actions=(
            *(Action("rows", 9), Action("live", 1), Action("wait", 2), Action("drive", 0), Action("await", 12)),
            Action("restore", 0),
        ),
        faults=(Fault("pause", "replace", 5, 176, wakes=102),),
    ),
}

_SAVEPOINT_WHILE_DRIVEN = (
    *(Action("left rows", 6), Action("rows", 3), Action("drive", 0), Action("await", 12), Action("left rows", 4)),
    *(Action("savepoint", 1), Action("drive", 0), Action("await", 12), Action("wait", 150)),
)

MADE = {
    # A driver stands still in its first commit, and wakes once its successor has begun and not yet written any row.
    "a driver that takes over does not fence the table": Plan(
        1, switching=0.0, actions=_TWO_FIRST_STARTS, faults=(Fault("pause", "delta commit", 0, 200, "stream", 45),)
    ),
    # A savepoint stands still between its two listings, and the query commits another batch meanwhile: it has the
    # state after that one and the offsets before it.
    "a savepoint lists the manifests before the commits": Plan(
        1,
        switching=0.0,
        cadence=3,
        actions=_SAVEPOINT_WHILE_DRIVEN,
        faults=(Fault("pause", "list", 1, 60, "savepoint"),),
    ),
    # A savepoint stands still before it writes the index that it has read, and a cleaning removes that snapshot
    # meanwhile. The mutant's write is another operation than today's.
    "a snapshot becomes a savepoint without compare-and-swap": Plan(
        1,
        switching=0.0,
        cadence=1,
        actions=_SAVEPOINT_WHILE_DRIVEN,
        faults=tuple(Fault("pause", operation, 0, 60, "savepoint") for operation in ("replace", "write")),
    ),
    # A savepoint wakes, and is taken, while a cleaning has seen which snapshots are old and has not removed them yet.
    "a snapshot is removed although it has become a savepoint": Plan(
        1,
        switching=0.0,
        cadence=1,
        actions=(
            *(Action("rows", 6), Action("drive", 0), Action("await", 12), Action("rows", 6), Action("savepoint", 1)),
            *(Action("drive", 0), Action("await", 12)),
        ),
        faults=(Fault("pause", "replace", 0, 60, "savepoint", 160),),
    ),
    # A driver stands still before it writes the index of a snapshot whose rows its successor removes; its next look at
    # the lease takes the index away again.
    "the lease is never looked at": FOUND["a snapshot stays that a run has written after another has taken over"],
    # A listing of a cleaning lacks the newest snapshot, so that what this one points to looks unneeded.
    "cleaning believes a listing without the newest snapshot": Plan(
        1,
        switching=0.0,
        cadence=1,
        actions=(Action("rows", 12), Action("drive", 0)),
        faults=(Fault("stale", "list", 6, 6, "thread"),),
    ),
}
RECORDED = {**FOUND, **MADE}
_SEEDS = 40
"""Which task runs when differs by the seed, so what was found is met with some of them."""


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_history_needs_its_step(name: str) -> None:
    mutant = next(each for each in MUTANTS if each.name == name)
    plans = [RECORDED[name], *(replace(RECORDED[name], seed=seed) for seed in range(2, 1 + _SEEDS))]
    with mutant(), simulated():
        found = next((plan for plan in plans if checked(plan).broken), None)
    assert found is not None
    with simulated():
        history = checked(found)
    assert not history.broken, str(history)


def test_a_former_driver_does_not_create_the_output_after_its_successor_began() -> None:
    """It stood still in its first commit, and its successor right after it had begun, before it had written any row."""
    faults = Fault("pause", "delta commit", 0, 120), Fault("pause", "write rows", 1, 250)
    with simulated():
        history, world = run(Plan(1, switching=0.0, actions=_TWO_FIRST_STARTS, faults=faults))
    assert not history.broken, str(history)
    first = commits_of(world.disk, FIRST.output)[0]
    epochs = [each["txn"]["version"] for each in first if each.get("txn", {}).get("appId", "").startswith(FENCE)]
    assert epochs == [2], str(history)
    assert not any("add" in each for each in first), str(history)
    assert any("fenced off" in str(each) for each in world.zombies), str(history)


def test_a_batch_that_a_former_driver_finished_late_is_in_the_progress_table() -> None:
    """It stood still before it wrote the manifest, and its successor had looked for manifests before (1400001132)."""
    actions = Action("rows", 6), Action("await"), Action("drive"), Action("live", 2), Action("drain", 1)
    faults = Fault("pause", "replace", 3, 201, wakes=40), Fault("torn", "plan batch", 1, 4)
    with simulated():
        history = checked(Plan(1400001132, switching=0.15, cadence=1, actions=actions, faults=faults))
    assert not history.broken, str(history)
    assert any("another query runs" in note or "pause" in note for _, _, _, _, note in history.lines)


def test_nothing_is_left_of_an_interrupted_savepoint() -> None:
    """The query takes no snapshots of its own, so all that is in the table of states is the savepoint's."""
    actions = Action("rows", 9), Action("drive"), Action("await", 20), Action("savepoint"), Action("wait", 200)
    interrupted = 0
    with simulated():
        for number in range(2, 9):
            fault = Fault("crash after", "delta commit", number, 1)
            history, world = run(Plan(3, switching=0.0, cadence=50, actions=actions, faults=(fault,)))
            assert not history.broken, str(history)
            names = world.disk.below(f"{FIRST.checkpoint}/snapshots")
            left = world.disk.below(f"{FIRST.checkpoint}/state") - {"_delta_log"}
            assert len(left) == len(names), str(history)
            struck = any("/savepoint" in who and "!! crash" in note for _, who, _, _, note in history.lines)
            interrupted += struck and not left
    assert interrupted


def test_a_restoration_that_only_began_goes_on_where_its_snapshot_was_removed() -> None:
    """Its driver was killed while it copied the state, and the first query went on meanwhile."""
    begin = Action("rows", 12), Action("drive"), Action("await", 20), Action("restore"), Action("await", 5)
    actions = (*begin, Action("rows", 12), Action("drive"), Action("await", 20))
    with simulated():
        for number in range(12, 17):
            fault = Fault("crash before", "write rows", number, 1)
            history, world = run(Plan(3, switching=0.0, cadence=1, actions=actions, faults=(fault,)))
            assert not history.broken, str(history)
            assert f"{SECOND.checkpoint}/spark/commits/0" in world.disk.files, str(history)


def test_a_restoration_says_that_the_first_query_has_replaced_what_it_was_reading() -> None:
    """A power failure undid its batch's plan, and it ran again with other rows: that was told as damage (380025654)."""
    begin = Action("rows", 11), Action("drive"), Action("await"), Action("rows", 12), Action("savepoint")
    actions = (*begin, Action("drive"), Action("await"), Action("restore"), Action("drive", 6), Action("savepoint"))
    faults = (
        Fault("pause", "read", 12, 200, "restore", wakes=167),
        Fault("fails", "write rows", 2, 5),
        Fault("power", "size", 2, 2),
    )
    plan = Plan(20, loses_power=True, switching=0.02, cadence=1, actions=actions, faults=faults)
    with simulated():
        history, world = run(plan)
    assert not history.broken, str(history)
    assert any("has removed or replaced it while it was read" in str(error) for _, error in world.errors), str(history)


def test_a_restoration_does_not_go_on_with_a_batch_that_a_former_start_had_planned() -> None:
    """It woke after its successor's first batch, and Spark planned the second one from the beginning (1000028281)."""
    begin = Action("rows", 7), Action("drive"), Action("await"), Action("savepoint"), Action("restore", 1)
    later = Action("wait"), Action("rows", 12), Action("drive"), Action("await"), Action("restore"), Action("await")
    fault = Fault("pause", "exists", 12, 212, "restore", wakes=310)
    plan = Plan(1000028281, switching=0.0, cadence=3, actions=(*begin, *later), faults=(fault,), spark_writes=True)
    with simulated():
        history = checked(plan)
    assert not history.broken, str(history)


def test_a_restoration_is_not_hurt_by_files_of_a_snapshot_that_it_does_not_read() -> None:
    """The first query removed those of an older one and ended; the simulated table read them all (1000071297)."""
    begin = Action("rows", 12), Action("drive"), Action("await", 12), Action("rows", 12), Action("savepoint")
    later = Action("drive", 1), Action("await", 12), Action("wait", 10), Action("live", 2), Action("restore", 11)
    faults = Fault("pause", "delta commit", 2, 100, "savepoint", 25), Fault("pause", "read state", 1, 238, wakes=84)
    with simulated():
        history = checked(
            Plan(
                1000071297,
                has_conditional_writes=False,
                switching=0.15,
                cadence=1,
                actions=(*begin, *later),
                faults=faults,
            )
        )
    assert not history.broken, str(history)

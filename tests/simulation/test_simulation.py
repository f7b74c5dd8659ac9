"""The driver's protocol keeps its laws in every history, and the simulation notices where a step of it is broken."""

from __future__ import annotations

import builtins
import dis
import subprocess
import sys
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING

import pytest

from tests.seeds import SEED, drawn
from tests.simulation.__main__ import run_seeds
from tests.simulation.faults import FAULTS, OPERATIONS, can_strike
from tests.simulation.mutants import DELTA_MUTANTS, MUTANTS, Mutant
from tests.simulation.plan import Action, Plan
from tests.simulation.seams import simulated
from tests.simulation.shrinking import checked, shortened
from tests.simulation.simulated_clock import Process, Scheduler
from tests.simulation.test_found_defects import RECORDED

if TYPE_CHECKING:
    from tests.simulation.history import History

_FIRST = 1_000_000 * (SEED % 1_000)
FOUND_AT_RANDOM = (
    "the manifest before the output",
    "cleaning does not look for what other snapshots point to",
    "cleaning does not keep the segments that snapshots name",
    "segments are deleted one batch too early",
    "the progress table's manifests are deleted before its rows are written",
    "a run does not look for batches that are missing in the progress table",
    "the lease is taken without compare-and-swap",
    "a manifest is written over a later run's",
)
"""The mutants without a recorded history, each of which some hundreds of random histories of whole queries break."""


def keeps_the_laws(seeds: range) -> None:
    result = run_seeds(seeds)
    if result.failed:
        with simulated():
            pytest.fail(
                f"{len(result.failed)} of {len(seeds)} failed\n{shortened(checked(Plan.of(result.failed[0][0])))}"
            )
    assert result.operations[1] >= 30
    assert result.faults[1] >= 2


def test_hundreds_of_histories_keep_the_laws() -> None:
    keeps_the_laws(range(_FIRST, _FIRST + 250))


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.more) for part in range(1, 25))])
def test_many_histories_keep_the_laws(part: int) -> None:
    keeps_the_laws(range(_FIRST + 10_000 + 500 * part, _FIRST + 10_000 + 500 * (part + 1)))


def test_a_seed_decides_all() -> None:
    with simulated():
        for seed in range(_FIRST, _FIRST + 5):
            one, two = checked(Plan.of(seed)), checked(Plan.of(seed))
            assert one.lines == two.lines
            assert one.lines != checked(replace(one.plan, seed=seed + 1)).lines


def test_a_history_does_not_depend_on_what_ran_before() -> None:
    def shown(*seeds: int) -> str:
        script = (
            "from tests.simulation.plan import Plan\n"
            "from tests.simulation.seams import simulated\n"
            "from tests.simulation.shrinking import checked\n"
            f"with simulated():\n    histories = [checked(Plan.of(seed)) for seed in {seeds}]\n"
            "print(histories[-1])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return done.stdout

    assert shown(_FIRST) == shown(_FIRST + 2, _FIRST + 1, _FIRST)


def test_a_history_without_faults_keeps_the_laws() -> None:
    actions = (Action("rows", 12), Action("drive"), Action("await", 12), Action("savepoint"), Action("restore"))
    with simulated():
        history = checked(Plan(SEED, actions=actions))
    assert not history.broken, str(history)
    assert not history.struck
    assert any("savepoint taken" in line for line in history.lines)


def found_by(mutant: Mutant, seeds: range) -> History | None:
    """Return the first history in which a mutant breaks a law."""
    with mutant(), simulated():
        for seed in seeds:
            history = checked(Plan.of(seed))
            if history.broken:
                return history
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(FOUND_AT_RANDOM, 2))
def test_each_broken_step_is_found(name: str) -> None:
    mutant = next(each for each in MUTANTS if each.name == name)
    history = found_by(mutant, range(_FIRST, _FIRST + 4_000))
    assert history is not None
    sys.stdout.write(f"{mutant.name}: found by history {history.plan.seed - _FIRST + 1}: {history.broken[0]}\n")


def test_every_broken_step_has_a_history() -> None:
    """It is recorded, or random histories find it; none is both, and no name is of a step that is gone."""
    assert sorted([*RECORDED, *FOUND_AT_RANDOM]) == sorted(each.name for each in MUTANTS)


@pytest.mark.parametrize("mutant", [*MUTANTS, *DELTA_MUTANTS], ids=lambda mutant: mutant.name)
def test_each_broken_step_is_one_of_today(mutant: Mutant) -> None:
    """What a mutant changes is still there, and what it puts there knows each name that it uses."""
    with mutant() as function:
        codes = [function.__code__]
        for code in codes:
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        found = {each.argval for code in codes for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    assert found <= {*function.__globals__, *vars(builtins)}


@pytest.mark.slow  # Of the tool that shows a failure alone.
def test_a_failing_history_is_made_short() -> None:
    mutant = next(each for each in DELTA_MUTANTS if "whether the table has the batch" in each.name)
    history = found_by(mutant, range(_FIRST, _FIRST + 300))
    assert history is not None
    with mutant(), simulated():
        short = shortened(history)
    assert short.broken
    assert len(short.lines) <= len(history.lines)
    assert len(short.plan.faults) <= len(history.plan.faults)
    assert "BROKEN: double" in str(short)


def test_every_operation_has_faults_that_make_sense() -> None:
    assert {fault for operation in OPERATIONS for fault in FAULTS if can_strike(operation, fault)} == set(FAULTS)
    assert not can_strike("read", "torn")
    assert not can_strike("write", "stale")


def test_tasks_take_turns_and_the_clock_jumps() -> None:
    import random

    running = Scheduler(random.Random(SEED), switching=0.5)
    said: list[tuple[str, int]] = []

    def talk(name: str, seconds: int) -> None:
        for each in range(3):
            running.sleep(seconds)
            said.append((name, each))

    process = Process("a process", "one", 1)
    running.spawn(process, "slow", lambda: talk("slow", 100))
    running.spawn(process, "quick", lambda: talk("quick", 1))
    began = running.now
    running.wait(lambda: not running.tasks)
    running.end()
    assert said == [("quick", 0), ("quick", 1), ("quick", 2), ("slow", 0), ("slow", 1), ("slow", 2)]
    assert 300 <= running.now - began < 301

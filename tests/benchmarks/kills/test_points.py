from __future__ import annotations

import doctest

import pytest

from benchmarks import differences
from benchmarks.kills import verdicts
from benchmarks.kills.__main__ import choose
from benchmarks.kills.changing import choose_changes
from benchmarks.kills.kill_points import FAILURES, POINTS, RANDOM, SUSPENSIONS
from benchmarks.kills.points import Point
from benchmarks.kills.putting_back import CHANGES, choose_copies
from tests.seeds import SEED


class Writer:
    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, batch: int) -> None:
        self.written.append(batch)


class Sub(Writer):
    pass


@pytest.mark.parametrize(("enters", "there"), [(True, [0]), (False, [0, 1])])
def test_a_deed_is_done_once_before_or_after_the_call_that_is_meant(enters: bool, there: list[int]) -> None:
    writer, seen = Sub(), list[list[int]]()
    where = f"{__name__}:Sub.write"
    point = Point("a phase", "a name", (where,), enters, lambda arguments, batch: arguments[-1] == batch)
    with point.armed(1, lambda: seen.append(list(writer.written))):
        for batch in (0, 1, 1, 2):
            writer.write(batch)
    assert seen == [there]
    writer.write(1)
    assert seen == [there]
    assert writer.written == [0, 1, 1, 2, 1]
    assert "write" not in vars(Sub)


def test_every_point_is_there() -> None:
    for point in (*POINTS, *SUSPENSIONS, *FAILURES):
        assert point.where
        with point.armed(0, lambda: None):
            pass


def test_cases_are_spread_over_all_that_there_is() -> None:
    seed = SEED
    chosen = choose(40, seed)
    assert len(chosen) == 40
    assert {each.phase for each in chosen} == {each.phase for each in (*POINTS, RANDOM)}
    assert len(choose(100, seed)) == 100
    copies = choose_copies(10, seed)
    assert {each.change for each in copies} == set(CHANGES)
    assert {each.age for each in copies} >= {1, 3}
    assert len({point.name for point, _, _ in choose_changes(10, seed)}) == len(FAILURES)


@pytest.mark.parametrize("module", [differences, verdicts])
def test_its_examples(module: object) -> None:
    assert not doctest.testmod(module).failed  # type: ignore[arg-type]

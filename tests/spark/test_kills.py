"""Drivers that are killed or suspended, and what goes on from them; ``benchmarks.kills`` holds the full set."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from benchmarks.kills.__main__ import choose
from benchmarks.kills.drivers import Driver
from benchmarks.kills.kill_points import POINTS, SUSPENSIONS
from benchmarks.kills.killing import VICTIMS, Killing, die
from benchmarks.kills.places import Place
from benchmarks.kills.suspending import Suspending
from tests.seeds import SEED, drawn
from tests.spark.data import Folders, cut, generate
from tests.spark.saved import DRAIN, Saved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.kills.killed_driver import Sink, Victim
    from tests.servers.s3 import S3Server

pytestmark = pytest.mark.spark

# What is killed inside a batch needs nothing before it.
_SHORT = [each for each in POINTS if each.phase in {"a batch", "a snapshot", "a counted batch"}]


@pytest.mark.slow  # A driver of its own, which takes longer to start than most tests take.
def test_a_driver_that_is_suspended_and_then_killed_loses_nothing(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path
) -> None:
    seed = SEED
    choice = random.Random(seed)
    shuffle_partitions(2)
    suspending, killing = Suspending(spark, tmp_path / "suspended", seed), Killing(spark, tmp_path / "killed", seed)
    stop = suspending.step(0, choice.choice(SUSPENSIONS))
    kill = killing.prepare(0, choice.choice(_SHORT), "both")
    # One driver for both: most of the time goes into its start.
    with Driver([stop, kill.step]) as driver:
        suspended = suspending.meet(driver, stop, "after a pause")
        assert not suspended.faults, suspended.told()
        death = die(driver, kill)
    # It is started again and drained; and a fork, with other key groups, from one of its snapshots.
    killed = killing.conclude(kill, death, forks=True)
    assert not killed.faults, killed.told()


@pytest.mark.slow  # Four runs; test_restore and test_outputs have its parts.
def test_what_came_after_a_savepoint_is_cut_back_and_comes_again(spark: SparkSession, tmp_path: Path) -> None:
    seed = SEED
    streams = generate(trades=120, customers=30, seed=seed)
    pieces = list(zip(cut(streams.trades, 3), cut(streams.customers, 3), strict=True))
    folders = Folders(tmp_path / "data")

    def add(number: int) -> None:
        folders.add_trades(pieces[number][0])
        folders.add_customers(pieces[number][1])

    old, new = Saved(spark, tmp_path / "old", folders, 2), Saved(spark, tmp_path / "new", folders, 3)
    add(0)
    savepoint = old.run(checkpoint_interval=None).savepoint()
    add(1)
    old.run(checkpoint_interval=None)
    add(2)
    new.run(
        trigger=DRAIN,
        restore_from=savepoint,
        output=cj.sinks.delta(f"{old.folder}/out"),
        cut_back_output=True,
        checkpoint_interval=None,
    )
    assert old.rows() == streams.enriched()
    new.assert_conserved()


@pytest.mark.slow  # Each driver takes as long to start as many tests take together.
@pytest.mark.parametrize("victim", [None, *(pytest.param(each, marks=pytest.mark.more) for each in VICTIMS)])
def test_a_driver_that_is_killed_anywhere_loses_nothing(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path, victim: Victim | None
) -> None:
    """Without a victim, all have their turns."""
    seed = SEED
    # Those that take over another query's table need one of their own each, which takes as long as the rest.
    chosen = [each for each in choose(3, seed) if each.job != "same table"]
    shuffle_partitions(2)
    verdicts = list(Killing(spark, tmp_path, seed).run(chosen, victim=victim))
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)


QUARTERS = [0, *(pytest.param(part, marks=pytest.mark.more) for part in range(1, 4))]


def quarters(place: str) -> list[list[Any]]:
    """Return the points of suspension in four quarters, which the seed draws for each place by itself."""
    every = random.Random(f"{SEED} {place}").sample(SUSPENSIONS, len(SUSPENSIONS))
    return [every[part::4] for part in range(4)]


@pytest.mark.slow  # A driver's start, and two runs for each point.
@pytest.mark.parametrize("quarter", QUARTERS)
def test_a_driver_that_is_suspended_anywhere_loses_nothing(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path, quarter: int
) -> None:
    shuffle_partitions(2)
    verdicts = list(Suspending(spark, tmp_path, SEED).run(quarters("disks")[quarter]))
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)


@pytest.mark.slow  # Each driver takes as long to start as many tests take together.
def test_a_driver_on_s3_that_is_killed_anywhere_loses_nothing(
    spark: SparkSession, bucket: S3Server, shuffle_partitions: Callable[[int], None], tmp_path: Path
) -> None:
    seed = SEED
    chosen = [each for each in choose(2, seed) if each.job != "same table"]
    shuffle_partitions(2)
    killing = Killing(spark, tmp_path, seed, Place(bucket.endpoint, bucket.bucket))
    verdicts = list(killing.run(chosen, victim="both"))
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)


@pytest.mark.slow  # A driver's start, and two runs for each point.
@pytest.mark.parametrize("quarter", QUARTERS)
def test_a_driver_on_s3_that_is_suspended_anywhere_loses_nothing(
    spark: SparkSession, bucket: S3Server, shuffle_partitions: Callable[[int], None], tmp_path: Path, quarter: int
) -> None:
    shuffle_partitions(2)
    suspending = Suspending(spark, tmp_path, SEED, Place(bucket.endpoint, bucket.bucket))
    # Half of them is some minute: each run and each look is some seconds longer than on disks.
    verdicts = list(suspending.run(quarters("S3")[quarter][SEED % 2 :: 2]))
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)


SINKS = drawn(["upsert", "merge", "sql"], 1)


@pytest.fixture
def upserting(request: pytest.FixtureRequest, sink: Sink) -> Place:
    """Where the drivers of a test are, and how they upsert."""
    return Place(sink=sink, url=request.getfixturevalue("postgres").database() if sink == "sql" else "")


@pytest.mark.slow  # Each driver takes as long to start as many tests take together.
@pytest.mark.parametrize("sink", SINKS)
def test_a_driver_that_upserts_and_is_killed_anywhere_loses_nothing(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path, upserting: Place
) -> None:
    chosen = [each for each in choose(2, SEED + 1) if each.job != "same table"][:1]
    shuffle_partitions(2)
    verdicts = list(Killing(spark, tmp_path, SEED, upserting).run(chosen, victim="both"))
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)


@pytest.mark.slow  # A driver's start, and two runs for each point.
@pytest.mark.parametrize("sink", SINKS)
def test_a_driver_that_upserts_and_is_suspended_anywhere_loses_nothing(
    spark: SparkSession, shuffle_partitions: Callable[[int], None], tmp_path: Path, upserting: Place
) -> None:
    shuffle_partitions(2)
    suspending = Suspending(spark, tmp_path, SEED, upserting)
    verdicts = list(suspending.run(suspending.choose(1)))
    assert not [each for each in verdicts if each.faults], "\n".join(each.told() for each in verdicts)

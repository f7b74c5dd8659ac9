"""A real checkpoint of the demo's join, one of whose files is damaged: Spark's and Delta's files are among them.

Each copy is read, restored or continued with. It is refused, or what comes out is what comes out of the whole one.
What the manifests do not cover is listed in guide 06; its damages here are such that Spark or Delta notices them.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import cojoin as cj
from cojoin.cli.demo import _joined, make_day
from cojoin.errors import CojoinError
from cojoin.session.jvm import java_class
from tests.corruption.campaign import DAMAGES
from tests.corruption.payloads import payloads
from tests.seeds import SEED
from tests.spark.data import table
from tests.spark.saved import in_segments

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CASES = 39
DRAIN = cj.Trigger.available_now(drain=True)


@dataclass
class Demo:
    """The demo's folder after a run that has read everything, and the answers of its whole checkpoint.

    Attributes:
        spark: The session.
        root: The folder: the inputs, the checkpoint and the output.
        whole: A copy of checkpoint and output as they were after the run, after the runs before, and of another day's.
        expected: What each action returns on the whole checkpoint.
    """

    spark: SparkSession
    root: Path
    whole: dict[str, Path] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def put_back(self) -> None:
        for name in ("checkpoint", "enriched", "new", "new_enriched"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for name in ("checkpoint", "enriched"):
            shutil.copytree(self.whole["now"] / name, self.root / name)
        java_class(self.spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()

    def keep(self, moment: str) -> None:
        kept = self.whole[moment] = self.root.parent / f"{self.root.name} {moment}"
        for name in ("checkpoint", "enriched"):
            shutil.copytree(self.root / name, kept / name)

    def go_on(self) -> Any:
        """End the query, and return its output."""
        self._run("checkpoint", "enriched", DRAIN)
        return content(table(self.spark, self.root / "enriched"))

    def restore(self) -> Any:
        """Begin a query from the newest snapshot, end it, and return its output."""
        old = cj.Snapshot(str(self.checkpoint))
        self._run("new", "new_enriched", DRAIN, restore_from=old)
        return content(table(self.spark, self.root / "new_enriched"))

    def read(self) -> Any:
        """Return the state, from the newest snapshot."""
        state = cj.read_state(self.spark, str(self.checkpoint))
        return [content(frame) for _, frame in sorted(state.buffered.items())]

    def read_store(self) -> Any:
        """Return the state from Spark's own state store, by a savepoint."""
        for name in ("state", "snapshots"):
            shutil.rmtree(self.checkpoint / name)
        kept = cj.savepoint(self.spark, str(self.checkpoint))
        state = cj.read_state(self.spark, kept)
        return [content(frame) for _, frame in sorted(state.buffered.items())]

    def _run(self, checkpoint: str, output: str, trigger: cj.Trigger, **options: Any) -> None:
        query = in_segments(_joined(self.root)).start(
            output=cj.sinks.delta(str(self.root / output)),
            checkpoint=str(self.root / checkpoint),
            trigger=trigger,
            checkpoint_interval=1,
            **options,
        )
        query.await_termination(progress=False)

    def run(self) -> None:
        self._run("checkpoint", "enriched", cj.Trigger.available_now())


def content(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def make(spark: SparkSession, folder: Path, seed: int) -> Demo:
    """Run the demo's join over the first files of a day, then over the others."""
    demo = Demo(spark, folder)
    day = folder.parent / f"{folder.name} day"
    make_day(300, seed).write(day)
    for name in ("trades", "customers"):
        (folder / name).mkdir(parents=True)
    for last in (2, 3):
        for name in ("trades", "customers"):
            for each in sorted((day / name).iterdir())[:last]:
                if not (folder / name / each.name).exists():
                    shutil.copy2(each, folder / name / each.name)
        demo.run()
        demo.keep("before" if last == 2 else "now")
    return demo


@pytest.fixture(scope="module")
def demo(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    root = tmp_path_factory.mktemp("corruption")
    made, another = make(spark, root / "ours", 1), make(spark, root / "another", 2)
    made.whole["another"] = another.whole["now"]
    for name in ("go_on", "restore", "read", "read_store"):
        made.put_back()
        made.expected[name] = getattr(made, name)()
    return made


COVERED = {
    "query.json": ("go_on", "restore", "read"),
    "segments/000000000002-*.arrow": ("go_on", "restore", "read"),
    "lease.json": ("go_on",),
    "beats/*": ("go_on",),
    "manifest/*": ("go_on",),
    "snapshots/*": ("restore", "read"),
    "state/**/*.parquet": ("restore", "read"),
    "state/_delta_log/*.json": ("restore", "read"),
    "spark/offsets/*": ("go_on",),
    "spark/commits/*": ("go_on",),
    "spark/sources/*/*": ("go_on", "restore"),
    "spark/metadata": ("go_on",),
    "spark/state/**/*.delta": ("go_on", "read_store"),
}
"""The files of such a checkpoint, and the actions that need them."""


def newest(paths: list[Path]) -> Path:
    """Return the file of the last batch, or the only one."""
    return max(paths, key=lambda path: (len(path.name), path.name))


def chosen(folder: Path, pattern: str, drawn: random.Random) -> Path | None:
    found = [each for each in sorted(folder.glob(pattern)) if each.is_file() and not each.name.startswith(".")]
    # Older ones are no longer read.
    if found and not pattern.endswith(("parquet", "arrow")):
        parent = drawn.choice(sorted({each.parent for each in found}))
        found = [newest([each for each in found if each.parent == parent])]
    return drawn.choice(found) if found else None


def damaged(demo: Demo, path: Path, damage: str, drawn: random.Random, canary: Path) -> bytes | None:
    """Return the content to put in a file's place; None where there is none of the kind."""
    name = path.relative_to(demo.checkpoint)
    if damage in DAMAGES:
        return DAMAGES[damage](path.read_bytes(), drawn)
    if damage == "a payload":
        return drawn.choice([*payloads(canary).values()])
    if damage == "a former version":
        # A file of Spark's that is written once has that of the batch before as its former one.
        former = demo.whole["before"] / "checkpoint" / name
        beside = [each for each in sorted(path.parent.glob(f"*{path.suffix}")) if each.is_file() and each != path]
        return former.read_bytes() if former.exists() else newest(beside).read_bytes() if beside else None
    other = demo.whole["another"] / "checkpoint" / name
    return other.read_bytes() if other.exists() else None


def ask(demo: Demo, action: str) -> tuple[str, str]:
    try:
        found = getattr(demo, action)()
    except CojoinError as error:
        return "refused", str(error)
    except (PySparkException, Py4JJavaError) as error:
        # Spark's and Delta's own errors are no silence; any other would be one that cojoin did not foresee.
        return "refused by Spark", f"{type(error).__name__}: {error}"
    if found == demo.expected[action]:
        return "equal", ""
    return "silent", f"{len(found)} instead of {len(demo.expected[action])} rows"


@pytest.mark.slow  # Some seconds for each.
def test_a_real_checkpoint_with_a_damaged_file_is_refused_or_right(demo: Demo, tmp_path: Path) -> None:
    drawn, canary, counts, faults = random.Random(SEED), tmp_path / "executed", Counter(), []
    patterns = [*COVERED]
    while sum(counts.values()) < CASES:
        pattern = patterns[sum(counts.values()) % len(patterns)]
        demo.put_back()
        path = chosen(demo.checkpoint, pattern, drawn)
        assert path is not None, pattern
        damage = drawn.choice([*DAMAGES, *["a former version", "another checkpoint's", "a payload"] * 3])
        made = damaged(demo, path, damage, drawn, canary)
        if made is None or made == path.read_bytes():
            continue
        path.write_bytes(made)
        # On an object store there is no second file with checksums.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        action = drawn.choice(COVERED[pattern])
        outcome, said = ask(demo, action)
        counts[pattern, damage, action, outcome] += 1
        line = f"{pattern:<32}{damage:<24}{action:<12}{outcome:<18}{said.strip().splitlines()[:1]}"
        sys.stdout.write(f"{line[:400]}\n")
        sys.stdout.flush()
        if outcome == "silent":
            faults.append(line)
        assert not canary.exists(), line
    assert not faults, f"{SEED}: {faults}"


@pytest.mark.slow  # Some seconds.
def test_state_files_of_spark_that_were_exchanged_are_refused(demo: Demo) -> None:
    demo.put_back()
    state = demo.checkpoint / "spark" / "state" / "0"
    for each in (state / "0").iterdir():
        other = state / "1" / each.name
        if each.is_file() and other.exists():
            one, two = each.read_bytes(), other.read_bytes()
            each.write_bytes(two)
            other.write_bytes(one)
    outcome, said = ask(demo, "go_on")
    assert outcome != "silent"
    assert outcome != "equal", "the partitions have no other key groups"
    assert "spark/state of the checkpoint" in said


@pytest.mark.slow  # Some seconds.
def test_a_former_state_of_spark_is_refused(demo: Demo) -> None:
    demo.put_back()
    state = demo.checkpoint / "spark" / "state" / "0"
    for folder in (state / "0", state / "1"):
        deltas = sorted(folder.glob("*.delta"), key=lambda path: int(path.stem))
        if len(deltas) > 1:
            # Each version has all values that were changed, so that of the version before stands for a former one.
            deltas[-1].write_bytes(deltas[-2].read_bytes())
            deltas[-1].with_name(f".{deltas[-1].name}.crc").unlink(missing_ok=True)
    outcome, said = ask(demo, "go_on")
    assert outcome == "refused", said
    assert "spark/state of the checkpoint" in said
    demo.put_back()

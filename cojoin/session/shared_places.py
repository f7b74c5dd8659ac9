"""The places that a query's workers reach by themselves: all of them see there what the driver sees, or it is refused.

With ``local[...]`` the workers are the driver's own children. With any other master they may run on other hosts, or in
containers with disks of their own, where a local path leads somewhere else: the files of an output would lie on the
workers' disks, and nobody would miss them. So before anything is written, a task on each core, which has just checked
that its worker has the driver's cojoin (``worker_check``), looks for the driver's token in the checkpoint and the
outputs, and for a file of each input (``place_tokens``). That one job runs again before and after each batch that has
executors which have not answered yet. Beside that, each Python process of a worker looks for the token at its first
task of the query (``batch_facts.check_places``), so that a host that comes in the midst of a batch writes nothing into
a place of its own. A query without a local path has none of this.

With Spark Connect, the client does so for the checkpoint, which it writes to, and the process beside the server that
writes the batches does so for all places, when it writes its first one.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import CheckpointError, ConfigurationError
from cojoin.session.kinds import adapter_of
from cojoin.session.worker_check import ask_workers, check_workers
from cojoin.storage.place_tokens import Fault, ListedFile, Tokens, files_there, find_files, this_host, told_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from cojoin.storage.place_tokens import Place

__all__ = ["SharedPlaces", "begun"]


class SharedPlaces:
    """The tokens of a query that runs, and who has answered so far.

    Args:
        written: The places that workers write to, in which nothing was put yet.
        read: The places of the inputs.
    """

    def __init__(self, written: Sequence[Place], read: Sequence[Place] = ()) -> None:
        self._tokens, self._read = Tokens(tuple(written)), tuple(read)
        self._files: list[ListedFile] = []
        self._asked: frozenset[str] = frozenset()

    def begin(self, spark: SparkSession) -> None:
        """Put the tokens, and have all workers look for them; the errors are those of ``put`` and ``ask``."""
        self.put()
        try:
            self.ask(spark)
        except BaseException:
            self.remove(of_workers=True)
            raise

    def told(self) -> str:
        """Return the tokens that each worker looks for, as a text."""
        return self._tokens.to_json()

    def put(self) -> None:
        """Put the driver's tokens in their places, also where they are there already.

        Raises:
            CheckpointError: A place can't be written to.
        """
        self._tokens.put()

    def ask(self, spark: SparkSession) -> None:
        """Have a task on each core look for the tokens and the inputs' files, where an executor has not answered yet.

        Args:
            spark: The session.

        Raises:
            CheckpointError: A host has another checkpoint, or none.
            ConfigurationError: It has another output or input, or none.
            EnvironmentSetupError: Its Python has not what this process has.
        """
        executors = adapter_of(spark).executors()
        if self._asked and executors <= self._asked:
            return
        # Nobody waits for files that were removed since, as by a table's owner.
        self._files = files_there(self._read, self._files)
        told = ask_workers(spark, _Looking(self._tokens.to_json(), tuple(self._files)))
        faults = [Fault(*each) for one in told for each in one["faults"]]
        # Files that are gone by now say nothing.
        gone = {each.path for each in find_files(self._files, seconds=0)} if faults else set()
        faults = [each for each in faults if not (each.is_read and each.path in gone)]
        _raise(faults or self._tokens.find({(one["host"], one["own"]) for one in told}), self._tokens.driver)
        self._asked = executors or frozenset({""})

    def before_batch(self, spark: SparkSession) -> None:
        """Look after the tokens before a batch; the errors are those of ``ask``."""
        self._tokens.touch()
        self.ask(spark)

    def remove(self, *, of_workers: bool = False) -> None:
        """Remove the tokens, and folders that were made for them; the argument is that of ``Tokens.remove``."""
        self._tokens.remove(of_workers=of_workers)


@contextlib.contextmanager
def begun(places: SharedPlaces | None, spark: SparkSession, *, to_the_end: bool = False) -> Iterator[None]:
    """Ask all workers before the block; the tokens stay after it, unless it raises an error.

    Args:
        places: The places that they look for; with None, only what they have installed is checked.
        spark: The session.
        to_the_end: Whether the tokens are removed after the block in any case.

    Raises:
        CheckpointError: A host has another checkpoint, or none, or the driver can't write to a place.
        ConfigurationError: A host has another output or input, or none.
        EnvironmentSetupError: Its Python has not what this process has.
    """
    if places is None:
        check_workers(spark)
        yield
        return
    places.begin(spark)
    try:
        yield
    except BaseException:
        places.remove(of_workers=True)
        raise
    if to_the_end:
        places.remove()


@dataclass(frozen=True)
class _Looking:
    """What each worker is asked: what is wrong there with the places and the files."""

    told: str
    files: tuple[ListedFile, ...]

    def __call__(self) -> dict[str, Any]:
        own = uuid.uuid4().hex
        return {"own": own, "host": this_host(), "faults": [*Tokens.read(self.told).look(own), *find_files(self.files)]}


def _raise(faults: Sequence[Fault], driver: str) -> None:
    if faults:
        kind = CheckpointError if any(each.what == "checkpoint" for each in faults) else ConfigurationError
        raise kind(told_faults(faults, driver))

"""What is asked of a cluster's workers before a query starts, by how many jobs; the workers are stand-ins here."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

from cojoin.errors import ConfigurationError, EnvironmentSetupError
from cojoin.session import workers
from cojoin.session.sealed import installed
from cojoin.session.workers import SharedPlaces, ask_workers, begun, check_workers
from cojoin.storage.place_tokens import Place

if TYPE_CHECKING:
    from pathlib import Path

HOST, OTHER = "driver\nhost-1:1\nhost-2:1", "driver\nhost-1:1\nhost-2:1\nhost-3:1"


class Session:
    """A session of a cluster, whose tasks run in this process; it counts its jobs."""

    def __init__(self, executors: str = HOST) -> None:
        self.executors, self.jobs, self.conf = executors, 0, {"spark.master": "spark://master:7077"}
        status = SimpleNamespace(keySet=lambda: SimpleNamespace(mkString=lambda _: self.executors))
        scala = SimpleNamespace(getExecutorMemoryStatus=lambda: status)
        self.sparkContext = SimpleNamespace(
            applicationId="app",
            master="spark://master:7077",
            defaultParallelism=2,
        )
        self._jsparkSession = SimpleNamespace(sparkContext=lambda: scala)

    def range(self, *_: int) -> Session:
        return self

    def mapInArrow(self, function: Any, _: str) -> Session:  # noqa: N802 - as Spark names it
        self._tasks = [CloudPickleSerializer().loads(CloudPickleSerializer().dumps(function)) for _ in range(2)]
        return self

    def collect(self) -> list[Any]:
        self.jobs += 1
        rows = pa.RecordBatch.from_pydict({"id": [1]})
        told = [batch.column(0)[0].as_py() for task in self._tasks for batch in task([rows])]
        # Two executors on this host, each with a task.
        return [SimpleNamespace(answer=json.dumps(json.loads(each) | {"process": at})) for at, each in enumerate(told)]


@pytest.fixture(autouse=True)
def _nobody_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_CHECKED", {})
    monkeypatch.setattr(workers, "_LINGERS", (0.0, 0.0))


def places(folder: Path) -> SharedPlaces:
    (folder / "trades").mkdir()
    for name in "abc":
        (folder / "trades" / name).write_text(name)
    written = [Place("checkpoint", f"{folder}/checkpoint")]
    return SharedPlaces(written, [Place("input 'trades'", f"{folder}/trades")])


def test_one_job_checks_the_workers_and_looks_for_the_places(tmp_path: Path) -> None:
    session: Any = Session()
    with begun(shared := places(tmp_path), session):
        assert session.jobs == 1
        # What the first job has found is remembered, for queries without local paths, too.
        check_workers(session)
        shared.before_batch(session)
        assert session.jobs == 1
        # The third executor got no task of the next job, so that there is another one, whose tasks linger.
        session.executors = OTHER
        shared.before_batch(session)
        assert session.jobs == 3
        shared.ask(session)
        check_workers(session)
        assert session.jobs == 3
    shared.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["trades"]


def test_without_a_local_path_an_application_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Session()
    for _ in range(2):
        with begun(None, session):
            assert session.jobs == 1
    local: Any = Session()
    local.conf = {"spark.master": "local[2]"}
    monkeypatch.setattr(workers, "_CHECKED", {})
    check_workers(local)
    assert local.jobs == 0


def test_a_worker_that_is_refused_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "ours", lambda: installed() | {"sources": "0123456789abcdef", "disk": "x"})

    def fail() -> None:
        raise AssertionError

    session: Any = Session()
    with pytest.raises(EnvironmentSetupError) as refused:
        ask_workers(session, fail)
    told = str(refused.value)
    assert told.startswith("the workers of spark://master:7077 must have what this process has, since they execute its")
    assert told.count("(digest 0123456789abcdef), found others in ") == 1
    # They are asked again once they were brought up to date.
    monkeypatch.setattr(workers, "ours", installed)
    assert ask_workers(session, lambda: 7) == [7, 7]


def test_files_that_were_removed_since_the_start_are_not_looked_for(tmp_path: Path) -> None:
    session: Any = Session()
    with begun(shared := places(tmp_path), session):
        for executor, gone in enumerate("abc", start=3):
            (tmp_path / "trades" / gone).unlink()
            if gone == "c":
                (tmp_path / "trades" / "d").write_text("d")
            session.executors += f"\nhost-{executor}:1"
            shared.ask(session)
            listed = {each.path.rpartition("/")[2] for each in shared._files}
            assert listed == {"a": {"b", "c"}, "b": {"c"}, "c": {"d"}}[gone]
        (tmp_path / "trades" / "d").write_text("of another size")
        session.executors += "\nhost-9:1"
        shared.ask(session)
    shared.remove()


def test_what_is_wrong_with_a_place_is_raised_and_nothing_stays(tmp_path: Path) -> None:
    shared, session = places(tmp_path), Session()
    collect = session.collect

    def elsewhere() -> list[Any]:
        # The driver's token is another one where the task runs.
        for token in (tmp_path / "checkpoint").iterdir():
            token.write_text("another")
        return collect()

    session.collect = elsewhere  # type: ignore[method-assign]
    started: Any = session
    with pytest.raises(ConfigurationError, match=r"checkpoint file:.*/checkpoint: on host .* there is something else"):
        shared.begin(started)
    assert [each.name for each in tmp_path.iterdir()] == ["trades"]

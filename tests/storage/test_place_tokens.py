from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.spark.batch.batch_facts import check_places
from cojoin.spark.batch.written_files import check_seen
from cojoin.storage.parquet_files import WrittenFile
from cojoin.storage.place_tokens import Place, Tokens, described_faults, files_in, find_files, unseen


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    """Tokens of a driver in a checkpoint that is there and an output that is not."""
    (tmp_path / "checkpoint").mkdir()
    return Tokens((Place("checkpoint", f"{tmp_path}/checkpoint"), Place("output", f"{tmp_path}/lake/out")))


def elsewhere(tokens: Tokens, folder: Path) -> Tokens:
    """What a worker is told, on whose host other disks are at the places."""
    there = [Place(each.label, f"{folder}/{each.label}") for each in tokens.places]
    return Tokens(tuple(there), tokens.driver, tokens.token)


def test_a_worker_that_shares_the_places_finds_the_tokens_and_is_found(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put()
    worker = Tokens.read(tokens.to_json())
    assert worker.look("one") == worker.look("two") == []
    assert tokens.find([("host a", "one"), ("host b", "two")], seconds=0) == []
    check_places(tokens.to_json())
    tokens.remove()
    assert [each.name for each in tmp_path.rglob("*")] == ["checkpoint"]
    # It was remembered.
    check_places(tokens.to_json())


def test_places_that_hold_something_stay(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put()
    assert not [each for each in (tmp_path / "lake" / "out").iterdir() if not each.name.startswith(".")]
    (tmp_path / "lake" / "out" / "part-0.parquet").touch()
    tokens.remove()
    assert [each.name for each in (tmp_path / "lake" / "out").iterdir()] == ["part-0.parquet"]


def test_a_worker_with_disks_of_its_own_is_told_what_is_wrong(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put()
    worker = elsewhere(tokens, tmp_path / "private")
    (tmp_path / "private" / "output").mkdir(parents=True)
    faults = worker.look("own")
    assert [(each.label, each.why.partition(",")[0]) for each in faults] == [
        ("checkpoint", "it does not exist"),
        ("output", "there is another folder"),
    ]
    # Nothing is written where the token is not found.
    assert list((tmp_path / "private").rglob("*")) == [tmp_path / "private" / "output"]
    with pytest.raises(CheckpointError, match=r"checkpoint file:.*/private/checkpoint: on host .* it does not exist"):
        check_places(worker.to_json())
    told = described_faults([each._replace(host=f"host {name}") for name in "abcdef" for each in faults[:1]], "host x")
    assert "on host a, host b, host c and 3 others it does not exist; the driver runs on host x: expected" in told


def test_a_token_that_is_not_the_drivers_is_told(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put()
    (token,) = (tmp_path / "checkpoint").iterdir()
    token.write_text("another")
    assert "there is something else" in Tokens.read(tokens.to_json()).look("own")[0].why


def test_a_driver_misses_what_a_worker_wrote_elsewhere(tokens: Tokens) -> None:
    tokens.put()
    worker = Tokens.read(tokens.to_json())
    assert worker.look("seen") == []
    missing = tokens.find([("host a", "seen"), ("host b", "unseen")], seconds=0.02)
    assert {(each.label, each.host) for each in missing} == {("checkpoint", "host b"), ("output", "host b")}


def test_a_driver_waits_for_what_comes_late(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put()
    late = threading.Timer(0.1, lambda: Tokens.read(tokens.to_json()).look("late"))
    late.start()
    assert tokens.find([("host a", "late")], seconds=20) == []
    late.join()
    # Their folder is listed again and again, which makes network file systems look.
    assert [each.name for each in (tmp_path / "checkpoint").iterdir()] == [f".cojoin-place.{tokens.token}.tmp"]


def test_a_place_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tokens = Tokens((Place("checkpoint", f"{tmp_path}/new/checkpoint"), Place("output", f"{tmp_path}/file/out")))
    with pytest.raises(CheckpointError, match=r"output file:.*/file/out: "):
        tokens.put()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_tokens_are_kept_fresh_and_put_back(tokens: Tokens, tmp_path: Path) -> None:
    tokens.put()
    (token,) = (tmp_path / "checkpoint").iterdir()
    os.utime(token, (0, 0))
    (tmp_path / "lake" / "out" / token.name).unlink()
    tokens.touch()
    assert token.stat().st_mtime > 1
    assert Tokens.read(tokens.to_json()).look("own") == []


def test_the_next_start_removes_tokens_of_dead_queries(tokens: Tokens, tmp_path: Path) -> None:
    old, young = "0" * 32, "1" * 32
    dead = [f".cojoin-place.{old}.tmp", f".cojoin-place.{old}.{young}.tmp", f"..cojoin-place.{old}.tmp.{young}.tmp"]
    alive = [f".cojoin-place.{young}.tmp", f".another.{old}.tmp", "part-0.parquet"]
    (tmp_path / "lake" / "out").mkdir(parents=True)
    for name in (*dead, *alive):
        (tmp_path / "lake" / "out" / name).touch()
        if name != alive[0]:
            os.utime(tmp_path / "lake" / "out" / name, (0, 0))
    tokens.put()
    (own,) = (tmp_path / "checkpoint").iterdir()
    assert {each.name for each in (tmp_path / "lake" / "out").iterdir()} == {*alive, own.name}
    # A worker that was killed has left one.
    Tokens.read(tokens.to_json()).look("killed")
    tokens.remove(of_workers=True)
    assert {each.name for each in (tmp_path / "lake" / "out").iterdir()} == set(alive)


def test_a_batch_with_spark_connect_lists_no_folder(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each puts the tokens and removes them; an output may have very many files."""
    tokens.put()
    tokens.remove()

    def listed(*_: object) -> None:
        raise AssertionError

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, listed)
    for _ in range(2):
        tokens.put()
        assert Tokens.read(tokens.to_json()).look("worker") == []
        assert tokens.find([("host a", "worker")]) == []
        tokens.remove()


def test_one_of_the_listed_files_of_an_input_is_enough(tmp_path: Path) -> None:
    folder = tmp_path / "trades"
    for name in ("_delta_log/0.json", ".hidden", "day=1/part-0", "day=2/part-1"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    listed = files_in(Place("input 'trades'", str(folder)))
    assert sorted(Path(each.path).name for each in listed) == ["part-0", "part-1"]
    assert files_in(Place("input", str(folder / ".hidden")))[0].size == 7
    assert find_files(listed) == []
    Path(listed[0].path).unlink()
    assert find_files(listed) == []
    Path(listed[1].path).write_text("of another size")
    (fault,) = find_files(listed, seconds=0)
    assert fault.why == f"file {listed[0].path} of 12 bytes is missing"
    assert described_faults([fault], "host x").endswith(
        "expected files that the driver and all workers reach by the same path"
    )
    assert files_in(Place("input", str(tmp_path / "none"))) == []


def test_a_commit_names_only_files_that_the_driver_sees(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12345")
    (tmp_path / "b").write_text("12345")
    (tmp_path / "B").write_text("12345")
    seen = [WrittenFile("a", 1, 5, 0, "{}"), WrittenFile("b", 1, 5, 0, "{}")]
    check_seen(str(tmp_path), seen)
    lost = [*seen, WrittenFile("B", 1, 6, 0, "{}"), WrittenFile("c", 1, 5, 0, "{}")]
    assert unseen(str(tmp_path), [("c", 5), ("B", 6)]) == ["c", "B"]
    with pytest.raises(QueryFailedError, match=r"2 of the 4 files .*, such as [Bc]; nothing was commi"):
        check_seen(str(tmp_path), lost)

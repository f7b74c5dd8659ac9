"""A damaged file is refused with its name, whatever the damage, and nothing that is put into its place is executed."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.engine.state.named_files import NamedFiles
from cojoin.engine.values import codec
from cojoin.errors import CojoinError
from cojoin.storage.documents import _seal
from tests.corruption.campaign import DAMAGES, run_campaign, table
from tests.corruption.payloads import payloads
from tests.corruption.readers import KINDS, World
from tests.corruption.written import GROUPS, LAST, write_checkpoint
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(write_checkpoint(tmp_path / "ours", 1))


def test_some_hundred_corruptions_are_refused(tmp_path: Path) -> None:
    result = run_campaign(tmp_path, 300, SEED)
    assert not result.faults, f"{SEED}: {result.faults[:3]}"
    assert not result.executed
    assert sum(result.counts.values()) == 300


@pytest.mark.slow  # Some minutes.
def test_ten_thousand_corruptions_are_refused(tmp_path: Path) -> None:
    result = run_campaign(tmp_path, 10_000, SEED)
    sys.stdout.write(f"{table(result)}\n")
    assert not result.faults, f"{SEED}: {result.faults[:3]}"
    assert not result.executed
    assert {kind for kind, _, _ in result.counts} == {kind.name for kind in KINDS}
    assert {damage for _, damage, _ in result.counts} > {*DAMAGES}


def test_what_a_query_writes_is_read_as_it_was_written(world: World) -> None:
    for kind in KINDS:
        assert kind.files(world.written), kind.name
        first = kind.read(world)
        world.put_back()
        assert kind.read(world) == first, kind.name
        world.put_back()


FORMER = ("query.json", "lease.json", "restored.json", "runs.json", f"manifest/{LAST - 1:012d}.json")


def test_there_is_a_former_version_of_all_that_is_written_twice(world: World) -> None:
    assert {*FORMER} <= {name for name, former in world.written.former.items() if former}


@pytest.mark.parametrize("name", FORMER[:-1])
def test_a_former_version_is_refused(world: World, name: str) -> None:
    (start,) = (kind.read for kind in KINDS if kind.name == name)
    world.damage(name, world.written.former[name][0])
    with pytest.raises(CojoinError, match=rf"{name}, .* former version"):
        start(world)


def test_a_former_manifest_of_the_last_batch_is_refused(world: World) -> None:
    # As after a crash between the manifest and Spark's commit, where the next run writes it again.
    root, last = world.written.root, f"manifest/{LAST:012d}.json"
    document = json.loads(world.written.files[last])
    document["content"]["epoch"] -= 1
    world.damage(last, sealed(document, last))
    (start,) = (kind.read for kind in KINDS if kind.name == "manifest/")
    with pytest.raises(CojoinError, match=rf"{last}, .* former version, of epoch 1"):
        start(world)
    (root / last).unlink()
    with pytest.raises(CojoinError, match=rf"{last}, .* this file is gone"):
        start(world)


@pytest.mark.parametrize("kept_as", ["segments", "runs"])
@pytest.mark.parametrize("damage", ["a flipped bit", "truncated", "gone", "of another key group", "of another kind"])
def test_a_file_with_rows_of_the_state_is_refused_by_a_task_and_by_a_restore(
    world: World, kept_as: str, damage: str
) -> None:
    drawn, files = random.Random(f"{SEED} {kept_as} {damage}"), dict[tuple[str, int], str]()
    for group in range(GROUPS):
        named = NamedFiles.of(codec.decode(world.contents[f"values/state {group}"])[0])
        files["segments", group], files["runs", group] = (f"segments/{file.name}" for file in named.files())
    name, another = files[kept_as, 1], {"segments": "runs", "runs": "segments"}[kept_as]
    other = files[kept_as, 0] if damage == "of another key group" else files[another, 1]
    for reader in (kind.read for kind in KINDS if kind.name in ("segments/", "contents in state/")):
        if damage == "gone":
            (world.written.root / name).unlink()
        else:
            content = world.written.files[name]
            made = DAMAGES[damage](content, drawn) if damage in DAMAGES else world.written.files[other]
            world.damage(name, made)
        with pytest.raises(CojoinError, match=rf"{name}: .*; restore a snapshot that is whole"):
            reader(world)
        world.put_back()
        reader(world)


def sealed(document: dict[str, Any], name: str) -> bytes:
    """Return a document with the checksum of its content, as only cojoin or somebody who means harm writes it."""
    document["sha256"] = _seal(name, document["format"], document["content"], document.get("query_id"))
    return json.dumps(document).encode()


def texts(value: Any) -> Iterator[tuple[Any, Any]]:
    for name in value if isinstance(value, dict) else range(len(value)):
        if isinstance(value[name], str):
            yield value, name
        elif isinstance(value[name], (dict, list)):
            yield from texts(value[name])


def test_a_document_that_was_made_to_do_harm_executes_nothing(world: World, tmp_path: Path) -> None:
    canary = tmp_path / "executed"
    harmful = [content.decode("latin-1") for content in payloads(canary).values()]
    for kind in KINDS:
        for name in kind.files(world.written):
            if not name.endswith(".json"):
                continue
            for number, each in enumerate(harmful):
                document = json.loads(world.written.files[name])
                places = [*texts(document["content"])]
                for held, place in places[number % max(1, len(places)) :: 3]:
                    held[place] = each
                world.damage(name, sealed(document, name))
                with contextlib.suppress(CojoinError, AssertionError):
                    kind.read(world)
                world.put_back()
    assert not canary.exists()


def test_a_payload_would_be_noticed(tmp_path: Path) -> None:
    import pickle

    canary = tmp_path / "executed"
    pickle.loads(payloads(canary)["pickle"]).close()
    assert canary.exists()

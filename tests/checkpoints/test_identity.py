"""A checkpoint serves one query of one shape; any other is told the difference, and nothing is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.checkpoints.identity import check_evolution, claim_checkpoint, describe_query, note_sources, read_query
from cojoin.engine.inputs import InputSpec
from cojoin.engine.joins.asof import AsofJoin
from tests.spark.refused import refused

if TYPE_CHECKING:
    from pathlib import Path

    from cojoin.storage.store import Store


SCHEMA = pa.schema([("customer_id", pa.int64()), ("event_time", pa.timestamp("us", "UTC"))])


def query(*, operation: Any = None, key_groups: int = 8, **settings: Any) -> dict[str, Any]:
    left = InputSpec(
        **({"name": "trades", "schema": SCHEMA, "key": ("customer_id",), "event_time": "event_time"} | settings)
    )
    right = InputSpec("customers", SCHEMA, ("customer_id",), "event_time")
    return describe_query(operation or AsofJoin().describe(), (left, right), SCHEMA, key_groups)


def test_a_query_keeps_its_id(files: Store) -> None:
    first = claim_checkpoint(files, query())
    assert claim_checkpoint(files, query()) == first
    assert (
        claim_checkpoint(
            files, query(watermark=cj.WatermarkStrategy.for_bounded_out_of_orderness("5 s"), max_ahead_ms=5)
        )
        == first
    )


def test_a_description_that_is_written_between_two_looks_is_read(files: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks while a query starts for the first time finds first nothing, and then all of it."""
    names = type(files).names

    def late(store: Store, directory: str) -> list[str]:
        monkeypatch.undo()
        claim_checkpoint(store, query())
        store.write("lease.json", "{}")
        return names(store, directory)

    files.make_directory("")
    monkeypatch.setattr(type(files), "names", late)
    assert read_query(files)["query"] == query()


NOTED = SCHEMA.append(pa.field("note", pa.string())).append(pa.field("amount", pa.float64()))
CURE_OF_MORE = "drop it from the input, or take the state into a new checkpoint with restore_from="


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (NOTED.append(pa.field("more", pa.int32())), f"has the column 'more' more; {CURE_OF_MORE}"),
        (
            NOTED.remove(2),
            (
                "has lost column 'note'; add it again, such as with ALTER TABLE ... ADD COLUMN (note string AFTER "
                "`event_time`)"
            ),
        ),
        (
            NOTED.set(3, pa.field("amount", pa.int64())),
            "has the column amount bigint, in the checkpoint it is amount double; cast it to that type, or, where",
        ),
        (
            pa.schema([*SCHEMA, NOTED.field("amount"), NOTED.field("note")]),
            (
                "has its columns in another order, customer_id, event_time, amount, note; select customer_id, "
                "event_time, note, amount"
            ),
        ),
    ],
)
def test_other_columns_of_an_input_are_told_each_with_its_cure(files: Store, schema: pa.Schema, said: str) -> None:
    claim_checkpoint(files, query(schema=NOTED))
    with pytest.raises(cj.CheckpointError) as caught:
        claim_checkpoint(files, query(schema=schema))
    message = str(caught.value)
    assert message.startswith(
        f"checkpoint {files.root}: the inputs' columns are not those of the checkpoint: input 'trades' {said}"
    )


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (query(operation=AsofJoin("inner").describe()), "how is 'left' there and 'inner' here"),
        (query(operation=AsofJoin(tolerance="1 ms").describe()), "tolerance_us is None there and 1000 here"),
        (query(key_groups=16), "key_groups is 8 there and 16 here"),
        (query(name="orders"), "inputs[0].name is 'trades' there and 'orders' here"),
        (query(sequence=("event_time",)), "inputs[0].sequence is [] there and ['event_time'] here"),
        (
            query(operation={"operator": "process", "function": "Enrich", "order": "arrival"}),
            "operator is 'asof_join' there and 'process' here",
        ),
    ],
)
def test_another_shape_is_told_the_difference(files: Store, other: dict[str, Any], difference: str) -> None:
    claim_checkpoint(files, query())
    before = files.read("query.json")
    with pytest.raises(cj.CheckpointError) as caught:
        claim_checkpoint(files, other)
    assert str(caught.value) == (
        f"checkpoint {files.root} belongs to another query, or to another shape of this one: {difference}. "
        f"Start this query with a checkpoint of its own, or make it the query that the checkpoint holds; "
        f"where it has evolved, restore_from= takes the state into a new checkpoint"
    )
    assert files.read("query.json") == before


@pytest.mark.parametrize("stranger", ["offsets", "_delta_log", "part-0.parquet"])
def test_a_directory_that_is_no_checkpoint_of_ours_is_refused(files: Store, tmp_path: Path, stranger: str) -> None:
    (tmp_path / "checkpoint" / stranger).mkdir(parents=True)
    with pytest.raises(cj.CheckpointError) as caught:
        claim_checkpoint(files, query())
    assert str(caught.value) == (
        f"checkpoint {files.root}: the directory holds '{stranger}' and no query.json, so it is no checkpoint of "
        f"cojoin's; name a query's checkpoint, or choose an empty directory for a new one"
    )
    assert files.names("") == [stranger]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '{"format": 5}', "no json"])
def test_a_query_json_that_is_damaged_or_someone_elses_is_refused(files: Store, text: str) -> None:
    files.write("query.json", text)
    for use in (read_query, lambda files: claim_checkpoint(files, query()), lambda files: note_sources(files, [])):
        with refused("query.json", "is damaged", "put it back from a backup", kind=cj.CheckpointError):
            use(files)


def test_a_checkpoint_whose_query_json_is_gone_is_told_as_such(files: Store) -> None:
    claim_checkpoint(files, query())
    files.write("manifest/000000000000.json", "")
    files.delete("query.json")
    for use in (read_query, lambda files: claim_checkpoint(files, query())):
        with refused("query.json", "is gone, and the rest of a checkpoint is there", "backup", kind=cj.CheckpointError):
            use(files)


def test_one_of_release_0_5_0_is_read_and_sealed_by_who_holds_it(files: Store) -> None:
    files.write("query.json", json.dumps({"format": 4, "query_id": "x", "query": query(), "sources": [None, None]}))
    assert claim_checkpoint(files, query()) == "x"
    assert json.loads(files.read("query.json") or "")["format"] == 4
    assert note_sources(files, [None, None]) == "x"
    assert json.loads(files.read("query.json") or "")["format"] == 5
    assert claim_checkpoint(files, query()) == "x"
    described = query()
    del described["inputs"][1]["key"]
    files.write("query.json", json.dumps({"format": 4, "query_id": "x", "query": described, "sources": [None, None]}))
    with refused("query.json", "not of the shape that was written", "'key'", kind=cj.CheckpointError):
        read_query(files)


def test_an_empty_directory_and_what_a_crash_left_of_a_claim_may_be_claimed(files: Store, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / ".query.json.0f.tmp").write_text("{")
    assert claim_checkpoint(files, query())


def test_a_newer_format_asks_for_an_upgrade(files: Store) -> None:
    files.write("query.json", json.dumps({"format": 6, "query_id": "x", "query": {}}))
    with pytest.raises(cj.CheckpointError, match="has the format 6, which is newer than 5: upgrade cojoin"):
        claim_checkpoint(files, query())


def test_an_older_format_is_refused(files: Store) -> None:
    files.write("query.json", json.dumps({"format": 1, "query_id": "x", "query": {}}))
    with pytest.raises(cj.CheckpointError, match="has the format 1, that of an earlier version of cojoin"):
        claim_checkpoint(files, query())


def test_a_query_that_begins_to_need_the_clock_is_another(files: Store) -> None:
    claim_checkpoint(files, query())
    with pytest.raises(cj.CheckpointError, match="needs_clock is False there and True here"):
        claim_checkpoint(files, query() | {"needs_clock": True})


def test_what_the_inputs_read_is_kept_without_being_compared(files: Store) -> None:
    first, source = claim_checkpoint(files, query()), {"format": "delta", "location": "/lake/trades"}
    assert read_query(files)["sources"] == [None, None]
    assert claim_checkpoint(files, query(), [source, None]) == first
    assert read_query(files)["sources"] == [None, None], "only who holds the checkpoint may change it"
    assert note_sources(files, [source, None]) == first
    assert read_query(files)["sources"] == [source, None]


PROCESS = {"operator": "process", "function": "Enrich", "order": "event_time", "side_outputs": {"a": "x int"}}


@pytest.mark.parametrize(
    "other",
    [
        query(operation=PROCESS, key_groups=16) | {"needs_clock": True},
        query(operation=PROCESS | {"function": "EnrichMore", "side_outputs": {"a": "x bigint", "b": "y int"}}),
        query(operation=PROCESS, schema=SCHEMA.append(pa.field("amount", pa.float64()))),
    ],
)
def test_a_restored_query_may_have_evolved(other: dict[str, Any]) -> None:
    check_evolution(query(operation=PROCESS), other, "there")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (query(), "operator is 'process' there and 'asof_join' here"),
        (query(operation=PROCESS | {"order": "arrival"}), "order is 'event_time' there and 'arrival' here"),
        (query(operation=PROCESS | {"side_outputs": {}}), "side output 'a' is there and not here"),
        (query(operation=PROCESS, name="orders"), "inputs[0].name is 'trades' there and 'orders' here"),
        (
            query(operation=PROCESS, schema=SCHEMA.set(0, pa.field("customer_id", pa.int32()))),
            "input 'trades': column 'customer_id', which must keep its type, is bigint there and int here",
        ),
    ],
)
def test_any_other_change_is_refused(other: dict[str, Any], difference: str) -> None:
    with pytest.raises(cj.CheckpointError) as caught:
        check_evolution(query(operation=PROCESS), other, "there")
    assert str(caught.value).startswith(f"checkpoint there can't go on as this query: {difference}")


def test_a_key_is_never_widened() -> None:
    narrow = SCHEMA.set(0, pa.field("customer_id", pa.int32()))
    with pytest.raises(cj.CheckpointError, match=r"'customer_id'.*int there and bigint here"):
        check_evolution(query(schema=narrow), query(), "there")

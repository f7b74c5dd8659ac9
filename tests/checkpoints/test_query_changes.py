"""What of a query its checkpoint lets change, and that the rest is refused by what the user wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.checkpoints.identity import claim_checkpoint
from cojoin.checkpoints.query_changes import (
    added_columns,
    check_evolution,
    check_output_meaning,
    check_same_query,
)
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins.asof import AsofJoin
from cojoin.engine.joins.interval import IntervalJoin
from cojoin.engine.plan import Plan
from cojoin.engine.row_changes import RowChanges
from cojoin.engine.values.types import schema_to_ddl
from tests.checkpoints.test_identity import SCHEMA, query
from tests.spark.refused import refused

if TYPE_CHECKING:
    from cojoin.storage.store import Store

NOTED = SCHEMA.append(pa.field("note", pa.string())).append(pa.field("amount", pa.float64()))
ANEW = "take the state into a new checkpoint with restore_from="
PROCESS = {"operator": "process", "function": "Enrich", "order": "event_time", "side_outputs": {"a": "x int"}}


def processed(output: str, **more: Any) -> dict[str, Any]:
    return query(operation=PROCESS | more) | {"output": output}


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            NOTED.remove(2),
            (
                "input 'trades' has lost column 'note'; add it again: to a table with ALTER TABLE ... ADD COLUMN (note "
                "string "
                "AFTER `event_time`), for files in schema="
            ),
        ),
        (
            NOTED.set(3, pa.field("amount", pa.int64())),
            (
                "input 'trades' has the column amount bigint, in the checkpoint it is amount double; cast it to that "
                "type, for files in schema=, "
                f"or, where it has become wider, {ANEW}"
            ),
        ),
        (
            NOTED.set(3, pa.field("amount", pa.float32())).append(pa.field("more", pa.int32(), nullable=False)),
            (
                "input 'trades' has the column amount float, in the checkpoint it is amount double; cast it to that "
                "type, for files in schema=, "
                f"or, where it has become wider, {ANEW}; input 'trades' has the column 'more' more, which may not be "
                f"null, "
                "and earlier rows have none; declare it without NOT NULL"
            ),
        ),
        (
            pa.schema([*SCHEMA, NOTED.field("amount"), NOTED.field("note")]),
            (
                "input 'trades' has its columns in another order, customer_id, event_time, amount, note; select "
                "customer_id, event_time, note, amount"
            ),
        ),
    ],
)
def test_a_column_that_goes_or_changes_is_refused_by_its_name(
    files: Store, schema: pa.Schema, said: str, evolve: bool
) -> None:
    claim_checkpoint(files, query(schema=NOTED))
    before = files.read("query.json")
    with pytest.raises(cj.CheckpointError) as caught:
        claim_checkpoint(files, query(schema=schema), evolve=evolve)
    head = f"checkpoint {files.root}: the query's columns are not those of the checkpoint: "
    assert str(caught.value) == f"{head}{said}. Start this query with its own checkpoint where that is not wanted"
    assert files.read("query.json") == before


def test_an_added_column_is_taken_up_where_the_user_says_so(files: Store) -> None:
    first = claim_checkpoint(files, query())
    with pytest.raises(cj.CheckpointError) as caught:
        claim_checkpoint(files, query(schema=NOTED))
    each = "start(..., evolve=True) takes it up: rows that wait have null in it; or drop it from the input"
    assert str(caught.value) == (
        f"checkpoint {files.root}: the query's columns are not those of the checkpoint: input 'trades' has the column "
        f"'note' more; {each}; input 'trades' has the column 'amount' more; {each}. Start this query with its own "
        f"checkpoint where that is not wanted"
    )
    assert claim_checkpoint(files, query(schema=NOTED), evolve=True) == first
    assert added_columns(query(), query(schema=NOTED)) == [("note", "amount"), ()]
    first_of_all = pa.schema([NOTED.field("note"), *SCHEMA])
    assert claim_checkpoint(files, query(schema=first_of_all), evolve=True) == first


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("a bigint", "the output has lost column 'b'; keep it, with null where"),
        ("a int, b string", "the output has the column a int, in the checkpoint it is a bigint; keep its type"),
        ("b string, a bigint", "the output has its columns in another order, b, a; keep the order a, b"),
        ("a bigint, b string, c int NOT NULL", "the output has the column 'c' more, which may not be null"),
        ("a bigint, b string, c int", None),
    ],
)
def test_a_functions_output_may_get_columns_and_lose_none(output: str, said: str | None) -> None:
    stored, asked = processed("a bigint, b string"), processed(output)
    if said is None:
        check_same_query(stored, asked, "checkpoint there", evolve=True)
        said = "the output has the column 'c' more; start(..., evolve=True) takes it up"
        with pytest.raises(cj.CheckpointError, match=r"options=\{\"mergeSchema\": \"true\"\}"):
            check_same_query(stored, asked, "checkpoint there")
        with pytest.raises(cj.CheckpointError) as caught:
            check_same_query(stored, asked, "checkpoint there")
    else:
        with pytest.raises(cj.CheckpointError) as caught:
            check_same_query(stored, asked, "checkpoint there", evolve=True)
    assert said in str(caught.value)


def test_a_side_output_may_get_columns() -> None:
    check_same_query(
        processed("a int"), processed("a int", side_outputs={"a": "x int, y int"}), "checkpoint there", evolve=True
    )
    with pytest.raises(cj.CheckpointError, match="side output 'a' has lost column 'x'"):
        check_same_query(
            processed("a int"), processed("a int", side_outputs={"a": "y int"}), "checkpoint there", evolve=True
        )


@pytest.mark.parametrize("evolve", [False, True])
def test_other_suffixes_of_a_join_are_told_as_such(evolve: bool) -> None:
    stored, asked = (query() | {"output": f"id int, {name} string"} for name in ("note", "note_customer"))
    with pytest.raises(cj.CheckpointError, match=r"has lost column 'note'; give the join its suffixes= as they were"):
        check_same_query(stored, asked, "checkpoint there", evolve=evolve)


MORE = [pa.field("note", pa.string())]


@pytest.mark.parametrize(
    ("suffixes", "left", "right", "said"),
    [
        (("", "_customer"), MORE, [], "the output's column 'note' is of input 'customers', and with the columns that "),
        (("", "_customer"), [], MORE, None),
        (("_trade", ""), [], MORE, "the output's column 'note' is of input 'trades', and with the columns that were "),
        (("_trade", "_customer"), MORE, [], "added it would be gone; rename the added column"),
        (("", "_customer"), [pa.field("other", pa.string())], [], None),
    ],
)
def test_an_added_column_takes_no_other_ones_name_in_the_output(
    suffixes: tuple[str, str], left: list[Any], right: list[Any], said: str | None
) -> None:
    has, lacks = SCHEMA.append(MORE[0]), pa.schema([SCHEMA.field(0), pa.field("at", SCHEMA.field(1).type)])
    if left:
        schemas = pa.schema([*lacks, *left]), has
        stored = [lacks, has]
    else:
        schemas = has, pa.schema([*lacks, *right])
        stored = [has, lacks]
    times = ["at" if "at" in schema.names else "event_time" for schema in schemas]
    one, two = (
        InputSpec(name, schema, ("customer_id",), time)
        for name, schema, time in zip(("trades", "customers"), schemas, times, strict=True)
    )
    described = {"inputs": [{"columns": schema_to_ddl(schema)} for schema in stored]}
    plan = Plan(AsofJoin(suffixes=suffixes), one, two, 2)
    if said is None:
        check_output_meaning(described, plan, "checkpoint there")
        return
    with refused(said, kind=cj.CheckpointError):
        check_output_meaning(described, plan, "checkpoint there")


CHANGES = RowChanges("event_time", valid_to="until")
KEYS = "key= is ['customer_id'] in the checkpoint and"


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (query(operation=AsofJoin("inner").describe()), "how= is 'left' in the checkpoint and 'inner' in the query"),
        (
            query(operation=AsofJoin(tolerance="1 ms").describe()),
            "tolerance= is None in the checkpoint and '1 millisecond' in the query",
        ),
        (query(key_groups=16), "key_groups= is 8 in the checkpoint and 16 in the query"),
        (query(name="orders"), "the left input's name= is 'trades' in the checkpoint and 'orders' in the query"),
        (
            query(sequence=("event_time",)),
            "input 'trades': sequence= is [] in the checkpoint and ['event_time'] in the query",
        ),
        (
            query(key=("customer_id", "event_time")),
            (
                f"input 'trades': {KEYS} ['customer_id', 'event_time'] in the query: column 'event_time' has become a "
                f"key "
                f"column"
            ),
        ),
        (
            query(schema=NOTED, key=("note",)),
            (
                f"input 'trades': {KEYS} ['note'] in the query: column 'note' has become a key column, column "
                f"'customer_id' is not a key column any more"
            ),
        ),
        (
            query(schema=NOTED.append(pa.field("until", pa.timestamp("us", "UTC"))), changes=CHANGES),
            "input 'trades': valid_to= is None in the checkpoint and 'until' in the query",
        ),
        (
            query(event_time="changed_at"),
            "input 'trades': event_time= is 'event_time' in the checkpoint and 'changed_at' in the query",
        ),
        (
            query(operation={"operator": "process", "function": "Enrich", "order": "arrival"}),
            "the operation is 'asof_join' in the checkpoint and 'process' in the query",
        ),
    ],
)
def test_another_shape_is_named_by_what_the_user_wrote(
    files: Store, other: dict[str, Any], difference: str, evolve: bool
) -> None:
    claim_checkpoint(files, query())
    before = files.read("query.json")
    with pytest.raises(cj.CheckpointError) as caught:
        claim_checkpoint(files, other, evolve=evolve)
    assert str(caught.value) == (
        f"checkpoint {files.root} belongs to another query, or to another shape of this one: {difference}. "
        f"Start this query with its own checkpoint, or make it the query that the checkpoint holds; "
        f"where it has evolved, restore_from= takes the state into a new checkpoint"
    )
    assert files.read("query.json") == before


def test_bounds_of_an_interval_join_are_told_as_durations() -> None:
    one, two = (query(operation=IntervalJoin("-1 hour", upper).describe()) for upper in ("0 s", "90 s"))
    with pytest.raises(cj.CheckpointError, match="upper= is '0 seconds' in the checkpoint and '90 seconds' in"):
        check_same_query(one, two, "checkpoint there")


@pytest.mark.parametrize(
    "other",
    [
        query(operation=PROCESS, key_groups=16) | {"needs_clock": True},
        query(operation=PROCESS | {"function": "EnrichMore", "side_outputs": {"a": "x bigint", "b": "y int"}}),
        query(operation=PROCESS, schema=SCHEMA.append(pa.field("amount", pa.float64()))),
    ],
)
def test_a_restored_query_may_have_evolved(other: dict[str, Any]) -> None:
    check_evolution(query(operation=PROCESS), other, "checkpoint there")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (query(), "the operation is 'process' in the checkpoint and 'asof_join' in the query"),
        (
            query(operation=PROCESS | {"order": "arrival"}),
            "order= is 'event_time' in the checkpoint and 'arrival' in the query",
        ),
        (query(operation=PROCESS | {"side_outputs": {}}), "side output 'a' is missing in the query"),
        (query(operation=PROCESS, name="orders"), "the left input's name= is 'trades' in the checkpoint and 'orders'"),
        (
            query(operation=PROCESS, schema=SCHEMA.set(0, pa.field("customer_id", pa.int32()))),
            "input 'trades': column 'customer_id', which must keep its type, changes from bigint to int",
        ),
    ],
)
def test_any_other_change_is_refused(other: dict[str, Any], difference: str) -> None:
    with pytest.raises(cj.CheckpointError) as caught:
        check_evolution(query(operation=PROCESS), other, "checkpoint there")
    assert str(caught.value).startswith(f"checkpoint there can't continue as this query: {difference}")


def test_a_key_is_never_widened() -> None:
    narrow = SCHEMA.set(0, pa.field("customer_id", pa.int32()))
    with pytest.raises(cj.CheckpointError, match=r"'customer_id'.*from int to bigint"):
        check_evolution(query(schema=narrow), query(), "checkpoint there")

"""Upserts into databases: the final table is that of all rows at once, whatever the batches, for every rule."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.delta.table_batches import FencedOffError
from cojoin.engine.upsert import Upsert
from cojoin.errors import QueryFailedError
from cojoin.spark.sinks.batch_marker import BatchMarker
from cojoin.spark.sinks.batch_rows import BatchRows, FileRows
from cojoin.spark.sinks.sink import OutputId, Position
from cojoin.sql import sql_sink
from cojoin.sql.database import DatabaseError
from cojoin.sql.sql_sink import SqlSink, SqlWriter, open_database
from cojoin.storage.local_store import LocalStore
from tests.seeds import SEED, SEED_TEXT
from tests.spark.sinks.upserted import RULES, SCHEMA, cut, drawn, expected, ids, spelled, written

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.push

KINDS = ("sqlite", "postgresql")


@pytest.fixture
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a function that makes a database of a kind and returns its URL."""

    def url(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{random.random()}.db"
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.database()

    return url


class Table:
    """A table that one query upserts, by one driver after the other."""

    def __init__(self, url: str, folder: Path, rule: Upsert | None, *, epoch: int = 1, name: str = "rows") -> None:
        self.folder, self.batches, self.counts = folder, 0, dict[str, int]()
        self.sink = SqlSink(url, name, rule)
        output = OutputId(f"query-of-{name}", "output", epoch, takes_over=epoch > 1, schema=SCHEMA, order=("at",))
        self.writer = SqlWriter(None, self.sink, output)  # type: ignore[arg-type]  # its files are given
        self.prepare()

    def prepare(self, last: int | None = None) -> None:
        written = {} if last is None else {"batch_id": last}
        position = Position("/checkpoint", self.batches, written)
        self.writer._transact(lambda session: self.writer._prepared(session, position, "here"))

    def upsert(self, rows: pa.Table, files: int = 1, batch_id: int | None = None) -> dict[str, int] | None:
        batch_id = self.batches if batch_id is None else batch_id
        source = FileRows(LocalStore(str(self.folder), "folder"))
        assert self.writer._rule is not None
        batch = BatchRows(source, SCHEMA, self.writer._rule, ("at",), written(self.folder, rows, files))
        marker = BatchMarker(batch_id, rows.num_rows, rows.num_rows, "offsets")
        counts: dict[str, int] | None = self.writer._run(marker, lambda session: self.writer._upsert(session, batch))
        self.batches, self.counts = batch_id + 1, counts or {}
        return counts

    def rows(self) -> list[dict[str, Any]]:
        assert self.writer._rule is not None
        schema = self.writer._rule.stored(SCHEMA)
        names = ", ".join(map(self.sink.database.quoted, schema.names))
        session = self.sink.database.connect("test")
        found = session.fetch(f"SELECT {names} FROM {self.sink.database.quoted_table(self.sink.table)}", schema)
        session.close()
        return found.to_pylist()


def without_nan(rows: pa.Table) -> pa.Table:
    """Return rows without NaN, which SQLite does not have."""
    prices = [None if value is None or value != value else value for value in rows["price"].to_pylist()]  # noqa: PLR0124
    return rows.set_column(rows.schema.get_field_index("price"), "price", pa.array(prices, pa.float64()))


def check_history(url: str, folder: Path, seed: str) -> None:
    draw = random.Random(seed)
    rule = draw.choice(RULES)
    rows = drawn(draw, draw.randint(0, 60), 0, 100)
    if url.startswith("sqlite"):
        rows = without_nan(rows)
    table = Table(url, folder, rule, name=f"rows_{abs(hash(seed))}")
    totals = dict.fromkeys(("inserted", "updated", "deleted", "superseded", "null_keys"), 0)
    for batch in cut(draw, rows, rule):
        if batch.num_rows:
            counts = table.upsert(batch, draw.randint(1, 3))
            assert counts is not None
            totals = {name: count + counts[name] for name, count in totals.items()}
        if draw.random() < 0.3 and batch.num_rows:
            assert table.upsert(batch, 1, table.batches - 1) is None, "the table has the batch"
    wanted = expected(rows, rule)
    assert spelled(table.rows()) == spelled(wanted), f"{SEED_TEXT} {seed}"
    if rule.deletes is None:
        assert totals["inserted"] == len(wanted)
        assert sum(totals.values()) == rows.num_rows


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_does_not_depend_on_the_batches(urls: Any, tmp_path: Path, kind: str) -> None:
    url = urls(kind)
    for number in range(12):
        check_history(url, tmp_path / str(number), f"{SEED} {kind} {number}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_tables_do_not_depend_on_the_batches(urls: Any, tmp_path: Path, kind: str) -> None:
    url = urls(kind)
    for number in range(12, 112):
        check_history(url, tmp_path / str(number), f"{SEED} {kind} {number}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_former_driver_is_fenced_off_and_its_batch_is_not_lost_or_doubled(
    urls: Any, tmp_path: Path, kind: str
) -> None:
    url = urls(kind)
    old = Table(url, tmp_path, Upsert(("id",)))
    old.upsert(ids(1, 2))
    new = Table(url, tmp_path, Upsert(("id",)), epoch=2)
    with pytest.raises(
        FencedOffError, match="another run of this query has taken over at epoch 2; this one held epoch 1"
    ):
        old.upsert(ids(1, 3, price=5.0))
    new.batches = 1
    new.upsert(ids(1, 3, price=6.0))
    assert {row["id"]: row["price"] for row in new.rows()} == {1: 6.0, 2: 1.0, 3: 6.0}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_another_execution_is_refused(urls: Any, tmp_path: Path, kind: str) -> None:
    table = Table(urls(kind), tmp_path, Upsert(("id",)))
    table.upsert(ids(1, 2))
    with pytest.raises(
        QueryFailedError, match="has the query's batch 0 already, from another execution: it had 2 rows"
    ):
        table.upsert(ids(1, 2, 3), 1, 0)
    table.upsert(ids(7), 1, 1)
    with pytest.raises(QueryFailedError, match="the table has the query's batches up to 1 already"):
        table.upsert(ids(1, 2), 1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_comes_twice_and_a_fence_row_that_is_gone_are_told(urls: Any, tmp_path: Path, kind: str) -> None:
    table = Table(urls(kind), tmp_path, Upsert(("id",), "error"))
    table.upsert(ids(3, 4))
    with pytest.raises(QueryFailedError, match=r"by conflict='error', and the table has id=4 already"):
        table.upsert(ids(5, 4))
    assert sorted(row["id"] for row in table.rows()) == [3, 4]
    session = table.sink.database.connect("test")
    session.execute("DELETE FROM cojoin_fence")
    session.commit()
    session.close()
    with pytest.raises(QueryFailedError, match=r'the query\'s row in "cojoin_fence" is gone'):
        table.upsert(ids(8))
    with pytest.raises(cj.CheckpointError, match="else restore into a new checkpoint with a new table") as caught:
        table.prepare(last=0)
    statement = str(caught.value).partition("run: ")[2].partition("; else")[0]
    session = table.sink.database.connect("test")
    session.execute(statement)
    session.commit()
    session.close()
    table.prepare(last=0)
    table.upsert(ids(8))
    assert sorted(row["id"] for row in table.rows()) == [3, 4, 8]


class Cut:
    """A session whose connection is lost at a commit: before the server makes it, or after."""

    def __init__(self, session: Any, *, is_made: bool) -> None:
        self._session, self._is_made = session, is_made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def commit(self) -> None:
        if self._is_made:
            self._session.commit()
        self._session.close()
        msg = "PostgreSQL: the connection is lost"
        raise DatabaseError(msg, is_lost=True)


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_whose_answer_is_lost_is_settled_by_the_fence_row(
    urls: Any, tmp_path: Path, kind: str, is_made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_sink, "_PAUSE_SECONDS", 0.0)
    table = Table(urls(kind), tmp_path, Upsert(("id",), order_by=("price",)))
    table.upsert(ids(1, 2))
    table.writer._connection = Cut(table.writer._connected(), is_made=is_made)  # type: ignore[assignment]
    counts = table.upsert(ids(2, 3, price=5.0))
    assert (counts is None) == is_made
    assert {row["id"]: row["price"] for row in table.rows()} == {1: 1.0, 2: 5.0, 3: 5.0}


def test_a_suspended_driver_that_holds_the_row_is_ended_by_its_successor(urls: Any, tmp_path: Path) -> None:
    url = urls("postgresql")
    old = Table(url, tmp_path, Upsert(("id",)))
    old.upsert(ids(1))
    held = old.writer._connected()
    held.execute(old.writer._fence.read, old.writer._identity)
    output = replace(old.writer._output, epoch=2, takes_over=True)
    new = SqlWriter(None, old.sink, output)  # type: ignore[arg-type]
    old.sink.database.fence_off(new._application)
    new._transact(lambda session: new._prepared(session, Position("/checkpoint", 1, {"batch_id": 0}), "here"))
    with pytest.raises(QueryFailedError, match="fenced off"):
        old.upsert(ids(2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_query_upserts_into_the_table_and_retires_the_old_one(urls: Any, tmp_path: Path, kind: str) -> None:
    old = Table(urls(kind), tmp_path, Upsert(("id",)))
    old.upsert(ids(1, 2))
    written, former = {**old.sink.place(), "batch_id": 0}, old.writer._output
    for ends in (False, True):
        assert old.sink.continues_output_of(written, former, successor="/new", ends=ends)
    with pytest.raises(QueryFailedError, match="a query that was restored from this one's checkpoint continues the"):
        old.upsert(ids(3))
    new = SqlWriter(None, old.sink, replace(former, query_id="new"))  # type: ignore[arg-type]
    new._transact(lambda session: new._prepared(session, Position("/new", 0, {}), "here"))
    assert not old.sink.continues_output_of({"sql": "elsewhere"}, former, successor="/new", ends=True)
    other = replace(old.sink, upsert=Upsert(("id",), order_by=("at",)))
    with pytest.raises(cj.CheckpointError, match=r"has written with upsert=\['id'\], conflict='last'; give the same"):
        other.continues_output_of(written, former, successor="/new", ends=True)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("jdbc:postgresql://host/shop", "it is not a JDBC URL, and needs no jar: leave out jdbc:"),
        ("mysql://me:secret@host/shop", r"expected a URL postgresql://... or sqlite:///path, got mysql://\*\*\*@host"),
        (7, "got 7"),
        ("sqlite://shop.db", "expected the path of a file, as in sqlite:////data/shop.db"),
        *((f"postgresql://me:open{each}sesame@host/shop", "percent-encode it, @ as %40") for each in "/@[?#"),
        ("postgresql://me:1/sesame@host/shop", "percent-encode it, @ as %40"),
    ],
)
def test_urls_of_no_database_are_refused(url: Any, message: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=message) as caught:
        open_database(url, "sinks.sql")
    assert "sesame" not in str(caught.value)


def test_no_message_has_the_password(urls: Any) -> None:
    url = urls("postgresql").replace("postgres:@", "nobody:open%20sesame@")
    sink = cj.sinks.sql(url, "rows", upsert="id")
    assert "sesame" not in f"{sink!r} {sink.describe()} {sink.place()}"
    for bad in (url, "postgresql://me:open%20sesame@127.0.0.1:1/shop"):
        with pytest.raises(DatabaseError) as caught:
            open_database(bad, "sinks.sql").connect("x")
        assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_gone_is_not_made_again(urls: Any, tmp_path: Path, kind: str) -> None:
    table = Table(urls(kind), tmp_path, Upsert(("id",)))
    table.upsert(ids(3, 4))
    session = table.sink.database.connect("test")
    session.execute(f"DROP TABLE {table.writer._table}")
    session.commit()
    session.close()
    with pytest.raises(cj.CheckpointError, match="the query has written batch 0 to it, and the table is gone"):
        table.prepare(last=0)


def test_what_a_database_can_not_compare_or_name_is_refused() -> None:
    floats = cj.sinks.sql("sqlite:////data/shop.db", "rows", upsert="id", order_by="price")
    with pytest.raises(cj.ConfigurationError, match="order_by: SQLite has no NaN and stores a null"):
        floats.check_order(SCHEMA, None, "output")
    long = pa.schema([("x" * 64, pa.int64())])
    with pytest.raises(cj.ConfigurationError, match="has 64 bytes, and PostgreSQL cuts names after 63: rename it"):
        cj.sinks.sql("postgresql://host/shop", "rows").check_columns(long, "output")
    for name in ("a.b.c", "cojoin_fence", "sales.cojoin_fence"):
        with pytest.raises(cj.ConfigurationError, match=r"table: expected a table's name, or schema.table"):
            cj.sinks.sql("postgresql://host/shop", name)


def test_only_a_unique_index_on_the_very_texts_of_the_key_counts(urls: Any) -> None:
    for kind, made, counts in (
        ("sqlite", "CREATE TABLE rows (id text COLLATE NOCASE PRIMARY KEY)", False),
        ("sqlite", "CREATE TABLE rows (id text PRIMARY KEY)", True),
        ("sqlite", "CREATE TABLE rows (id INTEGER PRIMARY KEY)", True),
        ("postgresql", "CREATE TABLE rows (id text UNIQUE DEFERRABLE, v int)", False),
        ("postgresql", "CREATE TABLE rows (id text, v int, UNIQUE (id) INCLUDE (v))", True),
    ):
        database = open_database(urls(kind), "sinks.sql")
        session = database.connect("test")
        session.execute(made)
        assert (frozenset({"id"}) in database.unique_keys(session, '"rows"')) == counts, made
        session.close()

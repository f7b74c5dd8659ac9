"""A table in a memtable and segments reads as one in memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.functions import KeyedCoProcessFunction
from cojoin.engine.input_spec import InputSpec
from cojoin.engine.joins import AsofJoin, IntervalJoin, TemporalJoin
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.local.key_group import check_conservation
from cojoin.engine.operator import Batch
from cojoin.engine.state import StateTtlConfig, ValueStateDescriptor
from cojoin.engine.state import segmented_table as kept_module
from cojoin.engine.state import segments as segments_module
from cojoin.engine.state.named_files import NamedFiles
from cojoin.engine.state.segmented_table import (
    SHADOWED,
    Expired,
    SegmentedTable,
    among,
    attach,
    by_key_range,
    flush,
    ranges,
    with_fewer,
)
from cojoin.engine.state.segments import SegmentContext, SegmentOptions
from cojoin.engine.state.ttl import timed_type
from cojoin.engine.time.control_rows import ONE_PARTITION, Control
from cojoin.engine.values import codec
from cojoin.engine.values.tables import concat
from cojoin.errors import CheckpointError, CodecError
from tests import streams
from tests.segments import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cojoin.engine.operator import Operator

HASHES = st.lists(st.integers(0, 9) | st.just((1 << 64) - 1), max_size=12)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


@given(HASHES, HASHES)
def test_oracle_they_are_those_of_python(some: list[int], others: list[int]) -> None:
    assert among(array(some), array(sorted(set(others)))).tolist() == [each in others for each in some]
    before, after = Counter(some + others), Counter(others)
    fewer = with_fewer(array(some + others), array(others)).tolist()
    assert fewer == sorted(each for each in before if after[each] < before[each])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), min_size=1, max_size=6))
def test_ranges_follow_each_other(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array(each) for each in zip(*pairs, strict=True))
    wanted = [number for start, length in pairs for number in range(start, start + length)]
    assert ranges(starts, starts + lengths).tolist() == wanted


TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("id", pa.string()), ("zone", pa.int32()), ("at", TIME), ("text", pa.string())])
KEYS = [(name, zone) for name in "abcd" for zone in (1, 2)]
Rows = dict[tuple[str, int], list[tuple[int, str]]]
"""By key: the times and texts of its rows."""


def table(rows: Rows) -> pa.Table:
    flat = [(*key, at, text) for key, each in rows.items() for at, text in each]
    return streams.table(flat, SCHEMA)


def rows_of(found: pa.Table) -> Rows:
    rows: Rows = {}
    columns = [found.column(name).cast(pa.int64()) if name == "at" else found.column(name) for name in SCHEMA.names]
    for name, zone, at, text in zip(*(column.to_pylist() for column in columns), strict=True):
        rows.setdefault((name, zone), []).append((at, text))
    return {key: sorted(each) for key, each in sorted(rows.items())}


def keys(wanted: list[tuple[str, int]]) -> pa.Table:
    columns = [pa.array([key[0] for key in wanted], pa.string()), pa.array([key[1] for key in wanted], pa.int32())]
    return pa.table(columns, names=["customer", "region"])


class Hand:
    """Kept rows beside the dict that they must be."""

    def __init__(self, limit: int = 0, ratio: float = 4.0, memory: int = 1 << 30) -> None:
        self.store, self.options, self.batch = MemoryStore(), SegmentOptions(limit, ratio, memory), 0
        self.kept = self._make(table({}))
        self.rows: Rows = {}

    def _make(self, memtable: pa.Table) -> SegmentedTable:
        return SegmentedTable(memtable, ["id", "zone"], "table 'rows'")

    def change(self, wanted: list[tuple[str, int]], changed: Rows) -> None:
        """Touch some keys, look at them, and give some of them other rows."""
        taken = self.kept.take([keys(wanted[:1]), keys(wanted[1:])])
        found = rows_of(taken)
        assert {key: found.get(key) for key in wanted} == {key: self.rows.get(key) for key in wanted}
        drops = np.array([(row["id"], row["zone"]) in changed for row in taken.to_pylist()], dtype=bool)
        added = table(changed)
        origins = np.concatenate([np.flatnonzero(~drops), np.full(added.num_rows, -1)])
        self.kept.put_back(concat([taken.filter(pa.array(~drops)), added]), origins)
        self.rows = dict(sorted({key: sorted(each) for key, each in {**self.rows, **changed}.items() if each}.items()))

    def expire(self, cutoff: int) -> None:
        self.kept.expire(Expired(cutoff, "at"))
        alive = {key: [row for row in each if row[0] > cutoff] for key, each in self.rows.items()}
        self.rows = {key: each for key, each in alive.items() if each}

    def flush(self) -> None:
        self.kept.flush(SegmentContext(self.store, self.options, 0, self.batch))
        self.batch += 1

    def restore(self, *, whole: bool) -> None:
        """Go on from bytes: from all rows, or from what names segments."""
        if whole:
            self.kept = self._make(codec.decode(codec.encode({}, {"rows": self.kept.read_all()}))[1]["rows"])
            return
        parts = {"rows": self.kept.memtable, SHADOWED + "rows": self.kept.shadowed()}
        header, tables = codec.decode(codec.encode(self.kept.describe(), parts))
        files = NamedFiles({"rows": header})
        assert rows_of(files.whole(tables, self.store)["rows"]) == self.rows
        for key in KEYS[:3]:
            found = rows_of(concat([*files.pieces("rows", tables, self.store, keys([key]))]))
            assert found.get(key) == self.rows.get(key)
        self.kept = self._make(tables["rows"])
        self.kept.attach(header, tables[SHADOWED + "rows"], SegmentContext(self.store, self.options))

    def check(self, *, counts: bool = True) -> None:
        assert rows_of(self.kept.read_all()) == self.rows
        live = sum(map(len, self.rows.values()))
        assert self.kept.rows == live if counts else self.kept.rows >= live


@contextlib.contextmanager
def colliding() -> Iterator[None]:
    """Let the hashes of keys with the first column alike be equal."""

    def hashes(found: pa.Table) -> Any:
        return np.array([ord(value) for value in found.column(0).to_pylist()], dtype=np.uint64)

    with mock.patch.object(kept_module, "key_hashes", hashes):
        yield


DRAWN_ROWS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["", "x", "long" * 20])), max_size=2)
CHANGES = st.tuples(
    st.just("change"),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True),
    st.lists(DRAWN_ROWS, max_size=4),
)
STEPS = st.lists(
    CHANGES
    | st.tuples(st.just("flush"))
    | st.tuples(st.just("restore"), st.booleans())
    | st.tuples(st.just("expire"), st.integers(0, 30)),
    max_size=25,
)


@given(
    STEPS,
    st.sampled_from([0, 60, 1_000]),
    st.sampled_from([0.0, 1.0, 4.0, 1e9]),
    st.sampled_from([1 << 8, 1 << 14, 1 << 30]),
    st.booleans(),
)
def test_oracle_they_are_the_rows_of_a_dict(
    steps: list[Any], limit: int, ratio: float, memory: int, collides: bool
) -> None:
    hand, expires, cutoff = Hand(limit, ratio, memory), False, 0
    with colliding() if collides else contextlib.nullcontext():
        for name, *arguments in steps:
            if name == "change":
                wanted, given_rows = arguments
                # Time only goes on: nothing comes that would have expired already.
                fresh = [[(max(at, cutoff + 1), text) for at, text in each] for each in given_rows]
                hand.change(wanted, dict(zip(wanted, fresh, strict=False)))
            elif name == "expire":
                expires, cutoff = True, max(cutoff, arguments[0])
                hand.expire(cutoff)
            elif name == "restore":
                hand.restore(whole=arguments[0])
            else:
                hand.flush()
            hand.check(counts=not expires)


def filled(count: int = 3) -> Hand:
    """Make as many segments, of keys of their own."""
    hand = Hand(ratio=0.0)
    for key in KEYS[:count]:
        hand.change([key], {key: [(5, "x")]})
        hand.flush()
    assert len(hand.kept.segments) == count
    return hand


def test_what_is_only_read_is_not_written_again() -> None:
    hand = filled()
    hand.change(KEYS[:3], {})
    assert (hand.kept.memtable.num_rows, hand.kept.rows) == (0, 3)
    hand.flush()
    assert len(hand.store.files) == 3


def test_only_the_touched_rows_are_taken() -> None:
    hand = filled()
    assert rows_of(hand.kept.take([keys([KEYS[1], ("nobody", 1)])])) == {KEYS[1]: [(5, "x")]}


def test_a_hash_whose_rows_are_all_gone_hides_older_ones_until_there_are_none() -> None:
    hand = filled()
    hand.change([KEYS[0]], {KEYS[0]: []})
    hand.flush()
    assert (hand.kept.segments[0].rows, hand.kept.segments[0].tombstones) == (0, 1)
    hand.check()
    # Merged with all others it has nothing to hide.
    hand.options = SegmentOptions(0, 1e9)
    hand.change([KEYS[1]], {KEYS[1]: []})
    hand.flush()
    assert [(each.rows, each.tombstones) for each in hand.kept.segments] == [(1, 0)]
    hand.change([KEYS[2]], {KEYS[2]: []})
    hand.flush()
    assert hand.kept.segments == ()


def test_sizes_grow_by_the_ratio_and_no_more_is_written_than_that_takes() -> None:
    hand, written = Hand(limit=2_000), 0
    for number in range(200):
        key = (f"key {number}", 1)
        hand.change([key], {key: [(1, "x" * 500)]})
        written += hand.kept.flush(SegmentContext(hand.store, hand.options, 0, number))
    sizes = [each.bytes for each in hand.kept.segments]
    assert all(older >= 3 * newer for newer, older in pairwise(sizes))
    assert len(sizes) <= 4
    assert written < 12 * sum(sizes)
    hand.check()


def test_a_large_segment_is_in_files_of_ranges_of_hashes() -> None:
    hand = Hand(ratio=1e9, memory=1 << 17)
    rows = {(f"key {number}", 1): [(5, "x" * 100)] for number in range(500)}
    hand.change(list(rows), rows)
    hand.flush()
    parts = hand.kept.segments
    assert len(parts) > 5
    assert all(part.bytes < 3 * hand.options.slice_bytes for part in parts)
    ends = [part.last for part in parts]
    assert ends[-1] is None
    assert ends[:-1] == sorted(ends[:-1])
    # A batch opens the files that may have its keys.
    with mock.patch.object(MemoryStore, "open", autospec=True, side_effect=MemoryStore.open) as store:
        hand.change([("key 7", 1)], {})
    assert store.call_count == 1
    hand.check()
    hand.restore(whole=False)
    hand.change([("key 7", 1)], {("key 7", 1): []})
    hand.flush()
    assert {part.rows for part in hand.kept.segments} != {0}
    hand.check()


def test_the_rows_of_a_key_are_found_in_files_without_those_of_others() -> None:
    hand = filled()
    header, tables = hand.kept.describe(), {"rows": hand.kept.memtable, SHADOWED + "rows": hand.kept.shadowed()}
    (found,) = NamedFiles({"rows": header}).pieces("rows", tables, hand.store, keys([KEYS[1]]))
    assert rows_of(found) == {KEYS[1]: [(5, "x")]}


class FetchingStore(MemoryStore):
    """A store that fetches the files that are opened, and keeps the last two; ``fetched`` are their names."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self._kept: list[str] = []

    def open(self, name: str) -> tuple[pa.Buffer, object]:
        if name not in self._kept:
            self.fetched.append(name)
        self._kept = [*(each for each in self._kept if each != name), name][-2:]
        return super().open(name)


def test_a_file_that_ranges_of_keys_need_is_fetched_once() -> None:
    hand = Hand(ratio=1e9, memory=1 << 17)
    hand.store = store = FetchingStore()
    rows = {(f"key {number}", 1): [(5, "x" * 100)] for number in range(500)}
    hand.change(list(rows), rows)
    hand.flush()
    ranges_taken, due = 0, table(rows)
    for within, (some,) in by_key_range([hand.kept], [(due, due.select(["id", "zone"]))], hand.options):
        taken = hand.kept.take([some.select(["id", "zone"])], within)
        assert taken.num_rows == some.num_rows > 0
        assert taken.nbytes < 2 * hand.options.slice_bytes
        hand.kept.put_back(taken, np.arange(taken.num_rows))
        ranges_taken += 1
    assert ranges_taken > 5
    assert sorted(store.fetched) == sorted(part.name for part in hand.kept.segments)
    assert len(store.fetched) > 5
    hand.check()


def test_the_largest_key_that_needs_more_than_the_memory_is_noted() -> None:
    hand = Hand(memory=1 << 14)
    rows = {(f"key {number}", 1): [(5, "x" * 100)] for number in range(50)}
    many, long = ("many", 1), ("long", 2)
    rows |= {many: [(at, "x" * 100) for at in range(20)], long: [(5, "x" * 5_000)]}
    hand.change(list(rows), rows)
    hand.flush()
    hand.change([each for each in rows if each not in (many, long)], {})
    assert hand.kept.large is None, "together they are more, and each of them is not"
    for wanted, known in ((many, many), (long, long), (many, long)):
        hand.change([("key 7", 1), wanted, ("key 8", 1)], {})
        noted = hand.kept.large
        assert noted is not None
        assert (noted.of, noted.key) == ("table 'rows'", {"id": known[0], "zone": known[1]})
        assert noted.rows == len(rows[known])
        assert hand.options.key_bytes < noted.bytes < 1.5 * sum(len(text) for _, text in rows[known])


def test_within_the_limit_nothing_is_written() -> None:
    hand = Hand(limit=100_000)
    hand.change(KEYS, {key: [(1, "x")] for key in KEYS})
    hand.flush()
    assert (hand.kept.segments, hand.store.files) == ((), {})
    assert hand.kept.take([keys(KEYS[:1])]) is hand.kept.memtable


def test_what_has_expired_is_not_given_out_and_goes_with_a_merge() -> None:
    hand = filled()
    hand.expire(5)
    assert hand.kept.take([keys(KEYS[:3])]).num_rows == 0
    hand.kept.put_back(table({}), np.empty(0, dtype=np.int64))
    assert hand.kept.rows == 0
    hand = filled()
    hand.expire(5)
    hand.options = SegmentOptions(0, 1e9)
    hand.change([KEYS[5]], {KEYS[5]: [(6, "y")]})
    hand.flush()
    assert [each.rows for each in hand.kept.segments] == [1]
    hand.check()


def test_expired_parts_of_a_list_are_not_given_out() -> None:
    element = timed_type(pa.int64(), StateTtlConfig("1 ms"))
    schema = pa.schema([("id", pa.string()), ("@value", pa.list_(element))])
    value = [{"@value": 1, "@processing_time": 10}, {"@value": 2, "@processing_time": 20}]
    kept = SegmentedTable(pa.Table.from_pylist([{"id": "a", "@value": value}], schema=schema), ["id"], "state")
    kept.flush(SegmentContext(MemoryStore(), SegmentOptions(0)))
    kept.expire(Expired(10))
    assert kept.take([pa.table({"k": ["a"]})]).column(1).to_pylist() == [[value[1]]]


def test_rows_in_segments_follow_when_the_schema_changes() -> None:
    hand = filled()

    def widened(rows: pa.Table) -> pa.Table:
        return rows.set_column(1, pa.field("zone", pa.int64()), rows.column("zone").cast(pa.int64()))

    hand.kept.convert_schema(widened)
    taken = hand.kept.take([keys([KEYS[1]])])
    assert taken.schema == hand.kept.read_all().schema == widened(table({})).schema
    assert rows_of(taken) == {KEYS[1]: [(5, "x")]}


@pytest.fixture
def unread() -> Iterator[None]:
    """Let this process have read no segment before."""
    with mock.patch.object(segments_module, "_compared", {}):
        yield


@pytest.mark.usefixtures("unread")
def test_a_segment_that_is_gone_cut_off_or_changed_is_told_by_its_name() -> None:
    hand = filled(1)
    (segment,) = hand.kept.segments
    content = hand.store.files.pop(segment.name)
    segments_module._compared.clear()

    def refused(kind: type[Exception], *said: str) -> None:
        with pytest.raises(kind) as caught:
            hand.kept.read_all()
        assert all(each in str(caught.value) for each in ("memory:/" + segment.name, *said, "restore a snapshot"))

    refused(CheckpointError, f"{segment.bytes:,} bytes", "missing")
    hand.store.files[segment.name] = content[:-8]
    refused(CodecError, f"expected {segment.bytes:,} bytes, got {segment.bytes - 8:,}", "cut off")
    hand.store.files[segment.name] = content[:300] + bytes([content[300] ^ 1]) + content[301:]
    refused(CodecError, f"the digest {segment.digest}", "changed")


@pytest.mark.usefixtures("unread")
def test_a_digest_is_compared_once() -> None:
    hand = filled(1)
    segments_module._compared.clear()
    with mock.patch.object(segments_module, "_digest", side_effect=segments_module._digest) as digest:
        for _ in range(3):
            hand.kept.read_all()
        assert digest.call_count == 1
        # A file that was written since is compared again.
        (segment,) = hand.kept.segments
        content = hand.store.files[segment.name]
        hand.store.files[segment.name] = content[:300] + bytes([content[300] ^ 1]) + content[301:]
        with pytest.raises(CodecError, match="it was changed"):
            hand.kept.read_all()


ROWS = pa.table({"id": [1, 2], "tier": ["gold", "none"]})


def kept(rows: pa.Table = ROWS) -> dict[str, SegmentedTable]:
    return {"versions": SegmentedTable(rows, ["id"], "versions")}


def test_without_segments_it_is_the_tables_alone() -> None:
    for segmenting in (None, SegmentContext(MemoryStore()), SegmentContext(MemoryStore(), SegmentOptions())):
        flushed = flush(kept(), segmenting)
        assert (flushed.described, flushed.tables, flushed.written) == ({}, {"versions": ROWS}, 0)


def test_rows_in_segments_are_found_again() -> None:
    store = MemoryStore()
    flushed = flush(kept(), SegmentContext(store, SegmentOptions(0)))
    assert flushed.tables.keys() == {"versions", SHADOWED + "versions"}
    assert flushed.tables["versions"].num_rows == 0
    assert flushed.written == sum(map(len, store.files.values())) > 0
    again = kept(flushed.tables["versions"])
    attach(again, flushed.described, flushed.tables, SegmentContext(store))
    assert again["versions"].read_all() == NamedFiles(flushed.described).whole(flushed.tables, store)["versions"]
    assert sorted(again["versions"].read_all().column("id").to_pylist()) == [1, 2]
    with pytest.raises(CheckpointError, match="no segment store is configured; run the query with its own checkpoint"):
        attach(kept(), flushed.described, flushed.tables, None)


class _Lasts(KeyedCoProcessFunction):
    """Emits for each trade the text of its customer; both inputs' watermarks are the operator's before each row."""

    def open(self, context: Any) -> None:
        self.text = context.get_state(ValueStateDescriptor("text", "string"))

    def process_element1(self, row: Any, context: Any) -> Iterator[Any]:
        service = context.timer_service()
        before = (context.timestamp() - 1,) * 2
        assert (service.current_watermark1(), service.current_watermark2()) == before
        yield row.id, self.text.value()

    def process_element2(self, row: Any, context: Any) -> Iterator[Any]:
        self.text.update(row.text)
        yield from ()


KEPT_KEYS, TEXT = 2_000, "x" * 400
SLICE = 40_000


def _operator(name: str) -> Operator:
    types = [("id", pa.int64()), ("time", pa.timestamp("us", "UTC"))]
    schemas = (pa.schema(types), pa.schema([*types, ("text", pa.string())]))
    names = ("trades", "customers")
    left, right = (InputSpec(each, schema, ("id",), "time") for each, schema in zip(names, schemas, strict=True))
    made: dict[str, Any] = {
        "as-of": AsofJoin(suffixes=("", "_right")),
        "nearest": AsofJoin(direction="nearest", tolerance="20 s", suffixes=("", "_right")),
        "temporal": TemporalJoin(suffixes=("", "_right")),
        "interval": IntervalJoin("-1 hour", "1 hour", suffixes=("", "_right")),
        "function": KeyedCoProcess(_Lasts(), pa.schema([("id", pa.int64()), ("text", pa.string())])),
    }
    return made[name].create_operator(left, right)  # type: ignore[no-any-return]


def _rows(spec: InputSpec, second: int, count: int = KEPT_KEYS) -> pa.Table:
    times = pa.array([second * 1_000_000 + 1_000 * each for each in range(count)], pa.timestamp("us", "UTC"))
    columns = [pa.array(range(count), pa.int64()), times, pa.array([TEXT] * count)]
    return pa.table(columns[: len(spec.schema)], schema=spec.schema)


def _run(operator: Operator, batches: list[tuple[pa.Table, pa.Table]]) -> Iterator[list[pa.Table]]:
    """Run batches with a budget of some slices, and yield what each emits."""
    store, options = MemoryStore(), SegmentOptions(1_000, memory_bytes=16 * SLICE)
    for number, rows in enumerate(batches):
        operator.segmenting = SegmentContext(store, options, 0, number)
        controls = [
            Control(side, {ONE_PARTITION: int(spec.millis(each).max())}, each.num_rows)
            for side, (spec, each) in enumerate(zip(operator.inputs, rows, strict=True), start=1)
            if each.num_rows
        ]
        emitted = [each.table for each in operator.process(Batch(rows, controls))]
        check_conservation(operator)
        operator.flush()
        yield emitted


@pytest.mark.parametrize(
    ("name", "of"),
    [("as-of", "input 'customers'"), ("interval", "input 'customers'"), ("function", "_Lasts: state 'text'")],
)
def test_the_report_names_a_key_that_does_not_fit(name: str, of: str) -> None:
    operator = _operator(name)
    left, right = operator.inputs
    versions = _rows(right, 10, 3)
    texts = pa.array(["short", "x" * 2 * SLICE, "short"])
    batches = [(left.schema.empty_table(), versions.set_column(2, "text", texts))]
    batches += [(_rows(left, second, 3), _rows(right, second, 1)) for second in (20, 30)]
    reports = [operator.report() for _ in _run(operator, batches)]
    assert ["large_key" in each for each in reports] == [False, False, True]
    told = reports[-1]["large_key"]
    assert 2 * SLICE < told.pop("bytes") < 2.1 * SLICE
    assert told == {"of": of, "key": "id=1", "rows": 1, "memory": 16 * SLICE}


@pytest.mark.parametrize("name", ["as-of", "nearest", "temporal", "interval", "function"])
def test_a_batch_has_about_a_slice_of_rows_in_memory_whether_they_come_from_files_or_wait(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = SegmentedTable.take

    def measured(table: SegmentedTable, *arguments: Any) -> pa.Table:
        rows = take(table, *arguments)
        taken.append(rows.nbytes)
        return rows

    monkeypatch.setattr(SegmentedTable, "take", measured)
    operator, found = _operator(name), 0
    left, right = operator.inputs
    # Versions wait for the trades, then all of them are due at once; then a trade of each of them comes.
    batches = [(left.schema.empty_table(), _rows(right, 10)), (_rows(left, 20, 1), _rows(right, 20))]
    batches += [(_rows(left, 30), _rows(right, 30, 1)), (_rows(left, 100, 1), _rows(right, 100, 1))]
    for emitted in _run(operator, batches):
        found += sum(table.num_rows for table in emitted)
        assert {text for table in emitted for text in table.column("text").to_pylist()} <= {TEXT}
    # The whole is twenty times as large.
    assert KEPT_KEYS * len(TEXT) > 19 * SLICE
    assert max(taken) < 2.5 * SLICE, taken
    assert found == (2 * (KEPT_KEYS - 1) + 2 * 3 if name == "interval" else KEPT_KEYS + 1)

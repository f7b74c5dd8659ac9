"""The temporal join is a function of the rows alone, and agrees with every oracle, deletes included."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.joins import TemporalJoin
from tests.engine.joins.tombstones import deletes, deleting
from tests.oracles import brute_force, result_by_key, rows_in_order, spelled, temporal_join, total_order
from tests.streams import AT, Streams, deliveries, run, static, streams

JOINS = st.builds(
    TemporalJoin,
    how=st.sampled_from(["left", "inner"]),
    deletes=st.sampled_from([None, "closed", "closed"]),
    null_payload_deletes=st.booleans(),
    retention=st.sampled_from([None, "0 ms", "1 us", "4 ms", "20 ms"]),
    suffixes=st.just(("", "_customer")),
)


def deleted_by(join: TemporalJoin, streams: Streams) -> Any:
    """Say by hand which rows are tombstones: the zone is payload unless it is key, the offset unless it is sequence."""
    spec = streams.inputs[1]
    only_tier = len(spec.key) == 2 and bool(spec.sequence)

    def deleted(row: tuple[Any, ...]) -> bool:
        marked = join.deletes is not None and deletes(row)
        return marked or (join.null_payload_deletes and only_tier and row[-1] is None)

    return deleted


def create(join: TemporalJoin) -> Any:
    return join.create_operator if join.deletes is None else deleting(join)


def expected(join: TemporalJoin, streams: Streams, matches: list[int | None]) -> Any:
    pairs = [(left, right) for left, right in enumerate(matches) if join.how == "left" or right is not None]
    return spelled(rows_in_order(streams, pairs, lambda left, _: streams.rows[0][left][AT] // 1_000))


def scanned(join: TemporalJoin, streams: Streams) -> Any:
    deleted = deleted_by(join, streams)
    matches = brute_force(streams, join.describe()["retention_us"], exact=True, deleted=deleted)
    return expected(
        join,
        streams,
        [None if each is None or deleted(streams.rows[1][each]) else each for each in matches],
    )


@given(st.data(), streams(), JOINS)
def test_oracle_however_the_rows_arrive_each_key_gives_the_rows_of_a_scan_over_all_pairs(
    data: st.DataObject, streams: Streams, join: TemporalJoin
) -> None:
    outcome = run(create(join), streams, data.draw(deliveries(streams)))
    assert result_by_key(streams, outcome.rows()) == scanned(join, streams)
    assert not outcome.rejected


@given(streams(), JOINS)
def test_oracle_a_static_join_is_that_of_duckdb(streams: Streams, join: TemporalJoin) -> None:
    matches = temporal_join(streams, join.describe()["retention_us"], deleted_by(join, streams))
    outcome = run(create(join), streams, static(streams))
    assert result_by_key(streams, outcome.rows()) == expected(join, streams, matches)


@given(st.data(), streams(), JOINS)
def test_a_pause_keeps_no_more_than_the_versions_in_force(
    data: st.DataObject, streams: Streams, join: TemporalJoin
) -> None:
    """Of each key the newest version that the watermark has passed, if no tombstone, and if a trade may match it."""
    delivery = data.draw(deliveries(streams))
    outcome = run(create(join), streams, delivery, drain=False)
    deleted, watermark = deleted_by(join, streams), streams.watermark()
    retention = join.describe()["retention_us"]
    newest: dict[Any, Any] = {}
    for row in sorted(streams.rows[1], key=lambda row: total_order(streams, 1, row, deleted)):
        if row[AT] // 1_000 <= watermark:
            newest[streams.key(1, row)] = row
    kept = [
        row
        for row in newest.values()
        if (retention is None and not deleted(row))
        or (retention is not None and (row[AT] + retention) // 1_000 > watermark)
    ]
    # A key group that no row reaches in a batch forgets by age all the same.
    assert outcome.kept["versions"] == len(kept)
    # Those that have expired in a segment are counted until a merge leaves them out (``segmented_table``).
    counted = outcome.total("versions_in_force")
    assert counted == len(kept) or (delivery.segment_bytes is not None and counted > len(kept))

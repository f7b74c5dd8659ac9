"""Whatever is drawn: each row arrives once, none is late, and no watermark passes the last event."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.time.watermarks import NONE
from cojoin.testing.determinism.deliveries import ASPECTS, Delivery, RowTimes, draw_delivery

TIMES = st.lists(st.one_of(st.none(), st.integers(-5, 30)), min_size=1, max_size=20)


@given(st.data(), TIMES, st.integers(0, 10_000), st.sets(st.sampled_from(ASPECTS)))
def test_no_row_is_late_and_each_arrives_once(
    data: st.DataObject, times: list[int | None], seed: int, aspects: set
) -> None:  # type: ignore[type-arg]
    left = data.draw(st.integers(0, len(times)))
    row_times = RowTimes(times, left)
    delivery = draw_delivery(Random(seed), range(len(times)), row_times, aspects)
    assert sorted(delivery.rows) == list(range(len(times)))
    last = max((time for time in times if time is not None), default=NONE)
    reached = [NONE, NONE]
    for batch in delivery.batches:
        for row in batch.rows:
            time = times[row]
            assert time is None or time > reached[row >= left]
        reached = [max(old, new) for old, new in zip(reached, batch.watermarks, strict=True)]
        assert max(reached) <= last
    for aspect in set(ASPECTS) - aspects:
        assert not delivery.varies(aspect, row_times)
    assert Delivery.from_json(delivery.to_json()) == delivery


def test_some_rows_of_a_delivery_keep_their_order_and_the_number_of_key_groups_changes_only_in_a_restart() -> None:
    times = RowTimes(list(range(12)), 6)
    for seed in range(200):
        delivery = draw_delivery(Random(seed), range(12), times, ASPECTS)
        some = delivery.of_rows({1, 5, 8})
        assert some.rows == tuple(row for row in delivery.rows if row in {1, 5, 8})
        for before, batch in zip(delivery.batches, delivery.batches[1:], strict=False):
            assert batch.restarts or batch.key_groups == before.key_groups
        merged = delivery if len(delivery.batches) == 1 else delivery.merged(0)
        assert merged.rows == delivery.rows

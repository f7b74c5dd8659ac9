"""Two versions of joins and functions in memory, against both runs compared by Python's counters."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cojoin as cj
from tests.embedded.in_memory import connect
from tests.properties import test_asof, test_interval
from tests.streams import streams

if TYPE_CHECKING:
    from cojoin.engine.joins import AsofJoin
    from tests.streams import Streams

BY = {"key": "customer_id", "event_time": "event_time"}


def at(*times: str) -> pd.DatetimeIndex:
    return pd.to_datetime([f"2026-01-15 {time}" for time in times], utc=True)


def trades() -> pd.DataFrame:
    times = at("09:00", "10:00", "11:30", "11:30")
    return pd.DataFrame({"trade_id": [1, 2, 3, 4], "customer_id": [7, 7, 7, 8], "event_time": times})


def customers() -> pd.DataFrame:
    times = at("10:00", "10:00", "11:00")
    tiers = ["silver", "bronze", "gold"]
    return pd.DataFrame({"customer_id": [7] * 3, "event_time": times, "tier": tiers, "seq": [1, 2, 3]})


def connected(left: Any = None, right: Any = None, **of_customers: Any) -> cj.ConnectedInputs:
    left, right = trades() if left is None else left, customers() if right is None else right
    return cj.connect(cj.Input(left, **BY, name="trades"), cj.Input(right, **BY, name="customers", **of_customers))


class Scores(cj.KeyedCoProcessFunction):
    def __init__(self, factor: int, limit: int = 99) -> None:
        self.factor, self.limit = factor, limit

    def process_element1(self, row: Any, ctx: Any) -> Any:
        if row.trade_id >= self.limit:
            msg = "no more"
            raise ValueError(msg)
        yield {"customer_id": row.customer_id, "trade_id": row.trade_id, "score": {"x": row.trade_id % 2 * self.factor}}
        yield BESIDE, {"note": f"{row.trade_id * self.factor}"}

    def process_element2(self, row: Any, ctx: Any) -> Any:
        return ()


class Quiet(cj.KeyedCoProcessFunction):
    """Yields nothing."""


SCORES = "customer_id long, trade_id long, score map<string, long>"
BESIDE = cj.OutputTag("beside", "note string")


def scores(pair: cj.ConnectedInputs, *arguments: int) -> cj.Joined:
    return pair.process(Scores(*arguments), SCORES, side_outputs=BESIDE)


def plain(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(map(repr, row.values())) for row in table.to_pylist()]


def multiset_law(a: cj.Joined, b: cj.Joined, found: Any, identity: int) -> None:
    """Assert that the differing rows are those of both runs, which were made apart."""
    one, other = Counter(plain(a.to_arrow())), Counter(plain(b.to_arrow()))
    changed = found.changed.to_pylist()
    names = a.plan.output.names
    assert tuple(found.outputs["output"].identity)[:identity] == tuple(names[:identity])
    sides = []
    for which in "ab":
        rows = [tuple(repr(row.get(name, row.get(f"{name}_{which}"))) for name in names) for row in changed]
        sides.append(Counter(rows))
    assert Counter(plain(found.only_in_a)) + sides[0] == one - other
    assert Counter(plain(found.only_in_b)) + sides[1] == other - one
    counts = found.counts
    assert (counts.a, counts.b) == (one.total(), other.total())
    assert counts.equal == (one & other).total()
    assert counts.changed == len(changed)
    assert Counter(name for row in changed for name in row["differs"]) == Counter(counts.changed_by_column)
    assert found.equal == (one == other)
    assert str(found)


@given(streams(), test_asof.DIRECTED | test_asof.JOINS, test_asof.DIRECTED | test_asof.JOINS)
def test_versions_of_asof_joins(streams: Streams, one: AsofJoin, other: AsofJoin) -> None:
    pair = connect(streams, (lambda rows: rows,) * 2)
    a, b = (
        pair.asof_join(
            join.how,
            direction=join.direction,
            tolerance=join.tolerance,
            allow_exact_matches=join.allow_exact_matches,
            suffixes=one.suffixes,
        )
        for join in (one, other)
    )
    multiset_law(a, b, cj.diff(a, b), len(a.plan.left.schema))


@given(streams(), test_interval.joins(), st.integers(0, 3))
def test_versions_of_interval_joins(streams: Streams, join: Any, more: int) -> None:
    pair = connect(streams, (lambda rows: rows,) * 2)
    lower, upper = join.describe()["lower_us"], join.describe()["upper_us"]
    bounds = [(pd.Timedelta(lower, "us"), pd.Timedelta(upper + wider, "us")) for wider in (0, more * 1000)]
    a, b = (
        pair.interval_join(*map(pd.Timedelta.to_pytimedelta, each), join.how, suffixes=join.suffixes) for each in bounds
    )
    multiset_law(a, b, cj.diff(a, b), len(a.plan.left.schema))


def test_an_unchanged_version_has_no_difference() -> None:
    pair = connected()
    for joined in (pair.asof_join(), pair.interval_join("-1 hour", "1 hour"), scores(pair, 1)):
        found = cj.diff(joined, joined)
        assert found.equal
        assert found.examples == ()
        assert repr(found).startswith("No difference: both versions have the same ")
    assert cj.diff(connected().asof_join(), connected().asof_join()).equal


def test_a_changed_tie_rule_is_explained() -> None:
    found = cj.diff(connected().asof_join(), connected(sequence="seq").asof_join())
    assert found.changed.to_pylist() == [
        {
            "trade_id": 2,
            "customer_id": 7,
            "event_time": at("10:00")[0],
            "customers_event_time_a": at("10:00")[0],
            "customers_event_time_b": at("10:00")[0],
            "tier_a": "silver",
            "tier_b": "bronze",
            "seq_a": 1,
            "seq_b": 2,
            "differs": ["tier", "seq"],
        }
    ]
    assert found.settings == {"right input's sequence": ("none", "seq")}
    (example,) = found.examples
    assert (example.a["tier"], example.b["tier"], example.columns) == ("silver", "bronze", ("tier", "seq"))  # type: ignore[index]
    by = "the row's content in a, of seq, the row's content in b"
    assert example.explanation.splitlines() == [
        "a matches it with the row of 'customers' at 2026-01-15 10:00:00, at the same time.",
        "b matches it with the row of 'customers' at 2026-01-15 10:00:00, at the same time.",
        "'customers' has rows of customer_id=7:",
        "  2026-01-15 10:00:00  tier=silver, seq=1  <- a",
        "  2026-01-15 10:00:00  tier=bronze, seq=2  <- b",
        "  2026-01-15 11:00:00  tier=gold, seq=3",
        f"2 of them have the time 2026-01-15 10:00:00; the last one in the order of {by} counts.",
    ]
    html = found._repr_html_()
    assert "<details open><summary>Example 1: output, changed: trade_id=2" in html
    assert "customers&#x27; has rows" in html


def test_rows_that_only_one_version_has() -> None:
    pair = connected()
    found = cj.diff(pair.asof_join("inner"), pair.asof_join())
    assert found.only_in_b.column("trade_id").to_pylist() == [1, 4]
    assert found.only_in_b.schema.names == pair.asof_join().plan.output.names
    assert found.only_in_a.num_rows == found.changed.num_rows == 0
    first = found.examples[0]
    assert (first.a, first.b["trade_id"]) == (None, 1)  # type: ignore[index]
    assert "a has no such row.\nb matches no row of 'customers' with it." in first.explanation


def test_functions_are_compared_as_whole_rows_or_by_keys() -> None:
    pair = connected()
    a, b = scores(pair, 1), scores(pair, 2)
    whole = cj.diff(a, b)
    assert (whole.counts.changed, whole.counts.only_in_a, whole.counts.only_in_b) == (0, 2, 2)
    assert whole.outputs["beside"].counts.only_in_b == 2
    assert "compared as a whole" in repr(whole)
    keyed = cj.diff(a, b, keys=["trade_id"])
    assert (keyed.counts.changed, keyed.counts.changed_by_column) == (2, {"score": 2})
    assert keyed.changed.column_names == [
        *("trade_id", "customer_id_a", "customer_id_b", "score_a", "score_b", "differs"),
    ]
    assert "  customer_id=7, trade_id=3, score={'x': 2}  <- this one" in keyed.examples[1].explanation
    assert list(cj.diff(a, b, output=BESIDE).outputs) == ["beside"]
    assert cj.diff(a, b, output="rejected").equal


class Extra(cj.KeyedCoProcessFunction):
    """Emits a number of further rows before each row, and that number with the row."""

    def __init__(self, number: int) -> None:
        self.number = number

    def process_element1(self, row: Any, ctx: Any) -> Any:
        for at in range(self.number):
            yield {"customer_id": row.customer_id, "trade_id": 100 * row.trade_id + at, "number": 0}
        yield {"customer_id": row.customer_id, "trade_id": row.trade_id, "number": self.number}

    def process_element2(self, row: Any, ctx: Any) -> Any:
        return ()


@pytest.mark.parametrize(("one", "other"), [(0, 9), (9, 0)])
def test_a_changed_row_is_shown_in_both_versions_however_many_rows_one_has_before_it(one: int, other: int) -> None:
    columns = "customer_id long, trade_id long, number long"
    a, b = (connected().process(Extra(number), columns) for number in (one, other))
    found = cj.diff(a, b, keys=["trade_id"], examples=3)
    changed = [each.explanation for each in found.examples if each.a is not None and each.b is not None]
    assert len(changed) == 3
    for explanation in changed:
        assert f"number={one}  <- this one" in explanation
        assert f"number={other}  <- this one" in explanation


def test_keys_that_are_not_utf8_are_explained() -> None:
    keys = pa.array([b"\xffA"], pa.binary()).view(pa.string())
    times = pa.array(at("10:00"), pa.timestamp("us", "UTC"))
    left = pa.table({"trade_id": [1], "customer_id": keys, "event_time": times})
    pair = connected(left, pa.table({"customer_id": keys, "event_time": times, "tier": keys}))
    (example,) = cj.diff(pair.asof_join(), pair.asof_join(allow_exact_matches=False)).examples
    assert (
        "'customers' has rows of customer_id=\\xffA:\n  2026-01-15 10:00:00  tier=\\xffA  <- a" in example.explanation
    )


def test_rejected_rows_are_compared() -> None:
    nowhere = trades().assign(customer_id=pd.array([7, None, 7, 8], "Int64"))
    pair = connected(nowhere)
    found = cj.diff(pair.asof_join(), pair.asof_join("inner"))
    assert (found.outputs["rejected"].counts.equal, found.outputs["rejected"].equal) == (1, True)


def test_columns_that_differ_are_told_and_can_be_left_out() -> None:
    pair = connected()
    a, b = pair.asof_join(), pair.temporal_join(deletes=None)
    assert cj.diff(a, b).equal
    other = pair.process(Scores(1), "customer_id long, trade_id int, score map<string, long>", side_outputs=BESIDE)
    with pytest.raises(cj.SchemaError, match=r"'trade_id' is bigint in a and int in b; .*columns=\['customer_id', 'sc"):
        cj.diff(scores(pair, 1), other)
    found = cj.diff(scores(pair, 1), other, columns=["score"])
    assert found.equal
    assert found.only_in_a.column_names == ["score"]
    assert cj.diff(scores(pair, 1), scores(pair, 2), columns=["trade_id"], output="output").equal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, r"'score' is .*; compare those that both have: columns=\['customer_id', 'trade_id'\]$"),
        (
            {"columns": ["score", "trade_id"]},
            r"cast 'score' in one version, or compare others, such as columns=\['trade_id'\]$",
        ),
        ({"columns": ["score"]}, r"cast 'score' in one .* such as columns=\['customer_id', 'trade_id'\]$"),
        ({"keys": ["score"]}, r"cast 'score' in one version, or identify rows by other columns, with keys=\[...\]$"),
        (
            {"columns": ["trade_id"]},
            r"side output 'beside' .*; compare it alone, by those that both have: output='beside', columns=\['note'\]",
        ),
    ],
)
def test_the_cure_for_columns_that_differ_fits_what_was_given(arguments: Any, said: str) -> None:
    pair = connected()
    beside = cj.OutputTag("beside", "note string, more long") if arguments.get("columns") == ["trade_id"] else BESIDE
    other = pair.process(Scores(1), SCORES.replace("map<string, long>", "map<string, int>"), side_outputs=beside)
    with pytest.raises(cj.SchemaError, match=said):
        cj.diff(scores(pair, 1), other, **arguments)


def test_the_cure_for_a_side_output_whose_columns_differ_is_one() -> None:
    pair = connected()
    beside = cj.OutputTag("beside", "note string, more long")
    other = pair.process(Quiet(), SCORES, side_outputs=beside)
    assert cj.diff(scores(pair, 1), other, output="beside", columns=["note"]).counts.only_in_a == 4  # type: ignore[arg-type]


def test_arguments_of_functions_that_differ_are_told() -> None:
    pair = connected()
    found = cj.diff(scores(pair, 1), scores(pair, 2))
    assert found.settings == {"function's factor": ("1", "2")}
    assert "function's factor: 1 in a, 2 in b" in repr(found)


def test_the_message_says_which_version_failed() -> None:
    pair = connected()
    with pytest.raises(cj.FunctionError, match=r"^version b: Scores.process_element1 raised ValueError: no more"):
        cj.diff(scores(pair, 1), scores(pair, 1, 3))


MISTAKES = [
    (lambda: (connected().asof_join(), 5), "diff: b: expected a join or function, .* got int"),
    (lambda: (connected().asof_join(), connected(trades().iloc[:3]).asof_join()), "4 rows in a and 3 in b"),
    (
        lambda: (connected().asof_join(), connected(right=customers().assign(seq=[1, 2, 4])).asof_join()),
        "input 'customers' has other rows",
    ),
    (
        lambda: (connected().asof_join(), connected(trades().rename(columns={"trade_id": "id"})).asof_join()),
        "'trade_id' is only in a, 'id' is only in b",
    ),
    (lambda: (connected().asof_join(), scores(connected(), 1)), "side output 'beside' is only in b"),
]


@pytest.mark.parametrize(("make", "said"), MISTAKES)
def test_mistakes(make: Any, said: str) -> None:
    with pytest.raises(cj.ConfigurationError, match=said):
        cj.diff(*make())


def test_other_keys_are_refused() -> None:
    other = cj.connect(
        cj.Input(trades(), key="trade_id", event_time="event_time", name="trades"),
        cj.Input(customers(), key="seq", event_time="event_time", name="customers"),
    )
    with pytest.raises(cj.SchemaError, match="has the key customer_id in a and trade_id in b"):
        cj.diff(connected().asof_join(suffixes=("", "_c")), other.asof_join(suffixes=("", "_c")))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keys": ["trade"]}, "keys: the main output of a has no column 'trade'; did you mean 'trade_id'"),
        ({"columns": []}, "columns: expected one or more different columns"),
        ({"keys": ["tier", "tier"]}, "keys: expected one or more different columns"),
        ({"examples": -1}, "examples: expected a whole number of 0 or more, got -1"),
        ({"output": "side"}, "output: expected 'output' or 'rejected', got 'side'"),
    ],
)
def test_mistaken_arguments(arguments: Any, said: str) -> None:
    joined = connected().asof_join()
    with pytest.raises(cj.ConfigurationError, match=said):
        cj.diff(joined, joined, **arguments)

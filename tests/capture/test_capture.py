"""What ``capture`` writes, from runs and from steps, for joins and functions, and what it refuses."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import cojoin as cj
from cojoin.capture.key_choice import Coverage
from cojoin.testing import CapturedKeys, capture
from tests.capture import tiers
from tests.capture.functions import ByClass, Counted, Scaled, Secretive, Walled, make_scaled
from tests.capture.test_mutants import load

if TYPE_CHECKING:
    from pathlib import Path

START = datetime(2026, 1, 15, 9, tzinfo=timezone.utc)
SETTINGS: Any = {"key": "customer", "event_time": "at"}


def at(*seconds: float) -> pa.Array:
    return pa.array([START + timedelta(seconds=each) for each in seconds], pa.timestamp("us", "UTC"))


TRADES = pa.table(
    {
        "customer": ["ada", "bob", "ada", "bob", "cy", "ada"],
        "at": at(10, 11, 20, 30.000001, 40, 5),
        "trade": [1, 2, 3, 4, 5, 6],
        "price": pa.array(
            [Decimal("1.50"), None, Decimal("2.00"), Decimal("3.10"), Decimal(4), Decimal(5)], pa.decimal128(9, 2)
        ),
        "raw": [b"\x00\xff", b"", None, b"x", b"y", b"z"],
        "tags": pa.array(
            [[("a", 1)], None, [], [("b", 2), ("a", None)], [("c", 3)], []], pa.map_(pa.string(), pa.int32())
        ),
        "weight": pa.array([0.1, float("nan"), -0.0, 1e300, None, float("inf")], pa.float64()),
    }
)
TIERS = pa.table({"customer": ["ada", "bob", "ada"], "at": at(1, 2, 20), "tier": ["silver", "gold", "gold"]})


def pair(trades: pa.Table = TRADES, tiers: pa.Table = TIERS) -> cj.ConnectedInputs:
    return cj.connect(
        cj.Input(trades, **SETTINGS, name="trades"), cj.Input(tiers, **SETTINGS, name="tiers", late="reject")
    )


def function(made: Any) -> cj.Joined:
    return pair().process(made, "trade long, tier string, price decimal(20,2)")


def run(test: Path, name: str = "tests_by_capture") -> Any:
    """Run all keys of a captured test in this process, and return its module."""
    module = load(name, test)
    del sys.modules[name]
    for key in module.CAPTURED.keys:
        module.test_captured_key(key)
    return module


JOINS = {
    "asof": lambda inputs: inputs.asof_join(direction="nearest", tolerance=timedelta(seconds=15)),
    "asof_inner": lambda inputs: inputs.asof_join("inner", allow_exact_matches=False),
    "temporal": lambda inputs: inputs.temporal_join(retention="30 seconds"),
    "interval": lambda inputs: inputs.interval_join(
        timedelta(seconds=-10), "0 seconds", how="full", suffixes=("", "_2")
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_a_join_keeps_its_settings_and_all_types(name: str, tmp_path: Path) -> None:
    joined = JOINS[name](pair())
    captured = capture(joined, tmp_path / "test_join.py", keys=["ada", "bob", "cy"])
    module = run(captured.path)
    harness = module.harness()
    assert harness._operation.describe() == joined.plan.operation.describe()
    module.CAPTURED.check("bob", harness)
    by_key = {"ada": 0, "bob": 0, "cy": 0} | {
        key: joined.to_arrow().column("customer").to_pylist().count(key) for key in ("ada", "bob", "cy")
    }
    assert {key: len(each.expected.output) for key, each in module.CAPTURED.by_key.items()} == by_key


def test_late_rows_are_late_again(tmp_path: Path) -> None:
    joined = pair().asof_join()
    steps = list(joined.steps(batches=[(3, 3), (3, 0)]))
    captured = capture(steps, tmp_path / "test_late.py", keys=["ada", "bob"])
    assert "late" in captured.keys["ada"]
    assert "late" not in captured.keys["bob"]
    module = run(captured.path)
    rejected = module.CAPTURED.by_key["ada"].expected.rejected
    assert [(each.reason, each.row["trade"]) for each in rejected] == [("late", 6)]
    real = [row for step in steps for row in step.rejected.to_pylist()]
    assert [each["watermark"] for each in real] == [each.watermark for each in rejected]


def test_a_failure_shows_the_rows_with_key_and_time(tmp_path: Path) -> None:
    capture(function(Scaled()), tmp_path / "test_scaled.py", keys=["ada"])
    path = tmp_path / "test_scaled.json"
    found = json.loads(path.read_text("utf-8"))
    row = found["keys"]["ada"]["output"][1][1]
    row["tier"] = "bronze"
    path.write_text(json.dumps(found), "utf-8")
    with pytest.raises(AssertionError) as failed:
        run(tmp_path / "test_scaled.py")
    told = str(failed.value)
    assert told.startswith("key ada (match, ")
    assert "- 2026-01-15T09:00:10.000Z | 1     | bronze" in told
    assert "+ 2026-01-15T09:00:10.000Z | 1     | silver" in told


def test_arguments_and_makers_are_written(tmp_path: Path) -> None:
    capture(function(Scaled(by=3)), tmp_path / "test_scaled.py", keys=["ada"])
    assert "Scaled(by=3)," in (tmp_path / "test_scaled.py").read_text("utf-8")
    run(tmp_path / "test_scaled.py")
    for maker in (make_scaled, "tests.capture.functions:make_scaled"):
        capture(function(Scaled(by=7)), tmp_path / "test_made.py", keys=["ada"], function=maker, overwrite=True)
        assert "make_scaled()," in (tmp_path / "test_made.py").read_text("utf-8")
        run(tmp_path / "test_made.py")
    capture(function(Walled.Inner()), tmp_path / "test_inner.py", keys=["bob"])
    assert "Walled.Inner()," in (tmp_path / "test_inner.py").read_text("utf-8")
    run(tmp_path / "test_inner.py")


def test_columns_are_dropped_and_values_are_masked(tmp_path: Path) -> None:
    captured = capture(
        function(Scaled()),
        tmp_path / "test_masked.py",
        keys=["bob", "ada"],
        columns={"trades": ["trade", "price"]},
        mask=["customer", "trade"],
    )
    assert list(captured.keys) == ["customer-2", "customer-1"]
    text = (tmp_path / "test_masked.json").read_text("utf-8")
    assert not [word for word in ("ada", "bob", "raw", "weight") if word in text]
    assert "pseudonyms: customer, trade." in captured.path.read_text("utf-8")
    run(captured.path)
    again = capture(
        function(Scaled()),
        tmp_path / "test_again.py",
        keys=["bob", "ada"],
        columns={"trades": ["trade", "price"]},
        mask=["customer", "trade"],
    )
    assert again.rows_path.read_text("utf-8") == text


def test_a_span_takes_the_rows_within(tmp_path: Path) -> None:
    span = (START + timedelta(seconds=10), START + timedelta(seconds=20))
    captured = capture(pair().asof_join(), tmp_path / "test_span.py", keys=["ada"], span=span)
    assert captured.sizes == {"ada": 1}
    run(captured.path)


def test_several_key_columns(tmp_path: Path) -> None:
    trades = TRADES.append_column("shop", pa.array([1, 1, 2, 2, 1, 1]))
    tiers = TIERS.append_column("shop", pa.array([1, 2, 2]))
    inputs = [
        cj.Input(each, key=["customer", "shop"], event_time="at", name=name)
        for each, name in ((trades, "trades"), (tiers, "tiers"))
    ]
    captured = capture(cj.connect(*inputs).asof_join(), tmp_path / "test_two.py", keys=[("ada", 2), ("bob", 2)])
    assert list(captured.keys) == ['["ada", 2]', '["bob", 2]']
    run(captured.path)


def test_the_choice_is_deterministic_and_says_what_is_missing(tmp_path: Path) -> None:
    joined = pair().asof_join()
    one = capture(joined, tmp_path / "test_one.py")
    other = capture(joined, tmp_path / "test_other.py")
    assert dict(one.keys) == dict(other.keys)
    assert set(one.missing) == {"late", "rejected"}
    assert "no captured key covers: late, rejected" in repr(one)
    assert set(one.keys["ada"]) >= {"match", "tie", "versions", "null"}
    assert one.keys["cy"] == ("no_match", "null")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"keys": ["eve"]}, "have no rows of key 'eve'; they have 3 keys, such as 'ada', 'bob', 'cy'"),
        ({"keys": ["adda", "eve"]}, "did you mean 'ada'"),
        ({"keys": "ada"}, r"expected a list of keys, got 'ada'; write keys=\['ada'\]"),
        ({"keys": [7]}, "key column 'customer': expected string, got 7"),
        ({"keys": []}, "expected one or more keys"),
        ({"most": 0}, "most: expected a whole number above zero"),
        ({"covers": ["lates"]}, "did you mean 'late'"),
        ({"span": (START, START)}, "expected a start before the end"),
        ({"span": (START + timedelta(days=1), START + timedelta(days=2))}, "have no row from 2026-01-16"),
        ({"columns": {"trade": []}}, "the join has no input 'trade'; did you mean 'trades'"),
        ({"columns": {"trades": ["prise"]}}, "did you mean 'price'"),
        (
            {"columns": {"trades": None}},
            "expected lists of the columns to keep by input, .* an input that is not named",
        ),
        ({"columns": {"trades": [None]}}, "expected lists of the columns to keep by input, such as {'trades':"),
        ({"columns": {"trades": 5}}, "expected lists of the columns to keep"),
        ({"columns": {"trades": "price"}}, "expected lists of the columns to keep"),
        ({"mask": [["tier"]]}, r"mask: expected a list of columns, got \[\['tier'\]\]"),
        ({"mask": ["tire"]}, "neither input has a column 'tire'"),
        ({"mask": ["price"]}, "only string, binary and integer columns"),
        ({"mask": ["at"]}, "by which its rows are sorted"),
        ({"mask": "tier"}, "expected a list of columns"),
        ({"function": "jobs:Tiers"}, "a join, which needs none"),
        ({"joined": 1}, "only a checkpoint needs it"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(cj.ConfigurationError, match=told):
        capture(pair().asof_join(), tmp_path / "test_bad.py", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_bad_places_are_refused(tmp_path: Path) -> None:
    joined = pair().asof_join()
    for path, told in (
        ("bad.py", "pytest collects"),
        ("test_bad.txt", "pytest collects"),
        ("no/test_a.py", "does not exist; make it"),
        ("test_a\0.py", r"^path: '.*test_a.x00.py' can't be a file: embedded null byte; choose another"),
        ("no\0/test_a.py", "can't be a file"),
        (
            f"test_{'a' * 300}.py",
            r"^path: '.*\.\.\. \([\d,]+ characters\)' can't be a file: File name too long; choose",
        ),
        (f"test_{'a' * 245}.py", "File name too long"),
        (f"{'b' * 300}/test_a.py", "File name too long"),
    ):
        with pytest.raises(cj.ConfigurationError, match=told):
            capture(joined, tmp_path / path)
    (tmp_path / "test_there.json").write_text("{}")
    with pytest.raises(cj.ConfigurationError, match="already exists"):
        capture(joined, tmp_path / "test_there.py")
    capture(joined, tmp_path / "test_there.py", overwrite=True)
    run(tmp_path / "test_there.py")


def test_functions_that_a_test_can_not_make_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Scaled):
        pass

    path = tmp_path / "test_bad.py"
    for made, told in (
        (Local(), "defined inside a function"),
        (Secretive("hush"), "'token' may be secret"),
        (Scaled(by=Decimal(3)), "which can't be written"),
    ):
        with pytest.raises(cj.ConfigurationError, match=told):
            capture(function(made), path, keys=["ada"])
    with pytest.raises(cj.ConfigurationError, match="can't be imported"):
        capture(function(Scaled()), path, keys=["ada"], function="tests.capture.functions:none")
    monkeypatch.setattr(Scaled, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(cj.ConfigurationError, match="in a notebook or script"):
        capture(function(Scaled()), path, keys=["ada"])
    assert list(tmp_path.iterdir()) == []


def test_functions_that_depend_on_other_keys_are_refused(tmp_path: Path) -> None:
    ByClass.seen = 0
    for made in (Counted(), ByClass()):
        with pytest.raises(cj.ConfigurationError, match="the output of this key alone differs"):
            capture(function(made), tmp_path / "test_bad.py", keys=["cy"])


def test_a_dropped_column_that_the_function_reads_is_told(tmp_path: Path) -> None:
    with pytest.raises(cj.FunctionError, match="if the function reads one of them, keep it"):
        capture(function(Scaled()), tmp_path / "test_bad.py", keys=["ada"], columns={"trades": []})


def test_steps_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    steps = list(pair().asof_join().steps(batches=3))
    with pytest.raises(
        cj.ConfigurationError, match="all steps of one run from the first on, got those of batches 1, 2"
    ):
        capture(steps[1:], tmp_path / "test_bad.py")
    with pytest.raises(cj.ConfigurationError, match="expected a join or function"):
        capture(7, tmp_path / "test_bad.py")  # type: ignore[arg-type]


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    captured = capture(pair().asof_join(), tmp_path / "test_join.py", keys=["ada"])
    text = captured.rows_path.read_text("utf-8")
    for damage, told in (
        (text[:-40], "expected what cojoin.testing.capture writes"),
        (text.replace('"captured": 1', '"captured": 9'), "expected format 1"),
        (text.replace('"covers"', '"cover": 1, "covers"'), "a key has the entry 'cover'; expected batches, covers, "),
        (text.replace('"rows of tiers": [', '"rows of tiers": [5, '), "expected rows as JSON objects, got 5"),
        (text.replace('"output": [', '"output": [[null, 7], '), "expected rows as JSON objects, got 7"),
        (text.replace('"output": [', '"output": [[null, 7], ').replace("7]", "{}, 8]"), "expected what cojoin"),
        (text.replace("rows of trades", "rows of traders"), "expected the rows of 'trades' and of 'tiers'"),
    ):
        captured.rows_path.write_text(damage, "utf-8")
        with pytest.raises(cj.ConfigurationError, match=f"test_join.json: {told}|{told}"):
            CapturedKeys.read(captured.path)
    captured.rows_path.write_text(text.replace('"trade": 1', '"trade": "1"'), "utf-8")
    with pytest.raises(cj.SchemaError, match="column 'trade': '1' is not of the type int64"):
        run(captured.path)
    captured.rows_path.unlink()
    with pytest.raises(cj.ConfigurationError, match="can't be read"):
        CapturedKeys.read(captured.path)


def test_all_cases_have_a_key_before_one_has_a_second() -> None:
    of_a, of_b = (np.isin(np.arange(7), codes) for codes in ([0, 1, 2], [3, 4, 5, 6]))
    coverage = Coverage([], [], np.arange(7), {"late": of_a, "match": of_b})
    assert coverage.choose(["match", "late"], 3) == [0, 3, 1]
    assert coverage.choose(["match", "late"], 2) == [0, 3]
    assert coverage.choose(["match", "late"], 10) == [0, 3, 1, 4, 2, 5]


def test_a_mask_of_nothing_is_allowed_for_a_checkpoint(tmp_path: Path) -> None:
    joined = pair().asof_join()
    with pytest.raises(cj.ConfigurationError, match="the keys of a checkpoint can't be chosen by their cases"):
        capture(str(tmp_path), tmp_path / "test_a.py", joined=joined, mask=[])
    with pytest.raises(cj.ConfigurationError, match="span, columns, mask: a checkpoint's state holds whole rows"):
        capture(str(tmp_path), tmp_path / "test_a.py", joined=joined, mask=["tier"])


def test_a_static_table_without_event_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = pair().asof_join()
    plan = replace(joined.plan, right=replace(joined.plan.right, static=True, event_time=None))
    monkeypatch.setattr("cojoin.capture.capture.opened", lambda source, _: (source, plan))
    with pytest.raises(cj.ConfigurationError, match="input 'tiers' is a static table without event time"):
        capture(joined, tmp_path / "test_a.py")


def test_the_function_that_ran_is_not_changed(tmp_path: Path) -> None:
    made = tiers.Tiers()
    before = copy.deepcopy(vars(made))
    joined = pair().process(Scaled(), "trade long, tier string, price decimal(20,2)")
    capture(joined, tmp_path / "test_a.py")
    assert vars(made) == before

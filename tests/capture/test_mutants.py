"""Captured tests pass on the function they came from, and catch what a mistake changes in it."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import cojoin as cj
from cojoin.cli.demo import Day, make_day
from cojoin.testing import capture
from tests.capture import tiers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from cojoin.testing import CapturedTest

pytestmark = pytest.mark.push  # each mutant runs the tests of 50 keys

SOURCE = Path(tiers.__file__).read_text("utf-8")
NAME = "captured_tiers"
PROJECT = Path(__file__).resolve().parents[2]

# Each is one mistake: what it makes of a part of the function.
MUTANTS = {
    "wrong comparison": ("trade.amount > LIMIT", "trade.amount > 2 * LIMIT"),
    "timer a millisecond late": ("deadline = ctx.timestamp() + HOLD", "deadline = ctx.timestamp() + HOLD + 1"),
    "deadlines kept after a change": ("                self.held.clear()\n", ""),
    "total kept after a change": ("                self.total.clear()\n        ctx", "        ctx"),
    "wrong column": ("yield UNKNOWN, (trade.trade_id, trade.customer_id)", "yield UNKNOWN, (trade.customer_id,) * 2"),
    "null taken for a tier": ("if customer.tier is None:", "if False:"),
    "forgotten too early": (
        "register_event_time_timer(since + 6 * HOLD)",
        "register_event_time_timer(since + 5 * HOLD)",
    ),
    "never forgotten": ("            self.tier.clear()\n", ""),
    "held trades of a deadline overwritten": (
        "[*(self.held.get(deadline) or []), (trade.trade_id, trade.amount)]",
        "[(trade.trade_id, trade.amount)]",
    ),
    "confirmed twice": ("        self.held.remove(timestamp)\n", ""),
    "total without the trade": ("(self.total.value() or 0.0) + trade.amount", "(self.total.value() or 0.0)"),
    "tier of the time of the trade": ("if before is not None and before.tier != customer.tier:", "if before is None:"),
}
NEEDED = len(MUTANTS) - 1


@lru_cache(maxsize=1)
def day() -> Day:
    """Return four hours of 50 customers; some changes have no tier, and some trades happen in one millisecond."""
    made = make_day(10_000, 11)
    start = int(made.trades.column("event_time").drop_null().sort()[0].cast(pa.int64()).as_py())
    hours = [
        table.filter(pc.less(table.column("event_time").cast(pa.int64()).fill_null(0), start + 14_400_000_000))
        for table in (made.trades, made.customers)
    ]
    trades, customers = hours
    tier = np.array(customers.column("tier").to_pylist(), dtype=object)
    tier[::17] = None
    customers = customers.set_column(2, "tier", pa.array(tier, pa.string()))
    again = trades.take(pa.array(np.arange(0, trades.num_rows, 40)))
    again = again.set_column(0, "trade_id", pa.array(again.column("trade_id").to_numpy() + 100_000))
    trades = pa.concat_tables([trades, again])
    order = np.argsort(trades.column("event_time").cast(pa.int64()).fill_null(0).to_numpy(), kind="stable")
    return Day(trades.take(pa.array(_a_little_shuffled(order))), customers, made.customer_count)


def _a_little_shuffled(order: Any) -> Any:
    rng = np.random.default_rng(5)
    return order[np.argsort(np.arange(len(order)) + rng.integers(0, 30, len(order)), kind="stable")]


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def joined(module: Any) -> cj.Joined:
    settings: Any = {"key": "customer_id", "event_time": "event_time"}
    pair = cj.connect(
        cj.Input(day().trades, **settings, name="trades"), cj.Input(day().customers, **settings, name="customers")
    )
    return pair.process(module.Tiers(), module.OUTPUT, side_outputs=module.UNKNOWN)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CapturedTest, CapturedTest]]:
    """The tests of all 50 keys of the day and of a chosen few, of a function in a module of a project of its own."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "pyproject.toml").touch()
    (folder / f"{NAME}.py").write_text(SOURCE, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setitem(sys.modules, NAME, None)
        steps = list(joined(load(NAME, folder / f"{NAME}.py")).steps(batches=12))
        yield capture(steps, folder / "test_tiers.py", keys=range(1, 51)), capture(steps, folder / "test_few.py")
    sys.modules.pop("tests_of_tiers", None)


def failing(test: Path, source: str = SOURCE) -> Iterator[str]:
    """Yield the keys whose test fails with a source of the function."""
    mutated = test.parent / "mutated.py"
    mutated.write_text(source, "utf-8")
    load(NAME, mutated)
    module = load("tests_of_tiers", test)
    for key in module.CAPTURED.keys:
        with contextlib.suppress(AssertionError, cj.FunctionError):
            module.test_captured_key(key)
            continue
        yield key


def caught_by(test: Path) -> set[str]:
    """Return the mutants that the tests of some key catch."""
    found = {name for name, (old, new) in MUTANTS.items() if any(failing(test, SOURCE.replace(old, new)))}
    load(NAME, test.parent / f"{NAME}.py")
    return found


@pytest.mark.slow
def test_all_keys_pass_and_their_tests_catch_mutants(captured: tuple[CapturedTest, CapturedTest]) -> None:
    whole, _ = captured
    assert len(whole.keys) == 50
    assert whole.missing == ()
    assert list(failing(whole.path)) == []
    assert all(SOURCE.count(old) == 1 for old, _ in MUTANTS.values())
    assert len(caught_by(whole.path)) >= NEEDED


def test_a_chosen_few_keys_cover_all_cases_and_catch_mutants(captured: tuple[CapturedTest, CapturedTest]) -> None:
    _, few = captured
    assert few.missing == ()
    assert len(few.keys) <= 10
    assert list(failing(few.path)) == []
    assert len(caught_by(few.path)) >= NEEDED - 1


def test_the_file_runs_by_itself_and_is_clean(captured: tuple[CapturedTest, CapturedTest]) -> None:
    test = captured[0].path
    folder = test.parent
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_tiers.py"],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": f"{folder}:{PROJECT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "50 passed" in run.stdout, run.stdout + run.stderr
    for width in (88, 120):
        ruff = [sys.executable, "-m", "ruff"]
        isolated = ["--isolated", "--line-length", str(width), "--no-cache", "test_tiers.py"]
        formatted = subprocess.run(
            [*ruff, "format", "--check", *isolated], cwd=folder, check=False, capture_output=True
        )
        assert formatted.returncode == 0, test.read_text("utf-8")
        rules = ["--select", "ALL", "--ignore", "S101,INP001,CPY,D203,D213"]
        checked = subprocess.run([*ruff, "check", *rules, *isolated], cwd=folder, check=False, capture_output=True)
        assert checked.returncode == 0, checked.stdout.decode()

"""An error of a user's function names the user's line, not ours, whatever went wrong in it."""

from __future__ import annotations

import json
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import pytest

import cojoin
from cojoin.engine.functions import Context, KeyedCoProcessFunction
from cojoin.engine.user_frames import defined_at, is_user_file, user_line, user_traceback
from cojoin.errors import FunctionError
from cojoin.testing import Harness, HarnessInput

HERE = __file__
LEFT = HarnessInput("k string, amount double", key="k", name="trades")
RIGHT = HarnessInput("k string", key="k", name="customers")


def test_a_folder_beside_the_package_is_the_users() -> None:
    package = Path(cojoin.__file__).parent
    assert is_user_file(str(package.with_name("cojoin_jobs") / "job.py"))
    assert not is_user_file(str(package / "errors.py"))
    assert is_user_file(f"{sysconfig.get_path('stdlib')}_of_mine/job.py")
    assert not is_user_file(json.__file__)


class Enrich(KeyedCoProcessFunction):
    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def process_element1(self, trade: Any, ctx: Context) -> Any:
        if self.wrong == "column":
            yield trade.amuont, 1
        elif self.wrong == "library":
            yield json.loads("{"), 1
        elif self.wrong == "type":
            yield "much", 1
        elif self.wrong == "width":
            yield (1.0,)
        else:
            yield self.helper(), 1

    def helper(self) -> Any:
        return 1 / 0


def line_of(text: str) -> int:
    with open(HERE, encoding="utf-8") as lines:  # noqa: PTH123 - of itself
        return next(number for number, line in enumerate(lines, start=1) if line.strip() == text)


def raised(wrong: str) -> FunctionError:
    harness = Harness(Enrich(wrong), "amount double, n int", input1=LEFT, input2=RIGHT, order="arrival")
    with pytest.raises(FunctionError) as caught:
        harness.process_element1(("a", 1.0), 1)
    return caught.value


@pytest.mark.parametrize(
    ("wrong", "said", "line"),
    [
        ("column", "raised AttributeError: a row has no field 'amuont'", "yield trade.amuont, 1"),
        ("library", "raised JSONDecodeError: ", 'yield json.loads("{"), 1'),
        ("helper", "raised ZeroDivisionError: division by zero", "return 1 / 0"),
    ],
)
def test_what_a_callback_raises_is_told_with_its_line(wrong: str, said: str, line: str) -> None:
    error = raised(wrong)
    assert str(error).startswith(f"Enrich.process_element1 {said}")
    assert f" ({HERE}:{line_of(line)}, in " in str(error)
    shown = traceback.extract_tb(user_traceback(error))
    assert all(is_user_file(frame.filename) for frame in shown)
    assert shown[-1].lineno == line_of(line)


@pytest.mark.parametrize("wrong", ["type", "width"])
def test_what_a_callback_yields_amiss_is_told_with_where_the_callback_is(wrong: str) -> None:
    line = Enrich.process_element1.__code__.co_firstlineno
    assert str(raised(wrong)).endswith(f"; process_element1 is written in {HERE}:{line}")


def test_where_nothing_is_the_users_nothing_is_named() -> None:
    assert user_line(ValueError("never raised")) == ""
    assert user_traceback(ValueError("never raised")) is None
    assert defined_at(object()) == ""

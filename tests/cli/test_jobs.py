"""What a job is, and what is reported of a file that is not one: with its line, and without its values."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from cojoin.api.joined import Joined
from cojoin.cli.jobs import join_of, load_job, loaded
from cojoin.errors import ConfigurationError, SchemaError
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = """\
import pandas as pd
import cojoin as cj

at = pd.to_datetime(["2026-01-15 09:00"], utc=True)
rows = pd.DataFrame({"customer": [7], "time": at, "tier": ["gold"]})
pair = cj.connect(cj.Input(rows, "customer", "time", "trades"), cj.Input(rows, "customer", "time", "tiers"))
joined = pair.asof_join(suffixes=("", "_then"))
login = {"sasl.password": "hunter2"}
how = []
START = dict(output=print, checkpoint="/lake/c", trigger=cj.Trigger.available_now())

def plain():
    return joined

def chosen(spark, how="left", *, tolerance=None):
    return pair.asof_join(how=how, tolerance=tolerance, suffixes=("", "_" + spark))

def any_of(**settings):
    return pair.asof_join(suffixes=("", "_" + settings["suffix"]))

def two(left, right):
    return joined

def starts():
    return joined.start(**START)

def a_login(spark=None):
    return login

def broken():
    raise ValueError("no such day")

def ends():
    import sys
    sys.exit("no such year")

def outer():
    return pair.asof_join(how="outer")

def no_column():
    return cj.connect(cj.Input(rows, "custmer", "time", "trades"), cj.Input(rows, "customer", "time", "tiers"))

if __name__ == "__main__":
    joined.start(**START)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job file beside which no module stays loaded."""
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    path, modules, start = list(sys.path), set(sys.modules), Joined.start
    yield str(tmp_path / "job.py")
    assert sys.path == path
    assert Joined.start is start
    assert "job" not in set(sys.modules) - modules


def no_spark() -> NoReturn:
    raise AssertionError


def load(file: str, name: str, spark: Any = no_spark, **settings: str) -> Joined:
    return load_job((file, name), spark, settings)


def test_a_job_is_a_join_or_a_function_that_returns_one(file: str) -> None:
    assert load(file, "joined").plan.operation.how == "left"
    assert load(file, "plain").plan.right.name == "tiers"
    assert load("job", "plain").plan.right.name == "tiers"


def test_a_function_gets_the_session_and_the_arguments_that_are_set(file: str) -> None:
    def spark() -> str:
        return "session"

    assert load(file, "chosen", spark).plan.operation.suffixes == ("", "_session")
    found = load(file, "chosen", spark, how="inner", tolerance="1 hour").plan.operation
    assert (found.how, found.tolerance) == ("inner", "1 hour")
    assert load(file, "any_of", suffix="x").plan.operation.suffixes == ("", "_x")
    # What has no default may be set instead, and then it is not the session.
    assert load(file, "two", spark, left="x")
    assert load(file, "two", left="x", right="y")


def test_a_command_on_spark_has_a_session_before_any_function_is_called(file: str) -> None:
    asked: list[str] = []
    for name in ("plain", "joined"):
        with loaded((file, name)) as module:
            join_of((file, name), module, lambda: asked.append("session"), {}, on_spark=True)
    assert asked == ["session"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("joind", "{file} has no 'joind'; did you mean 'joined'?"),
        ("xyz", "{file} has no 'xyz'; valid are 'joined', 'plain', 'chosen', 'any_of', 'two', 'starts'"),
        ("login", "a function that returns one, got dict ({file}:8)"),
        ("how", "a function that returns one, got list ({file}:9)"),
        ("pd", "a function that returns one, got module ({file}:1)"),
        ("a_login", "a function that returns one, got dict ({file}:27)"),
        ("two", "it takes left, right: give the others with --set NAME=VALUE"),
        ("broken", "it raised ValueError: no such day ({file}:31, in broken)"),
        ("ends", "it raised SystemExit: no such year ({file}:35, in ends)"),
        ("outer", "how: expected"),
        ("outer", "({file}:38, in outer)"),
        ("starts", "a query is started while the job is loaded, and the command starts the join itself"),
        ("starts", "({file}:25, in starts)"),
    ],
)
def test_what_is_not_a_join_is_named_with_its_line(file: str, name: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(file, name)
    assert str(raised.value).startswith(f"{file}:{name}: ")
    assert told.format(file=file) in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_an_error_of_cojoins_stays_one_of_its_kind(file: str) -> None:
    with pytest.raises(SchemaError, match=r"no_column: .*did you mean 'customer'.*job.py:41, in no_column\)"):
        load(file, "no_column")


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("joined", {"how": "inner"}, "--set gives arguments to a function, and this is a join ({file}:7)"),
        ("chosen", {"hwo": "inner"}, "--set hwo: the function has no such argument; did you mean 'how'?"),
        ("plain", {"how": "inner"}, "--set how: the function has no such argument"),
    ],
)
def test_what_is_set_must_be_an_argument(file: str, name: str, settings: dict[str, str], told: str) -> None:
    with refused(told.format(file=file)):
        load(file, name, **settings)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (", "loading it raised SyntaxError: '(' was never closed ({file}:1)"),
        ("\nimport nothing_such", "loading it raised ModuleNotFoundError: No module named 'nothing_such' ({file}:2"),
        ("def f():\n    return {}['tier']\nf()", "loading it raised KeyError: 'tier' ({file}:2, in f)"),
        ("import sys\nsys.exit(3)", "loading it raised SystemExit: 3 ({file}:2, in <module>)"),
        ("import job\n\njob.starts()", "a query is started while the job is loaded"),
        ("import job\n\njob.starts()", "/job.py:25, in starts)"),
        ("import job\njob.joined.start(**job.START)", "({file}:2, in <module>)"),
        ("import job\njob.outer()", "/job.py:38, in outer)"),
    ],
)
def test_a_file_that_does_not_load_is_named_with_its_line(file: str, tmp_path: Path, text: str, told: str) -> None:
    other = tmp_path / "other.py"
    other.write_text(text)
    with refused(told.format(file=other)), loaded((str(other), "joined")):
        pass


def test_what_is_not_found(file: str) -> None:
    with refused("no.py:joined: the file 'no.py' does not exist"):
        load("no.py", "joined")
    with pytest.raises(ConfigurationError, match=r"^nowhere:joined: loading it raised .*: No module named 'nowhere'$"):
        load("nowhere", "joined")

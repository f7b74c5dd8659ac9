"""First guesses from other libraries are met by messages that name what is meant."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import cojoin as cj

if TYPE_CHECKING:
    from collections.abc import Callable

TIME = pa.array([0], pa.timestamp("us", "UTC"))
LEFT, RIGHT = pa.table({"id": [7], "at": TIME}), pa.table({"id": [7], "since": TIME, "tier": ["gold"]})


def pair() -> cj.ConnectedInputs:
    return cj.connect(cj.Input(LEFT, "id", "at", "trades"), cj.Input(RIGHT, "id", "since", "customers"))


@pytest.mark.parametrize(
    ("guess", "kind", "told"),
    [
        (lambda: cj.Input(LEFT, on="at"), cj.ConfigurationError, "it has no argument 'on'; write event_time="),
        (lambda: cj.Input(LEFT, by="id"), cj.ConfigurationError, "it has no argument 'by'; write key="),
        (lambda: cj.Input(LEFT, "id", evnt_time="at"), cj.ConfigurationError, "'evnt_time'; did you mean 'event_"),
        (lambda: cj.connect(LEFT, RIGHT), cj.ConfigurationError, r"got Table; write cojoin.Input\(.* is one line"),
        (lambda: pair().asof_join(how="outer"), cj.ConfigurationError, r"use interval_join\(..., how='full'\)"),
        (lambda: pair().interval_join("0 s", "1 s", how="outer"), cj.ConfigurationError, "got 'outer'; write how="),
        (
            lambda: pair().to_pandas(),
            AttributeError,
            "no attribute .to_pandas.; make a join of it first",
        ),
        (lambda: pair().foo, AttributeError, "no attribute 'foo'$"),
        (lambda: cj.sources.parquet, AttributeError, "module 'cojoin.sources' has no attribute 'parquet'"),
        (lambda: cj.types.Results, AttributeError, "'cojoin.types' has no attribute 'Results'; did you mean 'Result'?"),
    ],
)
def test_a_first_guess_is_met_by_its_message(guess: Callable[[], Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        guess()


def test_the_result_of_a_join_in_memory_is_an_input() -> None:
    first = pair().asof_join()
    second = pa.table({"id": [7], "day": TIME, "limit": [5]})
    joined = cj.connect(cj.Input(first, "id", "at", "enriched"), cj.Input(second, "id", "day", "limits")).asof_join()
    assert joined.to_arrow().select(["tier", "limit"]).to_pylist() == [{"tier": "gold", "limit": 5}]


def test_every_type_that_is_returned_has_a_public_name() -> None:
    assert isinstance(pair().asof_join().run(), cj.types.Result)
    assert {isinstance(step, cj.types.Step) for step in pair().asof_join().steps([(1, 1)])} == {True}
    assert isinstance(cj.diff(pair().asof_join(), pair().asof_join()), cj.types.Difference)


def test_a_moment_of_any_zone_is_taken_as_its_milliseconds() -> None:
    berlin = timezone(timedelta(hours=1))
    moment = datetime(1970, 1, 1, 1, 0, 5, 250_000, tzinfo=berlin)
    inputs = cj.Input(LEFT, "id", "at", "trades"), cj.Input(RIGHT, "id", "since", "customers")
    assert cj.connect(*inputs, hold_left_until=moment).asof_join().plan.time.hold_left_until == 5_250

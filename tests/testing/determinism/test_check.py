"""Each planted dependence is found and named, functions and joins without one pass, and bad input is refused."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.errors import ConfigurationError, FunctionError
from cojoin.testing import DeterminismError, HarnessError, check_determinism
from tests.testing.determinism import functions
from tests.testing.determinism.functions import (
    JOINS,
    CountsInClass,
    CountsOverKeys,
    DrawsId,
    FailsSecondTime,
    FailsWithoutTier,
    HoldsGenerator,
    IteratesConstantSet,
    IteratesSet,
    LatestTier,
    NoticesCuts,
    ReadsDay,
    ReadsProcessingTime,
    ReadsWatermark,
    Slow,
    Stateless,
    apply,
    pair,
)
from tests.testing.functions import UNKNOWN, EnrichTrades

if TYPE_CHECKING:
    from cojoin.engine.functions import KeyedCoProcessFunction
    from cojoin.engine.plan import Plan

ARRIVAL = {"order": "arrival"}
PLANTED: dict[str, tuple[KeyedCoProcessFunction, dict[str, Any], str]] = {
    "arrival": (LatestTier(), ARRIVAL, "the order in which rows arrive"),
    "keys": (CountsOverKeys(), {}, "which keys are processed together"),
    "set": (IteratesSet(), {}, "the order in which a set is iterated"),
    "clock": (ReadsDay(), {}, "the clock"),
    "cut": (NoticesCuts(), {}, "where micro-batches begin"),
}
OTHERS: dict[str, tuple[KeyedCoProcessFunction, dict[str, Any], str]] = {
    "watermark": (ReadsWatermark(), ARRIVAL, "where the stream is cut into micro-batches"),
    "processing time": (ReadsProcessingTime(), {}, "the clock"),
}
APART: dict[str, tuple[KeyedCoProcessFunction, dict[str, Any], str]] = {
    "random": (DrawsId(), {}, "random numbers"),
    "set, in arrival order": (IteratesConstantSet(), ARRIVAL, "the order in which a set is iterated"),
    "class": (CountsInClass(), {}, "what earlier runs left behind in the process"),
}
QUICK = ("arrival", "watermark")
"""What each push looks for."""


@pytest.mark.push
@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in (PLANTED | OTHERS | APART) if name not in QUICK)],
)
def test_a_planted_dependence_is_found_and_named(name: str) -> None:
    function, options, cause = (PLANTED | OTHERS | APART)[name]
    with pytest.raises(DeterminismError) as caught:
        check_determinism(apply(function, **options), seeds=200)
    error = caught.value
    assert error.depends_on[0].startswith(cause), error
    assert error.rows <= 4
    text = str(error)
    assert text.startswith(f"{type(function).__name__}: its result depends on {cause}")
    assert re.search(r"\n  - .*\n|\n  \+ .*\n", text)
    assert f"first_seed={error.seed})" in text
    assert isinstance(error, HarnessError)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_dependence_is_found_among_fifty_rows_within_a_thousand_seeds(name: str) -> None:
    function, options, cause = PLANTED[name]
    with pytest.raises(DeterminismError, match=cause):
        check_determinism(apply(function, 25, **options))


@pytest.mark.push
def test_the_message_shows_the_smallest_rows_and_batches_and_how_to_see_them_again() -> None:
    joined = apply(NoticesCuts())
    with pytest.raises(DeterminismError) as caught:
        check_determinism(joined, seeds=40, first_seed=101)
    seed, text = caught.value.seed, str(caught.value)
    assert seed >= 101
    assert f"found by seed {seed}" in text
    assert "The smallest example found has 2 of 32 rows:" in text
    assert len(re.findall(r"batch 2: after a restart; trades \d+; then the inputs end", text)) == 1
    assert re.search(r"\n  - \d+ +\| later\n  \+ \d+ +\| first\n", text)
    assert "\nCure: keep it in a keyed state, which open() gets" in text
    with pytest.raises(DeterminismError, match=f"found by seed {seed}"):
        check_determinism(joined, seeds=1, first_seed=seed)


@pytest.mark.push
def test_an_error_that_only_some_deliveries_raise_is_reported_with_its_seed() -> None:
    cause = "whether it fails depends on where micro-batches begin"
    with pytest.raises(DeterminismError, match=f"FailsSecondTime: {cause}") as caught:
        check_determinism(apply(FailsSecondTime()), seeds=60)
    assert "The other run failed: FailsSecondTime.process_element1 raised KeyError: '" in str(caught.value)


@pytest.mark.push
def test_an_error_of_the_whole_is_the_functions_own() -> None:
    with pytest.raises(FunctionError, match=r"FailsWithoutTier\.process_element1 raised AttributeError"):
        check_determinism(apply(FailsWithoutTier()), seeds=1, first_seed=1)


@pytest.mark.push
def test_a_function_without_a_fault_passes() -> None:
    joined = pair().process(EnrichTrades(), functions.OUTPUT, side_outputs=[UNKNOWN])
    report = check_determinism(joined, seeds=60)
    assert (report.seeds, report.first_seed, report.rows) == (60, 0, 32)
    assert report.variations["other hash seeds and clocks"] == 30
    assert min(report.variations.values()) > 5
    assert repr(report).startswith("<EnrichTrades: one result from 32 rows in 60 runs (seeds 0 to 59), ")


@pytest.mark.push
def test_in_arrival_order_a_keys_rows_may_follow_the_order_of_arrival() -> None:
    assert check_determinism(apply(Stateless(), order="arrival"), seeds=1, first_seed=1).seeds == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINS)
def test_every_join_passes(name: str) -> None:
    assert check_determinism(JOINS[name], seeds=300).seeds == 300


@pytest.mark.push
def test_the_time_may_run_out() -> None:
    report = check_determinism(apply(Stateless()), timeout="1 second")
    assert report.seeds < 1_000


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected a function or a join .*, got <tests.*Stateless object"):
        check_determinism(Stateless())  # type: ignore[arg-type]
    joined = apply(Stateless())
    with pytest.raises(ConfigurationError, match="seeds: expected a whole number from 1 on, got 0"):
        check_determinism(joined, seeds=0)
    with pytest.raises(ConfigurationError, match="first_seed: expected a whole number from 0 on, got True"):
        check_determinism(joined, first_seed=True)
    with pytest.raises(ConfigurationError, match="timeout: expected a duration"):
        check_determinism(joined, timeout=30)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'trades' and 'customers' have no rows"):
        check_determinism(apply(Stateless(), 0))


@pytest.mark.parametrize("timeout", ["0 s", timedelta(0)])
def test_no_time_at_all_is_refused(timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout: must be longer than zero, such as '30 seconds', got"):
        check_determinism(apply(Stateless()), timeout=timeout)


@pytest.mark.push
def test_too_little_time_for_any_delivery_is_told() -> None:
    said = r"timeout: '1 ms' was over before any other delivery of the [\d,]+ rows ran, so nothing was checked"
    with pytest.raises(ConfigurationError, match=said):
        check_determinism(apply(Slow()), timeout="1 ms")


def test_what_has_run_already_is_refused_as_what_it_is() -> None:
    joined = apply(Stateless())
    for given, name in ((joined.run(), "Result"), (next(joined.steps()), "Step")):
        said = f"expected a function or a join over inputs in memory, .* got a {name}, which has run already$"
        with pytest.raises(ConfigurationError, match=said):
            check_determinism(given)  # type: ignore[arg-type]


def test_inputs_of_spark_are_refused() -> None:
    class OnSpark:
        plan: Plan = apply(Stateless()).plan

    with pytest.raises(ConfigurationError, match=r"'trades' and 'customers' are Spark's; .*df\.limit\(50\)\.toArrow"):
        check_determinism(OnSpark())  # type: ignore[arg-type]


@pytest.mark.push
def test_a_function_that_cannot_be_pickled_is_refused_and_its_attribute_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"HoldsGenerator .* attribute 'numbers' \(a generator\) can't be pickled"
    ):
        check_determinism(apply(HoldsGenerator()))

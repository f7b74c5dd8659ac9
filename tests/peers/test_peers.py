"""Cases of other libraries' tests: cojoin answers as the peer does, or otherwise for a reason that is written down."""

from __future__ import annotations

import dataclasses
from typing import Any

import duckdb
import pandas as pd
import pytest

import cojoin as cj
from tests.peers.__main__ import report
from tests.peers.cases import Case, Pairs, in_one_line, load, run, table

CASES = load()
RUN = [each for each in CASES if each.verdict != "absent"]


def named(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[each.id for each in cases])


@named(RUN)
def test_a_case_of_a_peers_own_tests(case: Case) -> None:
    if case.says:
        with pytest.raises(cj.CojoinError) as refused:
            run(case)
        assert case.says in str(refused.value)
        return
    assert run(case) == (case.peer if case.ours is None else case.ours)


KEPT = [each for each in CASES if each.reason in ("null event times", "null keys") and not isinstance(each.peer, str)]


@named(KEPT)
@pytest.mark.filterwarnings("ignore:.* can't match:cojoin.MissingRowsWarning")
def test_a_row_that_an_input_rejects_is_kept_by_the_one_line_function(case: Case) -> None:
    assert in_one_line(case) == case.peer


def test_what_the_verdicts_say_is_so() -> None:
    for case in CASES:
        is_error = isinstance(case.peer, str)
        said: dict[str, bool] = {
            # Both refuse it, or both have the same rows.
            "holds": case.ours is None and is_error == bool(case.says),
            "differs": case.ours is not None and case.ours != case.peer and not case.says,
            "refused": case.ours is None and bool(case.says) and not is_error,
            "absent": case.ours is None and not case.says,
        }
        assert said[case.verdict], case.id
        assert case.reason or case.verdict == "holds", case.id
    told = report()
    assert all(f"{sum(each.verdict == verdict for each in CASES):>8}" in told for verdict in said)


def by_pandas(case: Case) -> Pairs | str:
    """Return what the installed pandas answers, in whose cases a number is a number and a time has no zone."""
    left, right = (table(columns).to_pandas() for columns in (case.left, case.right))
    for side in (left, right):
        for name in side.select_dtypes("category"):
            side[name] = side[name].astype(object)  # both sides have the same categories in the peer's tests
    options = dict(case.options)
    if "tolerance_us" in options:
        micros = options.pop("tolerance_us")
        numbers = pd.api.types.is_float_dtype(left[case.on[0]]), pd.api.types.is_integer_dtype(left[case.on[0]])
        options["tolerance"] = (
            micros / 1e6 if numbers[0] else micros // 1_000_000 if numbers[1] else pd.Timedelta(micros, "us")
        )
    try:
        found = pd.merge_asof(
            left.assign(left_row=range(len(left))),
            right.assign(right_row=range(len(right))),
            left_on=case.on[0],
            right_on=case.on[1],
            left_by=case.key[0] or None,
            right_by=case.key[1] or None,
            **options,
        )
    except (ValueError, pd.errors.MergeError) as error:
        return str(error).partition("\n")[0]
    numbers = zip(found["left_row"], found["right_row"], strict=True)
    return [[int(one), None if pd.isna(two) else int(two)] for one, two in numbers]


@pytest.mark.slow  # It shows that the file is right, and nothing of cojoin.
@named([each for each in CASES if each.id.startswith("pandas") and ", event time as " not in each.origin])
def test_pandas_answers_what_the_file_says(case: Case) -> None:
    found = by_pandas(case)
    # The words of its errors change with its release.
    assert isinstance(found, str) if isinstance(case.peer, str) else found == case.peer


@pytest.mark.slow
@named(
    [
        each
        for each in RUN
        if each.id.startswith("duckdb") and not each.axis.startswith("n") and "takes for equal" not in each.reason
    ]
)
def test_duckdb_answers_what_the_file_says(case: Case) -> None:
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, columns in (("l", case.left), ("r", case.right)):
        connection.register(f"{name}_rows", table(columns))
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_rows")
    is_exact, forward = case.options.get("allow_exact_matches", True), "direction" in case.options
    operator = ("<" if forward else ">") + ("=" if is_exact else "")
    conditions = [f'l."{one}" = r."{two}"' for one, two in zip(*case.key, strict=True)]
    conditions.append(f'l."{case.on[0]}" {operator} r."{case.on[1]}"')
    if "tolerance_us" in case.options:
        micros = case.options["tolerance_us"]
        conditions.append(f'l."{case.on[0]}" - r."{case.on[1]}" <= INTERVAL {micros} MICROSECONDS')
    how = case.options.get("how", "left")
    columns = "l.rowid, '-'" if how in ("semi", "anti") else "l.rowid, r.rowid"
    rows = connection.sql(f"SELECT {columns} FROM l ASOF {how.upper()} JOIN r ON {' AND '.join(conditions)}").fetchall()
    assert isinstance(case.peer, list)
    assert sorted(map(list, rows), key=str) == sorted(case.peer, key=str)


def test_a_case_that_is_changed_is_noticed() -> None:
    case = next(each for each in CASES if each.verdict == "holds" and isinstance(each.peer, list) and each.peer)
    assert run(case) == case.peer
    later = dataclasses.replace(case, options=case.options | {"tolerance_us": 0, "allow_exact_matches": False})
    assert run(later) != case.peer

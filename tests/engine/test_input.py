from __future__ import annotations

import pytest

from cojoin.engine.input import Advice, Kind, about_pair, kind_of


class Shown(Advice):
    """Advice that shows what was asked."""

    def time(self, column: str, kind: Kind, role: str) -> str | None:
        return None if kind == "other" else f"{role} of {column} from {kind}"

    def cast(self, column: str, ddl: str) -> str:
        return f"{column} as {ddl}"


SHOWN = Shown()


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("tinyint", "int"),
        ("bigint", "bigint"),
        ("float", "floating"),
        ("decimal(20,6)", "decimal"),
        ("char(5)", "string"),
        ("varchar(5)", "string"),
        ("timestamp_ntz", "timestamp_ntz"),
        ("timestamp", "other"),
        ("interval day to second", "interval"),
        ("struct<date:date>", "other"),
        ("boolean", "other"),
    ],
)
def test_a_type_is_of_a_kind(ddl: str, kind: str) -> None:
    assert kind_of(ddl) == kind


def test_a_time_of_a_kind_without_a_way_is_told_what_is_needed() -> None:
    assert SHOWN.about_time("t", "bigint", "event time").endswith("with their unit: event time of t from bigint")
    assert SHOWN.about_time("t", "boolean", "event time") == "name a column with the moments, as timestamps"


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ("int", "bigint", "cast one: a as bigint"),
        ("bigint", "int", "cast one: b as bigint"),
        ("tinyint", "string", "cast one: a as string"),
        ("decimal(10,2)", "decimal(12,4)", "cast one: a as decimal(12,4)"),
        ("decimal(10,2)", "decimal(6,4)", "cast both: a as decimal(12,4); and b as decimal(12,4)"),
        ("bigint", "decimal(38,0)", "cast one: a as decimal(38,0)"),
        ("bigint", "decimal(5,2)", "cast both: a as decimal(21,2); and b as decimal(21,2)"),
        # No decimal is wide enough, and as texts 7 and 7.0 differ.
        ("decimal(38,0)", "decimal(38,38)", "cast one to the other's type"),
        ("timestamp_ntz", "timestamp", "it has no time zone; name the one that is meant: key of a from timestamp_ntz"),
        ("timestamp", "timestamp_ntz", "it has no time zone; name the one that is meant: key of b from timestamp_ntz"),
        ("date", "timestamp", "cast one to the other's type"),
        ("binary", "string", "cast one to the other's type"),
    ],
)
def test_keys_of_two_types_are_cast_to_one_that_holds_both(left: str, right: str, said: str) -> None:
    assert about_pair(((SHOWN, "a", left), (SHOWN, "b", right))) == said

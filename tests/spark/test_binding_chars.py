"""Texts that Spark pads with blanks: keys of which no two are equal are refused, and the cure is run."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

import cojoin as cj
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TYPES = {"c5": "char(5)", "c9": "char(9)", "v3": "varchar(3)", "v9": "varchar(9)", "s": "string"}


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Iterator[None]:
    for name, dtype in TYPES.items():
        spark.sql(f"CREATE TABLE chars_{name} (k {dtype}, at TIMESTAMP, tier STRING) USING delta")
        spark.sql(f"INSERT INTO chars_{name} VALUES ('ab', TIMESTAMP '2026-01-01 00:00:00', '{name}')")
    yield
    for name in TYPES:
        spark.sql(f"DROP TABLE chars_{name}")


def pair(left: Any, right: Any) -> cj.ConnectedInputs:
    return cj.connect(cj.Input(left, "k", "at", "trades"), cj.Input(right, "k", "at", "customers"))


def joined(left: Any, right: Any) -> list[tuple[str, str]]:
    rows = pair(left, right).asof_join(suffixes=("", "_customer")).to_dataframe().collect()
    return [(row.k, row.tier_customer) for row in rows]


@pytest.mark.usefixtures("tables")
@pytest.mark.slow
def test_keys_of_two_lengths_are_refused_and_trimmed_ones_match(spark: SparkSession) -> None:
    for one, two in [("c5", "c9"), ("c5", "v3"), ("v3", "c9")]:
        left, right = spark.table(f"chars_{one}"), spark.table(f"chars_{two}")
        with pytest.raises(cj.SchemaError) as caught:
            pair(left, right)
        message = str(caught.value)
        assert message.startswith(
            f"the key types differ: 'k' of input 'trades' is {TYPES[one]}, 'k' of input 'customers' is {TYPES[two]}, "
            f"and a char(n) is padded with blanks to n characters: no two keys would be equal; "
        )
        code = message.rpartition(": ")[2]
        both = (eval(code, {"df": frame, "F": F}) for frame in (left, right))
        assert joined(*both) == [("ab", two)]


@pytest.mark.usefixtures("tables")
@pytest.mark.slow
def test_texts_that_may_fill_a_char_are_told_and_those_of_one_length_match(spark: SparkSession) -> None:
    left = spark.table("chars_c5")
    for two in ("v9", "s"):
        with pytest.warns(UserWarning, match=r"is padded with blanks to n characters: only texts that fill it match"):
            pair(left, spark.table(f"chars_{two}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert joined(left, left) == [("ab   ", "c5")]
        pair(spark.table("chars_v3"), spark.table("chars_v9"))


@pytest.mark.usefixtures("tables")
def test_a_source_is_told_to_alter_its_table_which_then_gives_its_texts_without_blanks(spark: SparkSession) -> None:
    def source(name: str) -> Any:
        return cj.sources.delta(spark.sql(f"DESCRIBE DETAIL chars_{name}").collect()[0].location)

    with pytest.raises(cj.SchemaError, match=r"ALTER TABLE ... ALTER COLUMN k TYPE string$") as caught:
        pair(source("c5"), source("c9"))
    for name in ("c5", "c9"):
        spark.sql(str(caught.value).rpartition(": ")[2].replace("...", f"chars_{name}"))
    made = pair(source("c5"), source("c9")).asof_join(suffixes=("", "_customer"))
    assert [spec.schema.field("k").type for spec in made.plan.inputs]
    assert joined(*(spark.table(f"chars_{name}") for name in ("c5", "c9"))) == [("ab", "c9")]


def test_a_char_that_spark_keeps_as_a_type_is_refused_with_what_makes_it_a_string(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        frame = spark.sql("SELECT CAST('ab' AS CHAR(5)) AS k, TIMESTAMP '2026-01-01 00:00:00' AS at, 'x' AS tier")
        with refused("column 'k' has the type char(5), which has no Arrow form; make it a string without its blanks: "):
            pair(frame, frame)
        made = frame.withColumn("k", F.rtrim(F.col("k").cast("string")))
        assert joined(made, made) == [("ab", "x")]
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")

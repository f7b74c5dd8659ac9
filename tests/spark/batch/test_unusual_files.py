"""Parquet files that few people have, encrypted ones and those with Bloom filters, on both ways of reading."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from cojoin.session.spark_errors import explain
from tests.spark.batch.test_direct_reader import (
    FAILURES,
    GROUPS,
    ORDINARY,
    ORDINARY_DDL,
    both,
    bound,
    through_spark,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from cojoin.spark.bound_input import BoundInput

pytestmark = pytest.mark.spark


class NoSecret(pe.KmsClient):  # type: ignore[misc]
    """Keeps keys as they are."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        del master_key_identifier
        return base64.b64encode(key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        del master_key_identifier
        return base64.b64decode(wrapped_key)


def write_encrypted(folder: Path, name: str, *, plaintext_footer: bool) -> Path:
    asked = pe.EncryptionConfiguration(footer_key="one", column_keys={"two": ["id"]}, plaintext_footer=plaintext_footer)
    properties = pe.CryptoFactory(NoSecret).file_encryption_properties(pe.KmsConnectionConfig(), asked)
    folder.mkdir(exist_ok=True)
    with pq.ParquetWriter(folder / name, ORDINARY.schema, encryption_properties=properties) as writer:
        writer.write_table(ORDINARY)
    return folder / name


@pytest.mark.parametrize("plaintext_footer", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_first", [False, True])
def test_an_encrypted_file_is_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path, plaintext_footer: bool, is_first: bool
) -> None:
    folder = tmp_path / "in"

    def make() -> BoundInput:
        if is_first:
            write_encrypted(folder, "1.parquet", plaintext_footer=plaintext_footer)
            return bound(spark, folder, ORDINARY_DDL, "k")
        write(folder, "0.parquet", ORDINARY)
        found = bound(spark, folder, ORDINARY_DDL, "k")
        write_encrypted(folder, "1.parquet", plaintext_footer=plaintext_footer)
        found.frame = spark.read.schema(ORDINARY_DDL).parquet(str(folder))
        return found

    def refusal(found: BoundInput) -> str:
        with pytest.raises(FAILURES) as error:
            found.packed(GROUPS).collect()
        return explain(error.value)

    assert "1.parquet" in refusal(make())
    with through_spark(spark):
        assert "1.parquet" in refusal(make())


def test_bloom_filters_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    frame = spark.range(3_000).selectExpr("id", "timestamp_micros(id) at", "string(id % 700) k")
    # With a dictionary of all values, Spark writes no filter.
    plain = frame.coalesce(1).write.option("parquet.enable.dictionary", "false")
    plain.parquet(f"{tmp_path}/without")
    plain.option("parquet.bloom.filter.enabled#k", "true").parquet(str(folder))
    (path,) = folder.glob("*.parquet")
    (without,) = (tmp_path / "without").glob("*.parquet")
    assert path.stat().st_size > without.stat().st_size, "no filter was written"
    direct, general = both(spark, lambda: bound(spark, folder, ORDINARY_DDL, "k"))
    assert direct.num_rows > 0
    assert direct.equals(general)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cojoin.session.jvm import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_class_makes_objects_and_gives_what_is_static(spark: SparkSession) -> None:
    assert java_class(spark, "java.net.URI")("file:/a%20b").getPath() == "/a b"
    assert java_class(spark, "java.lang.Long").parseLong("17") == 17
    assert java_class(spark, "java.util.Map$Entry").comparingByKey() is not None

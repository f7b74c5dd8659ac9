"""Classes of the JVM, by their whole names.

Written as ``jvm.org.apache...``, a name costs a question to the JVM for each of its parts, and each is answered after a
search of all jars, some hundred: a batch's small files alone took 200 of them. What a name stands for is known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["java_class"]


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the session's JVM, to make an object or to call what is static.

    Args:
        spark: The session.
        name: The class with its package; a class within another, or a Scala object's own, with a ``$``.
    """
    return JavaClass(name, spark._jvm._gateway_client)  # noqa: SLF001 - there is no public way

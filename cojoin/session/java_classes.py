"""The JVM of a session: its classes by their full names, and the objects behind PySpark's.

Written as ``jvm.org.apache...``, a name costs a call to the JVM for each of its parts, and each call searches all of
some hundred jars: a batch's small files alone took 200 such calls. Here it is known that the name is that of a class.

Only a session with a JVM in this process has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["java_class", "java_session"]


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class of the session's JVM, to construct objects or to call static methods.

    Args:
        spark: The session.
        name: The class with its package; a nested class, or the class of a Scala object, is written with a ``$``.
    """
    return JavaClass(name, java_session(spark)._gateway_client)  # noqa: SLF001 - there is no public way


def java_session(spark: SparkSession) -> Any:
    """Return the session as the JVM has it."""
    return spark._jsparkSession  # noqa: SLF001 - there is no public way

"""The versions of Java with which Spark works, and those with which it gives wrong data."""

from __future__ import annotations

from cojoin.installed_packages import release_of

__all__ = ["OLDEST_JAVA", "is_too_old", "java_fault"]

OLDEST_JAVA = 17
_WRONG, _RIGHT = (25,), (25, 0, 3)
"""The first version whose garbage collector (G1) moves memory that native code writes to, and the first that does not.

SPARK-55852, JDK-8377811: compressed files are damaged, or rows are changed in silence.
"""


def java_fault(version: str, java: str) -> str | None:
    """Return what is wrong with a version of Java; None if nothing is, or if the version is unknown.

    Args:
        version: The version, as Java itself writes it: ``"17.0.15"``, ``"1.8.0_275"`` or ``"25-ea"``.
        java: Which Java it is, for the message, such as its path.

    >>> java_fault("25.0.2", "java")
    'java is Java 25.0.2, whose garbage collector gives wrong data (SPARK-55852); install Java 25.0.3 or later, \
or Java 17 or 21'
    """
    if is_too_old(version):
        return f"Spark needs Java {OLDEST_JAVA} or later, and {java} is Java {_feature(version)}"
    if not _WRONG <= release_of(version) < _RIGHT:
        return None
    right = ".".join(map(str, _RIGHT))
    return (
        f"{java} is Java {version}, whose garbage collector gives wrong data (SPARK-55852); install Java {right} or "
        f"later, or Java 17 or 21"
    )


def is_too_old(version: str) -> bool:
    """Return whether a version of Java is too old for Spark; an unknown one is not.

    >>> is_too_old("1.8.0_275"), is_too_old("17.0.15"), is_too_old("")
    (True, False, False)
    """
    return 0 < _feature(version) < OLDEST_JAVA


def _feature(version: str) -> int:
    """Return the number by which a version is known: 8 for 1.8.0."""
    numbers = [*release_of(version), 0, 0]
    return numbers[1] if numbers[0] == 1 else numbers[0]

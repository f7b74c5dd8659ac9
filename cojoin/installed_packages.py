"""The packages next to numpy and pyarrow: the use of each, a check that it is installed, and the command for that.

Joins in memory need none of them. What does need one checks it before it starts, so that a missing package is one of
cojoin's errors. A check imports nothing, and costs some 0.1 ms for each package.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cojoin.errors import EnvironmentSetupError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

Extra: TypeAlias = Literal["spark", "delta", "kafka", "registry", "sql", "metrics", "connect", "plots"]
"""A set of packages that ``pip install "cojoin[...]"`` adds; ``pyproject.toml`` lists them, and so does guide 06."""

_PACKAGES = {
    "confluent_kafka": "confluent-kafka",
    "deltalake": "deltalake",
    "fastavro": "fastavro",
    "google.protobuf": "protobuf",
    "httpx2": "confluent-kafka[schemaregistry]",
    "jsonschema": "jsonschema",
    "matplotlib": "matplotlib",
    "obstore": "obstore",
    "pandas": "pandas",
    "psycopg": "psycopg[binary]",
    "pyspark": "pyspark",
    "tqdm": "tqdm",
}
"""The modules that are checked, and the packages that have them."""

_OF_SPARK = ("pyspark", "pandas", "tqdm", "deltalake")
"""The packages that every use of Spark needs; deltalake writes a checkpoint's tables, where Spark does not have to.

Object stores alone need obstore, checked where one is opened.
"""

_OLDEST = {"pyspark": (4, 0, 1), "pandas": (2, 2), "deltalake": (1, 6, 6)}
"""The oldest versions that cojoin works with, as in ``pyproject.toml``."""


def check_packages(label: str, extra: Extra, *modules: str) -> None:
    """Check that modules, by default those of every use of Spark, are installed; a message names what needs them.

    Raises:
        EnvironmentSetupError: One is missing, or is too old.
    """
    needed = modules or _OF_SPARK
    missing = [_PACKAGES[each] for each in needed if not is_installed(each)]
    if missing:
        raise missing_packages(label, extra, *missing)
    for package in filter(_OLDEST.__contains__, needed):
        installed = _version(package)
        if _is_too_old(package, installed):
            raise _too_old(label, package, installed, f"cojoin[{extra}]")


_MODULES_OF_SPARK = (
    "cojoin.session.",
    "cojoin.spark.",
    "cojoin.checkpoints.",
    "cojoin.kafka.",
    "cojoin.sql.",
    "cojoin.debugging.",
    "cojoin.api.write_state.",
)
"""The beginnings of the names of modules that import PySpark."""


def check_module(label: str, module: str) -> None:
    """Check that the packages are installed that a module of cojoin's imports; a message names what needs them.

    Raises:
        EnvironmentSetupError: One is missing, or is too old.
    """
    if f"{module}.".startswith(_MODULES_OF_SPARK):
        check_packages(label, "spark")


def imported(package: str, modules: Mapping[str, str], name: str) -> Any:
    """Return what a package imports at its first use; ``modules`` has the module of each of its names.

    Raises:
        AttributeError: The package does not have the name.
        EnvironmentSetupError: A package that the module needs is missing, or is too old.
    """
    if name not in modules:
        msg = f"module {package!r} has no attribute {name!r}{did_you_mean(name, modules)}"
        raise AttributeError(msg)
    check_module(f"{package}.{name}", modules[name])
    return getattr(import_module(modules[name]), name)


def missing_packages(label: str, extra: Extra, *packages: str) -> EnvironmentSetupError:
    """Return the error for packages that are not installed.

    >>> print(missing_packages("plot_watermarks", "plots", "matplotlib"))
    plot_watermarks: expected the package matplotlib, found none; run: pip install "cojoin[plots]"
    """
    several = "s" if len(packages) > 1 else ""
    return EnvironmentSetupError(
        f'{label}: expected the package{several} {", ".join(packages)}, found none; run: pip install "cojoin[{extra}]"'
    )


def check_pandas(label: str) -> None:
    """Check that pandas is installed, and new enough, before rows come from a DataFrame of pandas' or become one."""
    installed = _version("pandas") if is_installed("pandas") else "none"
    if installed == "none" or _is_too_old("pandas", installed):
        raise _too_old(label, "pandas", installed, "pandas>=2.2")


def _is_too_old(package: str, installed: str) -> bool:
    return () < release_of(installed) < _OLDEST[package]


def _too_old(label: str, package: str, installed: str, cure: str) -> EnvironmentSetupError:
    oldest = ".".join(map(str, _OLDEST[package]))
    return EnvironmentSetupError(
        f'{label}: expected {package} {oldest} or later, found {installed}; run: pip install "{cure}"'
    )


def release_of(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version; none if it begins with no number.

    >>> release_of("4.3.0.dev1"), release_of("25"), release_of("odd")
    ((4, 3, 0), (25,), ())
    """
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it; of a part of a package, its parents are.

    >>> is_installed("pyarrow"), is_installed("pyarrow.no_such_part")
    (True, False)
    """
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        # The package that would contain it is missing, or a program has put something into its place.
        return False


def _version(package: str) -> str:
    """Return the version of a package; "" if it is not known, as where it was not installed by pip."""
    # An imported module has it at once.
    imported = getattr(sys.modules.get(package), "__version__", None)
    try:
        return version(package) if imported is None else str(imported)
    except PackageNotFoundError:
        return ""

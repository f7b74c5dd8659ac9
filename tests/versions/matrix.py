"""How many tests pass with which versions of Spark and of the libraries.

    python -m tests.versions.matrix [NAME ...]

The names are ``spark-4-0``, ``spark-4-1``, ``spark-4-2``, ``oldest`` and ``newest``; without one, all are run, which
takes about ten minutes for each. Topics, a cluster and Connect are left out: the first need Spark 4.2, the others have
versions of their own to agree upon.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.seeds import SEED
from tests.versions.environments import EVERY, Environment

__all__ = ["run_all"]

_TESTS = Path(__file__).resolve().parents[1]
_WHICH = "spark and not slow and not kafka and not cluster and not connect"
_APART = ["tests/kafka", "tests/test_on_connect.py", "tests/test_readme.py", "tests/benchmarks", "tests/versions"]
"""The first can't be imported without Spark 4.2; the others start processes of their own, or measure."""


def run_all(environment: Environment, share: int = 1) -> tuple[str, int]:
    """Run the tests that need Spark in an environment; return its versions, and how many tests passed.

    Args:
        environment: The environment.
        share: How many parts the test files make, of which the run's seed draws one.
    """
    found = [str(path) for path in sorted(_TESTS.rglob("test_*.py")) if "mark.spark" in path.read_text("utf-8")]
    drawn = [] if share == 1 else sorted(random.Random(SEED).sample(found, len(found) // share))
    return environment.run_tests("-m", _WHICH, *(f"--ignore={each}" for each in _APART), *drawn)


def main() -> None:
    """Run the environments that are named, print a line for each, and fail where any test did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(each.name for each in EVERY)], metavar="NAME")
    names = parser.parse_args().names
    failed = []
    for each in EVERY:
        if not names or each.name in names:
            began = time.monotonic()
            try:
                versions, passed = run_all(each)
                said = f"{versions}: {passed} passed"
            except AssertionError as failure:
                failed.append(each.name)
                said = f"{failure}\nfailed"
            print(f"{each.name}: {said} in {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
    if failed:
        sys.exit(f"tests failed with the versions {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""The seed of everything random in a run: Hypothesis's examples, kills, restorations.

``COJOIN_SEED`` sets it; else a run draws one. It stands at the top of a run and under each failure, and the processes
that a run starts have the same, since it goes into the environment.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SEED", "SEED_TEXT", "drawn"]

_NAME = "COJOIN_SEED"
SEED = int(os.environ.setdefault(_NAME, str(random.randrange(1_000_000))))
SEED_TEXT = f"{_NAME}={SEED}"


def drawn(values: Iterable[Any], count: int) -> list[Any]:
    """Return a slow test's parameters, of which the seed draws as many as the slow circle runs.

    The others are marked ``more``: ``.ci/run --slow --all`` runs them, too, and over some days each is drawn.

    Args:
        values: The parameters; a tuple stands for one of each argument.
        count: How many are drawn.
    """
    import pytest  # The benchmarks, which draw nothing, do without it.

    every = list(values)
    chosen = random.Random(f"{SEED} {every}").sample(range(len(every)), min(count, len(every)))
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=() if at in chosen else pytest.mark.more)
        for at, value in enumerate(every)
    ]

"""The seed of everything random in a run: Hypothesis's examples, kills, restorations.

``COJOIN_SEED`` sets it; else a run draws one. It stands at the top of a run and under each failure, and the processes
that a run starts have the same, since it goes into the environment.
"""

from __future__ import annotations

import os
import random

__all__ = ["SEED", "SEED_TEXT"]

_NAME = "COJOIN_SEED"
SEED = int(os.environ.setdefault(_NAME, str(random.randrange(1_000_000))))
SEED_TEXT = f"{_NAME}={SEED}"

"""What all tests of the simulation share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Cleaning that fails is logged, and here it often fails."""
    logger = logging.getLogger("cojoin")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)

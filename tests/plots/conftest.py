"""Pictures are drawn without a screen, and closed after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("matplotlib").use("Agg")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    from matplotlib import pyplot as plt

    yield
    plt.close("all")

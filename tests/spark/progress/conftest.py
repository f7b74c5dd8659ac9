"""What the tests of progress share: a day that is always the same."""

from __future__ import annotations

import pytest

from cojoin.spark.progress import postfix
from tests.spark.progress.runs import Calendar


@pytest.fixture(autouse=True)
def calendar(monkeypatch) -> None:
    """Let the line take ``Calendar``'s day for today: two months after what is replayed, unless a test moves it."""
    monkeypatch.setattr(postfix, "datetime", Calendar)

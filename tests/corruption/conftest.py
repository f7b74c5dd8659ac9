"""What the corruption tests share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writes stay in memory: nothing loses power here, and most of the time would go there."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

"""These tests need a session of Spark Connect, which a process has alone."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them out without ``--connect``."""
    if not config.getoption("connect"):
        for item in items:
            if item.get_closest_marker("connect"):
                item.add_marker(pytest.mark.skip(reason="runs in a process of its own, by tests/test_on_connect.py"))

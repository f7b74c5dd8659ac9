"""The schema registry of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def registry() -> Iterator[RegistryServer]:
    """The schema registry of all tests; each test has subjects of its own."""
    with RegistryServer() as running:
        yield running

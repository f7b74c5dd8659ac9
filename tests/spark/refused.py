"""What a refusal must say."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import cojoin as cj

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def refused(*parts: str, kind: type[cj.CojoinError] = cj.ConfigurationError) -> Iterator[None]:
    """Expect an error whose message holds these texts."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert all(part in message for part in parts), message

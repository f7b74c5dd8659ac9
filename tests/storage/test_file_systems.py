"""File systems by the URIs that Spark spells."""

from __future__ import annotations

import pytest

from cojoin.errors import ConfigurationError
from cojoin.storage.file_systems import file_system


@pytest.mark.parametrize("uri", ["/lake/a%20b", "file:/lake/a%20b", "file:///lake/a%20b"])
def test_a_local_path_is_one_however_it_is_spelled(uri: str) -> None:
    system, path = file_system(uri, "segments")
    assert (system.type_name, path) == ("local", "/lake/a b")


def test_one_that_pyarrow_does_not_know_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"segments: .*can't reach dbfs://lake"):
        file_system("dbfs://lake/a", "segments")

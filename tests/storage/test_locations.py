from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cojoin.errors import ConfigurationError
from cojoin.storage.locations import as_location


@pytest.mark.parametrize(
    ("declared", "location"),
    [
        ("lake.trades", "lake.trades"),
        ("s3a://lake/trades", "s3a://lake/trades"),
        (Path("/lake/trades"), "/lake/trades"),
        (Path("trades"), "./trades"),
        (Path("C:/lake"), "C:/lake"),
    ],
)
def test_a_path_is_a_text_and_never_a_tables_name(declared: Any, location: str) -> None:
    assert as_location(declared, "source") == location


@pytest.mark.parametrize("declared", ["", " ", None, 3, b"/x", ["/x"]])
def test_what_is_no_location_is_refused(declared: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"source: expected a path as a text or a pathlib\.Path, got "):
        as_location(declared, "source")


def test_a_url_that_pathlib_has_changed_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="pathlib drops a slash of a URL: got 's3:/lake/x'"):
        as_location(Path("s3://lake/x"), "source")

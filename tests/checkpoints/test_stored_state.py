"""Errors of Spark's own state: a missing one is told from a damaged one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from cojoin.checkpoints.stored_state import _read_values
from cojoin.errors import CheckpointError
from cojoin.storage.local_store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path


class Unreadable:
    """The values of a state, whose reading fails."""

    def __init__(self, message: str) -> None:
        self.error = PySparkException(message)

    def mapInArrow(self, *_: Any) -> Unreadable:  # noqa: N802 - Spark's name
        return self

    def collect(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] 3.delta does not exist.", "is missing; it has"),
        ("java.io.FileNotFoundException: 3.delta", "is missing; it has"),
        ("[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_KEY_SIZE] key size -7", "can't be read: .* key size -7; put"),
        ("[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] other keys", "can't be read: .* other keys; put spark/state back"),
    ],
)
def test_a_state_that_is_damaged_is_not_called_missing(tmp_path: Path, message: str, said: str) -> None:
    values: Any = Unreadable(message)
    with pytest.raises(CheckpointError, match=f"Spark's own state after batch 7 {said}"):
        _read_values(values, LocalStore(str(tmp_path)), 7, dict)


def test_another_error_of_spark_is_left_as_it_is(tmp_path: Path) -> None:
    values: Any = Unreadable("Connection refused")
    with pytest.raises(PySparkException, match="Connection refused"):
        _read_values(values, LocalStore(str(tmp_path)), 7, dict)

"""The outputs of ``cojoin run``: a Delta table, a folder of parquet files, or a sink that the job's file names.

A sink with settings, such as a topic with its login, is written in Python, where its arguments have their documentation
and a password is not among the words of a command.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, did_you_mean
from cojoin.spark.sources.secrets import without_login
from cojoin.storage.locations import is_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = ["Output"]

_KINDS = ("delta", "parquet")


@dataclass(frozen=True)
class Output:
    """An output as it is given on the command line.

    Attributes:
        kind: ``delta`` or ``parquet``; None for a sink of the job's file.
        place: A path or a table's name, or the name of the sink.
    """

    kind: str | None
    place: str

    @classmethod
    def parse(cls, text: str) -> Output:
        """Read ``delta:PATH``, ``parquet:FOLDER``, or the name of a sink.

        Raises:
            ConfigurationError: The text has another form, or the kind is unknown.

        >>> Output.parse("delta:/lake/enriched")
        Output(kind='delta', place='/lake/enriched')
        """
        kind, colon, place = text.partition(":")
        if not colon and text.isidentifier():
            return cls(None, text)
        if not colon or not place:
            msg = (
                f"expected delta:PATH, parquet:FOLDER, or the name of a sink in the job's file, got "
                f"{without_login(text)!r}"
            )
            raise ConfigurationError(msg)
        if kind not in _KINDS:
            topic = "; a topic is a sink in the job's file: write NAME = cojoin.sinks.kafka(...) there, and NAME here"
            msg = f"expected delta or parquet before the colon, got {kind!r}{did_you_mean(kind, _KINDS)}"
            raise ConfigurationError(msg + (topic if kind == "kafka" else ""))
        return cls(kind, place)

    def __str__(self) -> str:
        return without_login(self.place if self.kind is None else f"{self.kind}:{self.place}")

    def check_place(self, conf: Mapping[str, str]) -> None:
        """Check that a table's name has a catalog, since the embedded Spark forgets its tables when it ends.

        Args:
            conf: The settings of Spark.

        Raises:
            ConfigurationError: The output is a table's name, and no setting is about a catalog.
        """
        if self.kind != "delta" or is_path(self.place):
            return
        if not any("catalog" in name or "hive" in name or "metastore" in name for name in conf):
            msg = (
                f"{self}: this is a table's name, and --conf sets no catalog; "
                f"write a path, such as delta:./{self.place}"
            )
            raise ConfigurationError(msg)

    def sink(self, module: ModuleType, option: str) -> Any:
        """Return the sink, as ``Joined.start`` takes it.

        Args:
            module: The module of the job.
            option: The option, for messages.

        Raises:
            ConfigurationError: The module has no such name, or it is not a sink.
        """
        from cojoin.spark.sinks import sinks  # noqa: PLC0415 - so that --help is quick

        if self.kind is not None:
            return sinks.delta(self.place) if self.kind == "delta" else sinks.parquet(self.place)
        found = vars(module).get(self.place)
        if found is None:
            names = [name for name, value in vars(module).items() if isinstance(value, sinks.Sink)]
            msg = (
                f"{option} {self.place}: {module.__file__} has no {self.place!r}{did_you_mean(self.place, names)}; "
                f"expected delta:PATH, parquet:FOLDER, or the name of a sink in this file"
            )
            raise ConfigurationError(msg)
        if not isinstance(found, sinks.Sink) and not _takes_batches(found):
            # The value is not shown: it may hold a login.
            msg = (
                f"{option} {self.place}: expected a sink, such as cojoin.sinks.kafka(...), or a function that takes "
                f"(DataFrame, batch_id), got {type(found).__name__}"
            )
            raise ConfigurationError(msg)
        return found


def _takes_batches(found: Any) -> bool:
    try:
        inspect.signature(found).bind(None, 0)
    except (TypeError, ValueError):
        return False
    return True

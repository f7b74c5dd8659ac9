"""``cojoin diff``: two versions of a join over the same history; the exit code says whether they differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from cojoin.api.diff import diff
from cojoin.cli.embedded_spark import session_on_demand
from cojoin.cli.jobs import load_job
from cojoin.cli.run_report import say, tell
from cojoin.comparison.difference import difference_text
from cojoin.errors import ConfigurationError
from cojoin.storage.file_statistics import columns_with_statistics

if TYPE_CHECKING:
    from cojoin.api.joined import Joined
    from cojoin.cli.arguments import Arguments
    from cojoin.comparison.difference import Difference
    from cojoin.engine.functions import OutputTag

__all__ = ["run_diff"]

_KINDS = ("changed", "only_in_a", "only_in_b")


def run_diff(arguments: Arguments) -> int:
    """Compare two jobs, and return the exit code: 0 if there is no difference, else 1."""
    _check_folder(arguments.write)
    with session_on_demand(tell, arguments) as spark:
        a = load_job(arguments.a, spark, arguments.settings)
        b = a if arguments.a == arguments.b else load_job(arguments.b, spark, arguments.settings)
        tell(f"a is {':'.join(arguments.a)}, b is {':'.join(arguments.b)}.")
        found = diff(
            a,
            b,
            output=_output(a, arguments.output),
            keys=arguments.keys,
            columns=arguments.columns,
            examples=arguments.examples,
        )
        say(difference_text(found))
        if arguments.write is not None and not found.equal:
            _write(found, Path(arguments.write))
            say()
            tell(f"All rows that differ are in {arguments.write}.")
        return 0 if found.equal else 1


def _output(joined: Joined, name: str) -> Any:
    """Return an output by its name; a side output is asked for by its tag."""
    tags: dict[str, OutputTag] = {tag.tag_id: tag for tag in joined.plan.side_outputs}
    return tags.get(name, name)


def _check_folder(folder: str | None) -> None:
    if folder is None:
        return
    if "://" in folder:
        msg = f"--write {folder}: expected a directory of this machine"
        raise ConfigurationError(msg)
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        msg = f"--write {folder}: it exists and is not empty; choose another directory"
        raise ConfigurationError(msg)


def _write(found: Difference, folder: Path) -> None:
    for name, output in found.outputs.items():
        for kind in _KINDS:
            if not getattr(output.counts, kind):
                continue
            place, rows = folder / name / kind, getattr(output, kind)
            if isinstance(rows, pa.Table):
                place.mkdir(parents=True)
                # Readers that filter would pass over NaN (``file_statistics``).
                kept = columns_with_statistics(rows.schema)
                pq.write_table(rows, place / "rows.parquet", write_statistics=kept)
            else:
                rows.write.parquet(str(place.absolute()))

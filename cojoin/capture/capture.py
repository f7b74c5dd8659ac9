"""``capture``: writes a test from real rows. ``cojoin.testing.capture`` is its public name.

It replays the rows of a few keys of a run, each key alone, in the test harness, and writes rows and output as a test. A
key whose rows alone have another output than among all keys is refused: its function depends on something else. It
costs one run over all rows to classify the keys, and a harness's run for each key that is captured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.capture.captured_keys import name_of, write_captured
from cojoin.capture.history import is_checkpoint, opened
from cojoin.capture.key_choice import CASES, Case, Reduction, applicable, keys_of_checkpoint, keys_of_run
from cojoin.capture.pytest_file import Purpose, imported_function, test_text
from cojoin.engine.display import text_table
from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.values.arguments import check_word
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from cojoin.api.joined import Joined
    from cojoin.checkpoints.checkpoint import Snapshot
    from cojoin.embedded.steps import Step
    from cojoin.engine.plan import Plan

_MOST_CHARACTERS = 100
"""The most characters of a path in a message."""


@dataclass(frozen=True, repr=False)
class CapturedTest:
    """The test that ``capture`` has written.

    Attributes:
        path: The test file.
        rows_path: The file next to it with the rows and the output.
        keys: The cases that each captured key covers, by the key as text.
        sizes: The number of rows of each key.
        missing: The wanted cases that no captured key covers.
    """

    path: Path
    rows_path: Path
    keys: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]
    missing: tuple[str, ...]

    def __repr__(self) -> str:
        rows = [(key, f"{self.sizes[key]:,}", ", ".join(cases)) for key, cases in self.keys.items()]
        lines = [f"{self.path}, {self.rows_path.name}", text_table([("key", "rows", "covers"), *rows])]
        if self.missing:
            lines.append(f"no captured key covers: {', '.join(self.missing)}")
        return "\n".join(lines)


def capture(
    source: Joined | Iterable[Step] | Snapshot | str | PathLike[str],
    path: str | PathLike[str],
    *,
    joined: Joined | None = None,
    keys: Iterable[Any] | None = None,
    covers: Sequence[Case] = CASES,
    most: int = 10,
    span: tuple[datetime, datetime] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    mask: Sequence[str] = (),
    function: str | Callable[[], Any] | None = None,
    overwrite: bool = False,
) -> CapturedTest:
    """Write a pytest file that replays real rows of a few keys, and expects their output.

    The test needs neither Spark nor Java. It imports the function, runs each key in the test harness, and compares the
    output, the side outputs and the rejected rows. The rows and the expected output are in a JSON file next to it, one
    line each. The expected output is that of the function or join as it is now: read it before you commit it.

    Args:
        source: Where the rows are:

            - a function or join over inputs in memory, or over static inputs of Spark: one run to the end of time;
            - ``joined.steps(...)``: a stream, in which rows are late again that were late;
            - a query's checkpoint with ``joined`` and ``keys``: the batches after a snapshot, with the key's state
              before them and the watermarks of the real run.
        path: The test file, ``test_<name>.py``. The rows are written to ``test_<name>.json``.
        joined: For a checkpoint, the join or function that the query ran, as it was started.
        keys: The keys: values of the key column, or tuples if there are several. None chooses keys by ``covers``.
        covers: The cases of which the chosen keys are examples, those with the fewest rows first: ``"match"``,
            ``"no_match"``, ``"tie"`` (rows with one event time), ``"late"``, ``"rejected"`` (for another reason),
            ``"versions"`` (several right rows), ``"null"``, ``"timer"`` (one fired) and ``"side_output"``.
        most: The largest number of keys to choose.
        span: A start and an end of event time, datetimes with a time zone; rows outside are left out. The
            expected output is that of the rows within alone.
        columns: The columns to keep by input, such as ``{"trades": ["amount"]}``. Keys, event times and sequences are
            always kept, and an input that is not named keeps all columns.
        mask: Columns of texts, binary values or whole numbers whose values are replaced by numbered pseudonyms, equal
            values by equal ones. If one is a key column, both inputs' are masked. The expected output is that of
            the masked rows.
        function: A callable that makes the function in the test: a class or function of a module, or its name,
            such as ``"jobs.tiers:make"``. None takes the function's class, with the arguments that the instance shows.
        overwrite: Whether existing files are replaced.

    Returns:
        The files, the keys with what each covers, and the cases that no key covers.

    Raises:
        ConfigurationError: A key has no rows, an argument is invalid, a file already exists, a test could not import
            the function, or the function does something else with a key's rows alone than among all keys.
        SchemaError: A join needs a column that is left out.
        FunctionError: The function raised an error.

    Example:
        >>> from cojoin.testing import capture
        >>> test = capture(pair.process(Tiers(), OUTPUT), "tests/test_tiers.py", keys=[7, 12])  # doctest: +SKIP
    """
    test = _checked_path(path, overwrite=overwrite)
    if not isinstance(covers, (list, tuple)):
        msg = f"covers: expected a list of cases, such as ['late', 'tie'], got {covers!r}"
        raise ConfigurationError(msg)
    if not isinstance(mask, str) and not (isinstance(mask, (list, tuple)) and all(isinstance(x, str) for x in mask)):
        msg = f"mask: expected a list of columns, got {mask!r}"
        raise ConfigurationError(msg)
    for case in covers:
        check_word("covers", case, CASES)
    if type(most) is not int or most < 1:
        msg = f"most: expected a whole number above zero, got {most!r}"
        raise ConfigurationError(msg)
    source, plan = opened(source, joined)
    _check_inputs(plan)
    operation: Any = plan.operation
    made = None
    if isinstance(operation, KeyedCoProcess):
        made = imported_function(operation.function, operation.side_outputs, function)
    elif function is not None:
        msg = f"function: {name_of(plan)} is a join, which needs none; leave it out"
        raise ConfigurationError(msg)
    reduction = Reduction(span, columns, mask)
    if is_checkpoint(source):
        chosen = keys_of_checkpoint(source, joined, keys, reduction)
    else:
        chosen = keys_of_run(source, keys, covers, most, reduction)
    counts = Counter(case for each in chosen.keys.values() for case in each.covers)
    count = f"{len(chosen.keys)} captured key{'' if len(chosen.keys) == 1 else 's'}"
    notes = [f"Only rows from {span[0].isoformat()} to before {span[1].isoformat()} were taken."] if span else []
    notes += [f"The values of these columns are pseudonyms: {', '.join(mask)}."] if mask else []
    cases = [(case, counts[case]) for case in CASES if counts[case]]
    rows = test.with_suffix(".json")
    text = test_text(
        chosen.plan, made, test, Purpose(f"{name_of(chosen.plan)} on {count}", chosen.origin, cases, notes)
    )
    _write(rows, write_captured((chosen.plan.left.name, chosen.plan.right.name), chosen.keys))
    _write(test, text)
    possible = applicable(chosen.plan)
    missing = tuple(case for case in covers if case in possible and not counts[case])
    return CapturedTest(test, rows, {key: each.covers for key, each in chosen.keys.items()}, chosen.sizes, missing)


def _check_inputs(plan: Plan) -> None:
    """Check that a test harness can have the inputs, key by key."""
    if not plan.left.key:
        msg = (
            f"capture: a test is made of the rows of a few keys, and inputs {plan.left.name!r} and {plan.right.name!r} "
            f"have no key (key=()); check_determinism() and diff() look at all rows"
        )
        raise ConfigurationError(msg)
    for spec in plan.inputs:
        if spec.axis is not None:
            msg = (
                f"capture: the event times of input {spec.name!r} are not timestamps (time_zone=, time_unit=), which a "
                f"captured row has apart from its columns; connect the same rows with a column of timestamps"
            )
            raise ConfigurationError(msg)
        if spec.changes is not None:
            msg = (
                f"capture: the rows of input {spec.name!r} are versions and deletes of a table, which the test harness "
                f"does not make of rows; connect them with event_time= and name the deletes in temporal_join(deletes=)"
            )
            raise ConfigurationError(msg)
        if spec.static and spec.event_time is None:
            msg = (
                f"capture: input {spec.name!r} is a static table without event time, which the test harness does not "
                f"have; connect its rows with an event_time= before that of all other rows"
            )
            raise ConfigurationError(msg)


def _checked_path(path: Any, *, overwrite: bool) -> Path:
    """Return the path of the test file; an error if pytest would not collect it, or it can't be written."""
    if not isinstance(path, (str, PathLike)) or not isinstance(fspath(path), str):
        msg = f"path: expected the path of a test file, such as 'tests/test_tiers.py', got {path!r}"
        raise ConfigurationError(msg)
    test = Path(path)
    if test.suffix != ".py" or not (test.stem.startswith("test_") or test.stem.endswith("_test")):
        msg = f"path: pytest collects files named test_<name>.py, got {test.name!r}"
        raise ConfigurationError(msg)
    try:
        has_folder = _exists(test.parent) and test.parent.is_dir()
        # The longest name is that under which the rows are written before they count.
        _exists(_temporary(test.with_suffix(".json")))
        existing = [file for file in (test, test.with_suffix(".json")) if _exists(file)]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        msg = (
            f"path: {_shortened(str(test))!r} can't be a file: {reason}; choose another, such as 'tests/test_tiers.py'"
        )
        raise ConfigurationError(msg) from error
    if not has_folder:
        msg = f"path: the folder {str(test.parent)!r} of {test.name} does not exist; make it, or choose another"
        raise ConfigurationError(msg)
    for file in existing:
        if not overwrite:
            msg = f"path: {str(file)!r} already exists; choose another name, or replace it with overwrite=True"
            raise ConfigurationError(msg)
    return test


def _write(path: Path, text: str) -> None:
    """Write a file, so that another reader sees the old content or the new one."""
    temporary = _temporary(path)
    try:
        temporary.write_text(text, "utf-8", newline="\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        msg = f"path: {str(path)!r} can't be written: {error.strerror or error}"
        raise ConfigurationError(msg) from error


def _exists(path: Path) -> bool:
    """Return whether a file or folder exists; a path that can't be one raises ``OSError`` or ``ValueError``."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _temporary(path: Path) -> Path:
    """Return the path at which a file is written before it replaces the former one."""
    return path.with_name(f".{path.name}.new")


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text):,} characters)"

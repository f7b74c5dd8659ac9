"""The text of a test that replays captured keys: formatted, and short enough to be read.

The operation is written with the settings that it ran with. Watermarks are not among them, because the captured
batches bring theirs. Lists of columns and of arguments have one line each, so that no formatter's line length matters.
"""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.values.types import schema_to_ddl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from cojoin.capture.imported_function import ImportedFunction
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan

__all__ = ["Purpose", "test_text"]

_WIDTH = 88
_INDENT = "    "
_OURS = ("CAPTURED", "CapturedKeys", "Harness", "HarnessInput", "OutputTag", "harness", "pytest")
_UNITS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000, "millisecond": 1_000}


@dataclass(frozen=True)
class Purpose:
    """What the docstring of a test tells.

    Attributes:
        title: What is tested, such as ``"Tiers on 12 keys"``.
        origin: Where the rows come from.
        cases: Each case that a key covers, with the number of its keys.
        told: Further sentences.
    """

    title: str
    origin: str
    cases: Sequence[tuple[str, int]]
    told: Sequence[str] = ()


def test_text(plan: Plan, function: ImportedFunction | None, path: Path, purpose: Purpose) -> str:
    """Return the text of a test file.

    Args:
        plan: What is tested, with inputs as the harness takes them.
        function: How the test makes the function; None for a join.
        path: The path of the test, which tells in which project it is.
        purpose: What its docstring tells.
    """
    operation: Any = plan.operation
    inputs = [f"input{number}={_input(spec)}" for number, spec in enumerate(plan.inputs, start=1)]
    ours = {"CapturedKeys", "Harness", "HarnessInput"}
    if isinstance(operation, KeyedCoProcess):
        assert function is not None
        tags = [
            _own_name(known) if known is not None else _call("OutputTag", [_text(tag.tag_id), _columns(tag.schema)])
            for tag, known in zip(operation.side_outputs, function.tags, strict=True)
        ]
        made = _call(_own_name(function.call), function.arguments)
        settings = [f"side_outputs={_list(tags)}"] if tags else []
        if operation.order != "event_time":
            settings.append(f"order={_text(operation.order)}")
        if operation.processing_time_timers is not None:
            settings.append(f"processing_time_timers={operation.processing_time_timers}")
        body = _call("Harness", [made, _columns(operation.output), *inputs, *settings], several=True)
        needs_tag = None in function.tags
    else:
        name = type(operation).__name__
        ours.add(name)
        body = _call("Harness.of", [_call(name, _settings(operation)), *inputs], several=True)
        needs_tag = False
    return "\n".join(
        [
            _docstring(purpose, path),
            "",
            "from __future__ import annotations",
            "",
            *_imports(ours, function, needs_tag=needs_tag, path=path),
            "",
            "CAPTURED = CapturedKeys.read(__file__)",
            "",
            "",
            "def harness() -> Harness:",
            '    """Return a new harness; the captured batches bring their watermarks."""',
            f"    return {textwrap.indent(body, _INDENT).lstrip()}",
            "",
            "",
            '@pytest.mark.parametrize("key", CAPTURED.keys)',
            "def test_captured_key(key: str) -> None:",
            '    """The rows of the key make the rows come out that were captured."""',
            "    CAPTURED.check(key, harness())",
            "",
        ]
    )


def _docstring(purpose: Purpose, path: Path) -> str:
    cases = ", ".join(f"{name} ({count})" for name, count in purpose.cases)
    where = (
        f"The rows and what came out of them are in ``{path.with_suffix('.json').name}``, written by "
        f"``cojoin.testing.capture`` from {purpose.origin}. If the result is meant to change, capture again with "
        f"``overwrite=True``, and read the difference before you commit it."
    )
    paragraphs = [where, *([f"Cases, each with its number of keys: {cases}."] if cases else []), *purpose.told]
    wrapped = ["\n".join(textwrap.wrap(each, _WIDTH, break_on_hyphens=False)) for each in paragraphs]
    return '"""' + "\n\n".join([f"{purpose.title}.", *wrapped]) + '\n"""'


def _imports(ours: Iterable[str], function: ImportedFunction | None, *, needs_tag: bool, path: Path) -> list[str]:
    """Return the lines that import, in the order that isort and ruff want."""
    root = _project(path)
    modules = {"cojoin.testing": sorted(ours, key=_isort_key)} | ({"cojoin": ["OutputTag"]} if needs_tag else {})
    if function is not None:
        names = sorted(function.names, key=_isort_key)
        modules[function.module] = [name if name not in _OURS else f"{name} as {_own_name(name)}" for name in names]
    sections: dict[bool, list[str]] = {False: [], True: []}
    for module in sorted(modules):
        line = f"from {module} import {', '.join(modules[module])}"
        if len(line) > _WIDTH:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in modules[module]) + ")"
        sections[_is_of_project(module.partition(".")[0], root)].append(line)
    own = ["", *sections[True]] if sections[True] else []
    return ["import pytest", *sections[False], *own]


def _isort_key(name: str) -> tuple[int, str]:
    """Return where isort puts a name: constants, then classes, then the rest."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name


def _project(path: Path) -> Path:
    """Return the folder of the project to which a test belongs: the nearest one with a project's file."""
    folder = path.resolve().parent
    for each in (folder, *folder.parents):
        if any((each / name).exists() for name in ("pyproject.toml", "ruff.toml", ".ruff.toml")):
            return each
    return Path.cwd()


def _is_of_project(package: str, root: Path) -> bool:
    """Return whether a package is the project's own, which stands in the last section of the imports."""
    places = (root, root / "src")
    return any((place / package).is_dir() or (place / f"{package}.py").exists() for place in places)


def _own_name(name: str) -> str:
    """Return a user's name as the test has it; one that the test has itself gets another."""
    first, dot, rest = name.partition(".")
    return f"{first}UnderTest{dot}{rest}" if first in _OURS else name


def _input(spec: InputSpec) -> str:
    arguments = [_columns(spec.schema), f"key={_names(spec.key)}"]
    if spec.event_time != "event_time":
        arguments.append(f"event_time={_text(spec.event_time)}")
    arguments.append(f"name={_text(spec.name)}")
    if spec.sequence:
        arguments.append(f"sequence={_names(spec.sequence)}")
    if spec.max_ahead_ms is not None:
        arguments.append(f"max_ahead={_duration(spec.max_ahead_ms * 1_000)}")
    if spec.late is not None:
        arguments.append(f"late={_text(spec.late)}")
    if spec.null_key != "reject":
        arguments.append(f"null_key={_text(spec.null_key)}")
    return _call("HarnessInput", arguments, several=True)


def _settings(join: Any) -> list[str]:
    """Return the arguments of a join that are not the defaults."""
    settings = []
    for each in fields(join):
        value = getattr(join, each.name)
        if each.default is MISSING or value != each.default:
            if isinstance(value, timedelta):
                spelled = _duration(value // timedelta(microseconds=1))
            elif isinstance(value, (tuple, list)):
                spelled = f"({', '.join(map(_text, value))})"
            else:
                spelled = _text(value)
            settings.append(f"{each.name}={spelled}")
    return settings


def _duration(micros: int) -> str:
    unit, size = next(((unit, size) for unit, size in _UNITS.items() if micros % size == 0), ("microsecond", 1))
    count = micros // size
    return _text(f"{count} {unit}{'' if abs(count) == 1 else 's'}")


def _names(names: Sequence[str]) -> str:
    return _text(names[0]) if len(names) == 1 else _list([_text(name) for name in names])


def _list(items: Sequence[str]) -> str:
    line = f"[{', '.join(items)}]"
    if len(line) <= _WIDTH // 2 and "\n" not in line:
        return line
    return "[\n" + "".join(f"{textwrap.indent(item, _INDENT)},\n" for item in items) + "]"


def _text(value: Any) -> str:
    """Return a value as Python's source, with double quotes where a formatter puts them."""
    text = repr(value)
    if isinstance(value, str) and '"' not in text and "\\'" not in text:
        return f'"{text[1:-1]}"'
    return text


def _columns(schema: pa.Schema) -> str:
    """Return columns as DDL, one a line, in quotes of their own."""
    lines = [f"{schema_to_ddl(schema.empty_table().select([place]).schema)}," for place in range(len(schema))]
    lines[-1] = lines[-1].removesuffix(",")
    return '"""\n' + "\n".join(lines).replace("\\", "\\\\").replace('"', '\\"') + '\n"""'


def _call(name: str, arguments: Sequence[str], *, several: bool = False) -> str:
    line = f"{name}({', '.join(arguments)})"
    if not arguments:
        return line
    if not several and "\n" not in line and len(line) <= _WIDTH // 2:
        return line
    return f"{name}(\n" + "".join(f"{textwrap.indent(each, _INDENT)},\n" for each in arguments) + ")"

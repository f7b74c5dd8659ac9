"""The text of a test that replays captured keys: formatted, and short enough to be read.

The operation is written with the settings that it ran with, except for watermarks, which the captured batches have.
Lists of columns and of arguments have one line each, so that no formatter's line length matters.

A test imports a function's class by its module and name. Arguments are written into the test if they can be read from
the instance: attributes that are named like the parameters of its class, with values that Python reads back from their
texts. Otherwise the user names a callable without parameters that makes the function.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojoin.engine.keyed_process import KeyedCoProcess
from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    import pyarrow as pa

    from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag
    from cojoin.engine.input_spec import InputSpec
    from cojoin.engine.plan import Plan


_WIDTH = 88
_INDENT = "    "
_OURS = ("CAPTURED", "CapturedKeys", "Harness", "HarnessInput", "OutputTag", "harness", "pytest")
_UNITS = {"day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000, "millisecond": 1_000}


@dataclass(frozen=True)
class Purpose:
    """A test's docstring: the title, the origin of the rows, each covered case with its number of keys, and notes."""

    title: str
    origin: str
    cases: Sequence[tuple[str, int]]
    notes: Sequence[str] = ()


def test_text(plan: Plan, function: ImportedFunction | None, path: Path, purpose: Purpose) -> str:
    """Return the text of a test file at a path; the function is None for a join."""
    operation: Any = plan.operation
    inputs = [f"input{number}={_input(spec)}" for number, spec in enumerate(plan.inputs, start=1)]
    ours = {"CapturedKeys", "Harness", "HarnessInput"}
    if isinstance(operation, KeyedCoProcess):
        assert function is not None
        tags = [
            _own_name(known) if known is not None else _call("OutputTag", [_literal(tag.tag_id), _columns(tag.schema)])
            for tag, known in zip(operation.side_outputs, function.tags, strict=True)
        ]
        made = _call(_own_name(function.call), function.arguments)
        settings = [f"side_outputs={_list(tags)}"] if tags else []
        if operation.order != "event_time":
            settings.append(f"order={_literal(operation.order)}")
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
            '    """The rows of the key have the output that was captured."""',
            "    CAPTURED.check(key, harness())",
            "",
        ]
    )


def _docstring(purpose: Purpose, path: Path) -> str:
    cases = ", ".join(f"{name} ({count})" for name, count in purpose.cases)
    where = (
        f"The rows and their output are in ``{path.with_suffix('.json').name}``, written by "
        f"``cojoin.testing.capture`` from {purpose.origin}. If the result is meant to change, capture again with "
        f"``overwrite=True``, and read the difference before you commit it."
    )
    paragraphs = [where, *([f"Cases, each with its number of keys: {cases}."] if cases else []), *purpose.notes]
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
    """Return isort's sort key of a name: constants, then classes, then the rest."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name


def _project(path: Path) -> Path:
    """Return the folder of the project to which a test belongs: the nearest one with a project's file."""
    folder = path.resolve().parent
    for parent in (folder, *folder.parents):
        if any((parent / name).exists() for name in ("pyproject.toml", "ruff.toml", ".ruff.toml")):
            return parent
    return Path.cwd()


def _is_of_project(package: str, root: Path) -> bool:
    """Return whether a package is the project's, which stands in the last section of the imports."""
    folders = (root, root / "src")
    return any((parent / package).is_dir() or (parent / f"{package}.py").exists() for parent in folders)


def _own_name(name: str) -> str:
    """Return the name of a user's function in the test; a name that the test uses itself is replaced."""
    first, dot, rest = name.partition(".")
    return f"{first}UnderTest{dot}{rest}" if first in _OURS else name


def _input(spec: InputSpec) -> str:
    arguments = [_columns(spec.schema), f"key={_names(spec.key)}"]
    if spec.event_time != "event_time":
        arguments.append(f"event_time={_literal(spec.event_time)}")
    arguments.append(f"name={_literal(spec.name)}")
    if spec.sequence:
        arguments.append(f"sequence={_names(spec.sequence)}")
    if spec.max_ahead_ms is not None:
        arguments.append(f"max_ahead={_duration(spec.max_ahead_ms * 1_000)}")
    if spec.late is not None:
        arguments.append(f"late={_literal(spec.late)}")
    if spec.known is not None and spec.known.column is not None:
        arguments.append(f"known_at={_literal(spec.known.column)}")
    elif spec.known is not None:
        arguments.append(f"delay={_duration(spec.known.delay_us)}")
    if spec.null_key != "reject":
        arguments.append(f"null_key={_literal(spec.null_key)}")
    return _call("HarnessInput", arguments, several=True)


def _settings(join: Any) -> list[str]:
    """Return the arguments of a join that are not the defaults."""
    settings = []
    for setting in fields(join):
        value = getattr(join, setting.name)
        if setting.default is MISSING or value != setting.default:
            if isinstance(value, timedelta):
                spelled = _duration(value // timedelta(microseconds=1))
            elif isinstance(value, (tuple, list)):
                spelled = f"({', '.join(map(_literal, value))})"
            else:
                spelled = _literal(value)
            settings.append(f"{setting.name}={spelled}")
    return settings


def _duration(micros: int) -> str:
    unit, size = next(((unit, size) for unit, size in _UNITS.items() if micros % size == 0), ("microsecond", 1))
    count = micros // size
    return _literal(f"{count} {unit}{'' if abs(count) == 1 else 's'}")


def _names(names: Sequence[str]) -> str:
    return _literal(names[0]) if len(names) == 1 else _list([_literal(name) for name in names])


def _list(items: Sequence[str]) -> str:
    line = f"[{', '.join(items)}]"
    if len(line) <= _WIDTH // 2 and "\n" not in line:
        return line
    return "[\n" + "".join(f"{textwrap.indent(item, _INDENT)},\n" for item in items) + "]"


def _columns(schema: pa.Schema) -> str:
    """Return columns as quoted DDL, one per line."""
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


_SECRET = ("pass", "secret", "token", "credential", "auth", "private", "key")


@dataclass(frozen=True)
class ImportedFunction:
    """The names that a test imports from a module, and the call that makes the function, such as ``Tiers(limit=5)``.

    ``tags`` has the expression of each side output's tag, or None if no name in the module stands for it.
    """

    module: str
    names: tuple[str, ...]
    call: str
    arguments: tuple[str, ...]
    tags: tuple[str | None, ...]


def imported_function(
    function: KeyedCoProcessFunction, tags: Sequence[OutputTag], named: str | Callable[[], Any] | None
) -> ImportedFunction:
    """Return the imports and the expression by which a test makes a function that has run.

    ``named`` is the user's callable that makes it without arguments, or its name, such as ``"jobs.tiers:make"``. An
    error if a test can't import it, or its arguments are not known.
    """
    maker: Any = type(function) if named is None else named
    if isinstance(maker, str):
        module, _, path = maker.partition(":")
        if not module or not path:
            msg = f"function: expected a module and a name, such as 'jobs.tiers:Tiers', got {maker!r}"
            raise ConfigurationError(msg)
        maker = None
    else:
        module, path = _place(maker, type(function).__name__)
    factory = _resolve(module, path, maker)
    arguments = _arguments(function, factory) if named is None else ()
    if named is not None:
        _check_maker(factory, function, f"{module}:{path}")
    spelled = [_tag_name(tag, sys.modules[module], path, factory) for tag in tags]
    names = {path.partition(".")[0], *(each.partition(".")[0] for each in spelled if each is not None)}
    return ImportedFunction(module, tuple(sorted(names)), path, arguments, tuple(spelled))


def _place(maker: Any, name: str) -> tuple[str, str]:
    """Return the module and the qualified name of a class or function."""
    module, path = getattr(maker, "__module__", None), getattr(maker, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        msg = f"function: expected a class, a function, or a name such as 'jobs.tiers:{name}', got {maker!r}"
        raise ConfigurationError(msg)
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is None or spec.name == "__main__":
            msg = (
                f"{path} is defined in a notebook or script (__main__), which a test can't import: move it into a "
                f"module, such as {path.partition('.')[0].lower()}.py next to the notebook, and import it"
            )
            raise ConfigurationError(msg)
        module = spec.name.removesuffix(".__main__") if spec.name.endswith(".__main__") else spec.name
    if "<locals>" in path or "<lambda>" in path:
        inner = path.rpartition(".")[2]
        msg = (
            f"{path} of {module} is defined inside a function, which a test can't import: define {inner} at the top "
            f"level of a module"
        )
        raise ConfigurationError(msg)
    return module, path


def _resolve(module: str, path: str, expected: Any) -> Any:
    try:
        value: Any = import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = (
            f"{path} can't be imported from {module}, as a test must do: {error}; name its place, such as "
            f"function='jobs.tiers:Tiers'"
        )
        raise ConfigurationError(msg) from error
    same = expected is None or value is expected or getattr(expected, "__module__", "") == "__main__"
    if not same:
        msg = f"{module}.{path} is another object than the function of the run; import the module again, and run again"
        raise ConfigurationError(msg)
    return value


def _check_maker(maker: Any, function: KeyedCoProcessFunction, name: str) -> None:
    try:
        made = maker()
    except Exception as error:
        msg = f"function: {name}() raised {type(error).__name__}: {error}; it must make the function without arguments"
        raise ConfigurationError(msg) from error
    if type(made).__qualname__ != type(function).__qualname__:
        wanted, got = type(function).__qualname__, type(made).__qualname__
        msg = f"function: {name}() makes a {got}, and the function that has run is a {wanted}"
        raise ConfigurationError(msg)


def _arguments(function: KeyedCoProcessFunction, kind: Any) -> tuple[str, ...]:
    """Return the arguments that make an equal instance, checked by making it."""
    name = type(function).__name__
    cure = f"write a function without parameters that returns it, and name that: function='{kind.__module__}:make'"
    state = getattr(function, "__dict__", {})
    arguments = {}
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name not in state:
            if parameter.default is parameter.empty:
                msg = f"{name}: its parameter {parameter.name!r} can't be read from the instance; {cure}"
                raise ConfigurationError(msg)
            continue
        value = state[parameter.name]
        if value == parameter.default and type(value) is type(parameter.default):
            continue
        if any(word in parameter.name.lower() for word in _SECRET):
            msg = f"{name}: its argument {parameter.name!r} may be secret, and must not stand in a test; {cure}"
            raise ConfigurationError(msg)
        if not _is_literal(value):
            kind_of = type(value).__name__
            msg = f"{name}: its argument {parameter.name!r} is a {kind_of}, which can't be written in a test; {cure}"
            raise ConfigurationError(msg)
        arguments[parameter.name] = value
    try:
        again = kind(**arguments)
        is_equal = getattr(again, "__dict__", {}) == state
    except Exception:  # noqa: BLE001 - whatever a user's constructor raises
        is_equal = False
    if not is_equal:
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        msg = f"{name}: {name}({shown}) does not make an instance with the same attributes; {cure}"
        raise ConfigurationError(msg)
    return tuple(f"{key}={_literal(value)}" for key, value in arguments.items())


def _is_literal(value: Any) -> bool:
    try:
        read = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return type(read) is type(value) and bool(read == value)


def _literal(value: Any) -> str:
    """Return a value as Python's source, with double quotes where a formatter puts them."""
    text = repr(value)
    if isinstance(value, str) and text.startswith("'") and '"' not in text and "\\'" not in text:
        return f'"{text[1:-1]}"'
    return text


def _tag_name(tag: OutputTag, module: ModuleType, path: str, factory: Any) -> str | None:
    """Return the name in the function's module, or of its class, that stands for a side output's tag."""
    owner = path if isinstance(factory, type) else None
    for name, value in vars(module).items():
        if name.isidentifier() and not name.startswith("_") and _is_tag(value, tag):
            return name
    if owner is not None:
        for name, value in vars(factory).items():
            if name.isidentifier() and not name.startswith("_") and _is_tag(value, tag):
                return f"{owner}.{name}"
    return None


def _is_tag(value: Any, tag: OutputTag) -> bool:
    return type(value) is type(tag) and value == tag and schema_to_ddl(value.schema) == schema_to_ddl(tag.schema)

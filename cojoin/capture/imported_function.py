"""How a test makes a user's function anew: which names it imports, and the expression that makes the instance.

A test imports the function's class by its module and name, so the class must be in a module that Python can import.
Arguments are written into the test if the instance shows them: the attributes that are named like the parameters of
its class, with values that Python reads back from their texts. Otherwise the user names a callable without parameters
that makes the function.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cojoin.engine.values.types import schema_to_ddl
from cojoin.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from cojoin.engine.functions import KeyedCoProcessFunction, OutputTag

__all__ = ["ImportedFunction", "imported_function"]

_SECRET = ("pass", "secret", "token", "credential", "auth", "private", "key")


@dataclass(frozen=True)
class ImportedFunction:
    """A function as a test makes it.

    Attributes:
        module: The module that the test imports from.
        names: The names that it imports.
        call: The name that it calls, such as ``Tiers`` or ``Outer.Tiers``.
        arguments: The arguments of the call as texts, such as ``limit=5``.
        tags: For each side output, the expression of its tag; None if no name in the module stands for it.
    """

    module: str
    names: tuple[str, ...]
    call: str
    arguments: tuple[str, ...]
    tags: tuple[str | None, ...]


def imported_function(
    function: KeyedCoProcessFunction, tags: Sequence[OutputTag], named: str | Callable[[], Any] | None
) -> ImportedFunction:
    """Return how a test makes a function.

    Args:
        function: The instance that has run.
        tags: Its side outputs.
        named: What makes such an instance without arguments, if the user says it: a class or a function of a module,
            or its name, such as ``"jobs.tiers:make"``.

    Raises:
        ConfigurationError: A test can't import it, or its arguments are not known.
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
    found = _resolve(module, path, maker)
    arguments = _arguments(function, found) if named is None else ()
    if named is not None:
        _check_maker(found, function, f"{module}:{path}")
    spelled = [_tag_name(tag, sys.modules[module], path, found) for tag in tags]
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
                f"module, such as {path.partition('.')[0].lower()}.py beside the notebook, and import it from there"
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
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = (
            f"{path} can't be imported from {module}, as a test must do: {error}; say where it is, such as "
            f"function='jobs.tiers:Tiers'"
        )
        raise ConfigurationError(msg) from error
    same = expected is None or found is expected or getattr(expected, "__module__", "") == "__main__"
    if not same:
        msg = f"{module}.{path} is another object than the function that has run; import the module anew, and run again"
        raise ConfigurationError(msg)
    return found


def _check_maker(maker: Any, function: KeyedCoProcessFunction, name: str) -> None:
    try:
        made = maker()
    except Exception as error:
        msg = f"function: {name}() raised {type(error).__name__}: {error}; it must make the function without arguments"
        raise ConfigurationError(msg) from error
    if type(made).__qualname__ != type(function).__qualname__:
        wanted, given = type(function).__qualname__, type(made).__qualname__
        msg = f"function: {name}() makes a {given}, and what has run is a {wanted}"
        raise ConfigurationError(msg)


def _arguments(function: KeyedCoProcessFunction, kind: Any) -> tuple[str, ...]:
    """Return the arguments that make an equal instance, checked by making it."""
    name = type(function).__name__
    cure = f"write a function without parameters that returns it, and name that: function='{kind.__module__}:make'"
    state = getattr(function, "__dict__", {})
    given = {}
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
        given[parameter.name] = value
    try:
        again = kind(**given)
        is_equal = getattr(again, "__dict__", {}) == state
    except Exception:  # noqa: BLE001 - whatever a user's constructor raises
        is_equal = False
    if not is_equal:
        shown = ", ".join(f"{key}={value!r}" for key, value in given.items())
        msg = f"{name}: {name}({shown}) does not make an instance with the same attributes; {cure}"
        raise ConfigurationError(msg)
    return tuple(f"{key}={_literal(value)}" for key, value in given.items())


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


def _tag_name(tag: OutputTag, module: ModuleType, path: str, found: Any) -> str | None:
    """Return the name in the function's module, or of its class, that stands for a side output's tag."""
    owner = path if isinstance(found, type) else None
    for name, value in vars(module).items():
        if name.isidentifier() and not name.startswith("_") and _is_tag(value, tag):
            return name
    if owner is not None:
        for name, value in vars(found).items():
            if name.isidentifier() and not name.startswith("_") and _is_tag(value, tag):
                return f"{owner}.{name}"
    return None


def _is_tag(value: Any, tag: OutputTag) -> bool:
    return type(value) is type(tag) and value == tag and schema_to_ddl(value.schema) == schema_to_ddl(tag.schema)

"""The layers of DESIGN.md, section 4: nothing imports upward, and what decides a result knows no Spark."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cojoin

ROOT = Path(cojoin.__file__).parent
MODULES = {
    ".".join(["cojoin", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

# Each part may import its own and those above it in this list, and no other.
LAYERS = (
    ("engine", ("cojoin.",)),
    ("codec", ("cojoin.codec", "cojoin.messages")),
    ("testing", ("cojoin.testing",)),
    ("checkpoints", ("cojoin.checkpoints",)),
    ("spark", ("cojoin.spark",)),
    ("kafka", ("cojoin.kafka",)),
    ("cli", ("cojoin.cli",)),
    ("main", ("cojoin.__main__",)),
)
NAMES = [name for name, _ in LAYERS]

# The operator's snapshots are the codec's bytes: in the order of imports they are one.
ENGINE = ("engine", "codec")


def layer(module: str) -> str:
    """Name the layer of a module: the one whose prefix is longest."""
    prefixes = [(prefix, name) for name, each in LAYERS for prefix in each if f"{module}.".startswith(prefix)]
    return max(prefixes, key=lambda found: len(found[0]))[1]


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports when it is used; not what only a type checker reads."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import from cojoin, not from '.'"
            found |= {str(node.module)} | {f"{node.module}.{name.name}" for name in node.names}
        waiting += ast.iter_child_nodes(node)
    return found


def calls(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


ENGINE_MODULES = [module for module in MODULES if layer(module) in ENGINE and module != "cojoin"]


@pytest.mark.parametrize("module", ENGINE_MODULES)
def test_the_engine_knows_no_spark(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(MODULES[module])}
    assert roots <= {*sys.stdlib_module_names, "numpy", "pandas", "pyarrow", "cojoin"}


@pytest.mark.parametrize("module", [module for module in MODULES if module != "cojoin"])
def test_nothing_imports_upward(module: str) -> None:
    allowed = set(ENGINE) if layer(module) in ENGINE else set(NAMES[: NAMES.index(layer(module)) + 1])
    for name in imports(MODULES[module]):
        if name in MODULES and name != "cojoin":
            assert layer(name) in allowed, f"{module}, of the layer {layer(module)}, imports {name}"


def test_the_package_itself_imports_spark_only_when_a_name_asks_for_it() -> None:
    assert {layer(name) for name in imports(MODULES["cojoin"]) if name in MODULES} <= {"engine"}


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_a_drawer(module: str) -> None:
    assert not {"utils", "util", "helpers", "common", "misc"} & set(module.split("."))
    assert len(MODULES[module].read_text("utf-8").splitlines()) <= 400


@pytest.mark.parametrize("module", MODULES)
def test_no_bytes_become_code(module: str) -> None:
    loaders = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    assert not loaders & {name.split(".")[0] for name in imports(MODULES[module])}
    assert not {"eval", "exec", "compile", "__import__"} & calls(MODULES[module])


def test_using_the_engine_loads_no_spark() -> None:
    code = (
        "import sys, cojoin, cojoin.process, cojoin.joins, cojoin.codec\n"
        "print([name for name in ('pyspark', 'py4j', 'delta') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_codec_serves_the_operator_and_knows_nothing_of_it() -> None:
    for module in ("cojoin.codec", "cojoin.messages"):
        assert {name for name in imports(MODULES[module]) if name in MODULES} <= {"cojoin.errors"}


def test_every_public_name_is_there() -> None:
    assert dir(cojoin) == sorted(cojoin.__all__)
    with pytest.raises(AttributeError, match="module 'cojoin' has no attribute 'conect'"):
        _ = cojoin.conect

"""The folders are the layers: none imports one below it in the list, and what decides a result knows no Spark."""

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

# Each may import its own modules and those of the folders above it.
LAYERS = (
    "cojoin.errors",
    "cojoin.package_files",
    "cojoin.engine.values",
    "cojoin.engine.time",
    "cojoin.engine.state",
    "cojoin.engine",
    "cojoin.engine.joins",
    "cojoin.testing",
    "cojoin.embedded",
    "cojoin.storage",
    "cojoin.checkpoints",
    "cojoin.checkpoints.inspect",
    "cojoin.comparison",
    "cojoin.metrics",
    "cojoin.spark.session",
    "cojoin.spark.batch",
    "cojoin.spark.sources",
    "cojoin.spark.sinks",
    "cojoin.spark.restore",
    "cojoin.spark.savepoints",
    "cojoin.spark.progress",
    "cojoin.spark.query",
    "cojoin.spark",
    "cojoin.kafka",
    "cojoin.debugging",
    "cojoin.api",
    "cojoin.capture",
    "cojoin.plots",
    "cojoin.cli",
    "cojoin.__main__",
)


def layer(module: str) -> str:
    """Return the layer of a module: the longest name of a folder that begins its own."""
    return max((each for each in LAYERS if f"{module}.".startswith(f"{each}.")), key=len)


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


def used(module: str) -> set[str]:
    """Return the package's modules that one imports."""
    return {name for name in imports(MODULES[module]) if name in MODULES and name != "cojoin"}


ENGINE = [module for module in MODULES if f"{module}.".startswith(("cojoin.errors.", "cojoin.engine."))]


@pytest.mark.parametrize("module", ENGINE)
def test_the_engine_knows_no_spark(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(MODULES[module])}
    assert roots <= {*sys.stdlib_module_names, "numpy", "pandas", "pyarrow", "cojoin"}


@pytest.mark.parametrize("module", [module for module in MODULES if module != "cojoin"])
def test_nothing_imports_upward(module: str) -> None:
    allowed = LAYERS[: LAYERS.index(layer(module)) + 1]
    for name in used(module):
        assert layer(name) in allowed, f"{module}, of {layer(module)}, imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: used(module) - {module} for module in MODULES if module != "cojoin"}
    while ready := {module for module, needs in left.items() if not needs & left.keys()}:
        left = {module: needs for module, needs in left.items() if module not in ready}
    assert not left, {module: sorted(needs & left.keys()) for module, needs in left.items()}


def test_the_package_itself_imports_spark_only_when_a_name_asks_for_it() -> None:
    names = {name for name in imports(MODULES["cojoin"]) if name in MODULES and name != "cojoin"}
    assert all(name in {*ENGINE, "cojoin.package_files"} for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_a_drawer(module: str) -> None:
    assert not {"utils", "util", "helpers", "common", "misc"} & set(module.split("."))
    assert len(MODULES[module].read_text("utf-8").splitlines()) <= 800


@pytest.mark.parametrize("module", MODULES)
def test_no_bytes_become_code(module: str) -> None:
    loaders = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    assert not loaders & {name.split(".")[0] for name in imports(MODULES[module])}
    assert not {"eval", "exec", "compile", "__import__"} & calls(MODULES[module])


def test_using_the_engine_loads_no_spark() -> None:
    code = (
        "import sys, cojoin.engine, cojoin.engine.keyed_process, cojoin.engine.joins, cojoin.testing\n"
        "print([name for name in ('pyspark', 'py4j', 'delta') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_codec_serves_the_operator_and_knows_nothing_of_it() -> None:
    for module in ("cojoin.engine.values.codec", "cojoin.engine.values.ipc"):
        assert used(module) <= {"cojoin.errors"}


def test_every_public_name_is_there() -> None:
    assert dir(cojoin) == sorted(cojoin.__all__)
    with pytest.raises(AttributeError, match="module 'cojoin' has no attribute 'conect'"):
        _ = cojoin.conect

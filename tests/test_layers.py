"""Nine layers of folders, none of which imports a higher one; what decides a result knows no Spark."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import cojoin

ROOT = Path(cojoin.__file__).parent
MODULES = {
    ".".join(["cojoin", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

LAYERS = {
    "errors": ("errors", "installed_packages", "package_files"),
    "engine": ("engine", "embedded"),
    "storage": ("storage", "delta", "session"),
    "checkpoints": ("checkpoints",),
    "spark": ("spark", "metrics"),
    "kafka": ("kafka", "sql"),
    "api": ("api",),
    "tools": ("comparison", "debugging", "capture", "plots", "testing", "cli"),
    "package": ("sinks", "sources", "types", "__main__"),
}
"""The layers, lowest first, with their folders and files. A module imports those of its own layer and of lower ones.

Within a layer the order is free, as long as no modules import each other in a circle.
"""

_FLOORS = {folder: floor for floor, folders in enumerate(LAYERS.values()) for folder in folders}


def floor(module: str) -> int:
    """Return the number of a module's layer, the lowest first."""
    return _FLOORS[module.split(".")[1]]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the nodes of a file's code, without those that only a type checker reads."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            found.append(node)
            waiting += ast.iter_child_nodes(node)
    return found


@cache
def imports(path: Path) -> set[str]:
    """Return the modules that a file imports when it is used; not what only a type checker reads."""
    found: set[str] = set()
    for node in nodes(path):
        assert not isinstance(node, ast.ImportFrom) or node.level == 0, f"{path}: import from cojoin, not from '.'"
        found |= named(node)
    return found


def calls(path: Path) -> set[str]:
    return {each.func.id for each in nodes(path) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}


def used(module: str) -> set[str]:
    """Return the package's modules that one imports."""
    return {name for name in imports(MODULES[module]) if name in MODULES and name != "cojoin"}


ENGINE = [module for module in MODULES if f"{module}.".startswith(("cojoin.errors.", "cojoin.engine."))]


def test_the_engine_knows_no_spark() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "pandas", "pyarrow", "cojoin"}
    roots = {module: {name.split(".")[0] for name in imports(MODULES[module])} for module in ENGINE}
    assert {module: found - allowed for module, found in roots.items() if found - allowed} == {}


def test_the_stores_know_no_spark() -> None:
    below = [module for module in MODULES if f"{module}.".startswith("cojoin.storage.")]
    spark = {module: {name for name in imports(MODULES[module]) if _is_sparks(name)} for module in below}
    assert {module: found for module, found in spark.items() if found} == {}


def _is_sparks(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in {"pyspark", "py4j", "delta"}


def test_nothing_imports_upward() -> None:
    modules = MODULES.keys() - {"cojoin"}
    upward = {(module, name) for module in modules for name in used(module) if floor(name) > floor(module)}
    assert upward == set()


def test_a_class_name_means_one_thing_in_a_layer() -> None:
    names = Counter(
        (floor(module), each.name)
        for module in MODULES.keys() - {"cojoin"}
        for each in nodes(MODULES[module])
        if isinstance(each, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_only_a_key_group_runs_an_operator() -> None:
    """Whatever runs one, on Spark or in this process, runs it as a ``KeyGroup``."""
    runners = {
        module
        for module in MODULES
        for each in nodes(MODULES[module])
        if isinstance(each, ast.Call) and re.fullmatch(r"(.+\.)?operators?(\[.+\])?\.process", ast.unparse(each.func))
    }
    assert runners == {"cojoin.engine.local.key_group"}


NAMED_FROM_BELOW = {("cojoin.session.workers", "cojoin.spark.batch.call")}
"""The one text that names a higher module: Spark starts the daemon of its workers, which imports what these need."""


def test_no_text_names_a_module_above() -> None:
    modules = MODULES.keys() - {"cojoin"}
    texts = {(module, text) for module in modules for text in _texts(module) & modules if floor(text) > floor(module)}
    assert texts == NAMED_FROM_BELOW


def _texts(module: str) -> set[str]:
    constants = (each.value for each in nodes(MODULES[module]) if isinstance(each, ast.Constant))
    return {each.partition(":")[0] for each in constants if isinstance(each, str)}


def test_the_room_of_deltas_tables_knows_no_spark() -> None:
    needed, waiting = set[str](), [module for module in MODULES if module.startswith("cojoin.delta.")]
    while waiting:
        module = waiting.pop()
        if module not in needed:
            needed.add(module)
            waiting += used(module)
    roots = {module: {name.split(".")[0] for name in imports(MODULES[module])} for module in needed}
    assert {module for module, found in roots.items() if found & {"pyspark", "py4j", "delta"}} == set()


def test_nothing_below_the_test_kit_imports_it() -> None:
    """The harness stands on what runs queries in memory, not the other way round, for type checkers too.

    The package itself has the test kit as one of its names.
    """
    found = {
        (module, name)
        for module, path in MODULES.items()
        if not f"{module}.".startswith("cojoin.testing.") and module != "cojoin"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for name in named(node)
        if f"{name}.".startswith("cojoin.testing.")
    }
    assert found == set()


def named(node: ast.AST) -> set[str]:
    """Return the modules that an import names, or a call of ``import_module`` with a text."""
    if isinstance(node, ast.Import):
        return {name.name for name in node.names}
    if isinstance(node, ast.ImportFrom):
        return {str(node.module)} | {f"{node.module}.{name.name}" for name in node.names}
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
    return set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {module: used(module) - {module} for module in MODULES if module != "cojoin"}
    while ready := {module for module, needs in left.items() if not needs & left.keys()}:
        left = {module: needs for module, needs in left.items() if module not in ready}
    assert not left, {module: sorted(needs & left.keys()) for module, needs in left.items()}


def test_the_package_itself_imports_spark_only_when_a_name_asks_for_it() -> None:
    names = {name for name in imports(MODULES["cojoin"]) if name in MODULES and name != "cojoin"}
    assert all(name in {*ENGINE, "cojoin.package_files", "cojoin.installed_packages"} for name in names)


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert [module for module in MODULES if drawers & set(module.split("."))] == []
    assert [module for module, path in MODULES.items() if len(path.read_text("utf-8").splitlines()) > 800] == []


MOST_LINES = {
    "": 900,
    "api": 1_470,
    "capture": 2_000,
    "checkpoints": 7_090,
    "cli": 2_650,
    "comparison": 1_760,
    "debugging": 1_210,
    "delta": 2_700,
    "embedded": 2_110,
    "engine": 15_880,
    "kafka": 12_250,
    "metrics": 350,
    "plots": 1_280,
    "session": 4_560,
    "spark": 13_790,
    "sql": 1_400,
    "storage": 2_420,
    "testing": 3_050,
}
"""How many lines each layer may have. Whoever raises a number writes in the commit what its users get for it."""


def test_no_layer_grows_unseen() -> None:
    lines: dict[str, int] = {}
    for path in MODULES.values():
        folder = (*path.relative_to(ROOT).parts[:-1], "")[0]
        lines[folder] = lines.get(folder, 0) + len(path.read_text("utf-8").splitlines())
    assert {folder: count for folder, count in lines.items() if count > MOST_LINES[folder]} == {}
    assert {folder: most for folder, most in MOST_LINES.items() if most > 1.1 * lines[folder]} == {}, "lower the bound"


def test_no_bytes_become_code() -> None:
    loaders = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    loading = {module: loaders & {name.split(".")[0] for name in imports(path)} for module, path in MODULES.items()}
    # A function that a process sends to one that it has started.
    assert loading.pop("cojoin.testing.determinism.processes") == {"cloudpickle", "pickle"}
    calling = {module: {"eval", "exec", "compile", "__import__"} & calls(path) for module, path in MODULES.items()}
    assert {module: found for module, found in loading.items() if found} == {}
    assert {module: found for module, found in calling.items() if found} == {}


@pytest.mark.push
def test_joins_of_rows_in_memory_load_no_spark() -> None:
    """Nor do the harness, steps and differences; the unit circle's own run blocks Spark for all its tests.

    pyarrow itself imports pandas where it is installed; ``test_installed_packages`` runs them where it is not.
    """
    code = """
import sys, cojoin as cj, pyarrow as pa, cojoin.engine, cojoin.engine.keyed_process, cojoin.testing
rows = pa.table({"k": [1, 1], "t": pa.array([0, 0]).cast(pa.timestamp("us", "UTC")), "v": [1, 2]})
columns = {"key": "k", "event_time": "t"}
pair = cj.connect(cj.Input(rows, **columns), cj.Input(rows.rename_columns(["k", "t", "w"]), **columns))
assert pair.asof_join().to_arrow()["w"].to_pylist() == [2, 2]
assert "output 2" in repr(pair.asof_join().run())
assert [step.output.num_rows for step in pair.asof_join().steps()] == [0, 2]
assert cj.diff(pair.asof_join(), pair.asof_join("inner")).equal
print([name for name in ("pyspark", "py4j", "delta", "obstore", "tqdm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_pandas_is_imported_where_its_frames_come_in_or_go_out() -> None:
    """Elsewhere a function imports it, after a check that it is installed."""
    whole = {
        module
        for module, path in MODULES.items()
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.Import) and any(name.name.split(".")[0] == "pandas" for name in node.names)
    }
    assert whole == {"cojoin.embedded.pandas_frames", "cojoin.spark.batch.call"}


def test_the_codec_serves_the_operator_and_knows_nothing_of_it() -> None:
    assert used("cojoin.engine.values.codec") <= {"cojoin.errors"}


def test_every_public_name_is_there() -> None:
    assert dir(cojoin) == sorted(cojoin.__all__)
    with pytest.raises(AttributeError, match="module 'cojoin' has no attribute 'conect'"):
        _ = cojoin.conect

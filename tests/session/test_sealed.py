"""What is sent to workers is opened by those alone that have the driver's cojoin, Python and pyarrow."""

from __future__ import annotations

import importlib
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
from ast import literal_eval
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

import cojoin
import cojoin as cj
from cojoin.engine.values.arguments import milliseconds
from cojoin.kafka.reader import AlignedReader, WholeReader, data_source
from cojoin.session.sealed import Sealed, for_workers, installed, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = Path(cojoin.__file__).parent
LIBRARIES = Path(pa.__file__).parents[1]
DUMPS = CloudPickleSerializer().dumps
AGAIN = (
    "its files were changed while a process had them imported: start the driver's process again (with Spark "
    "Connect, its server, too), which starts new workers"
)

# A worker: for each place it forgets what it has found and opens what a driver has sent. Prints the results, and which
# modules of cojoin were imported before a refusal.
WORKER = """
import importlib, json, sys
from pyspark.serializers import CloudPickleSerializer
sent, places = sys.argv[1], json.loads(sys.argv[2])
before, found = list(sys.path), []
for place in places:
    sys.path[:] = [*([place] if place else []), *before]
    vars(sys).pop("_cojoin_installed", None)
    sys.path_importer_cache.clear()
    try:
        with open(sent, "rb") as file:
            told = repr(CloudPickleSerializer().loads(file.read())([1, 2]))
    except Exception as error:
        told = f"{type(error).__module__}.{type(error).__name__}: {error}"
        told += " IMPORTED" * any(name.partition(".")[0] == "cojoin" for name in sys.modules)
    found.append(told)
print(json.dumps(found))
"""


def opened(sent: bytes, folder: Path, *places: Path | None) -> list[str]:
    """What a process says that opens something with each place first on its path."""
    (folder / "sent").write_bytes(sent)
    # Without site-packages of its own, in which cojoin may be installed.
    command = [sys.executable, "-S", "-c", WORKER, str(folder / "sent"), json.dumps([p and str(p) for p in places])]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(LIBRARIES)}, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


def copied(place: Path, change: str | None = None, *, by: tuple[bytes, bytes] = (b"", b"")) -> Path:
    """Copy the package into a place; one file may be changed."""
    shutil.copytree(PACKAGE, place / "cojoin", ignore=shutil.ignore_patterns("__pycache__"), copy_function=os.symlink)
    if change is not None:
        file = place / "cojoin" / change
        content = file.read_bytes()
        assert by[0] in content
        file.unlink()
        file.write_bytes(content.replace(*by))
    return place


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("same"))


def converting() -> Any:
    """Return a function that needs cojoin; no module has it, so it travels by value."""

    def converted(seconds: list[int]) -> list[int]:
        return [milliseconds(f"{each} seconds", "it") for each in seconds]

    return converted


class OfThisModule:
    """A function of a user's module, which workers may lack."""

    def __call__(self, rows: list[int]) -> list[int]:
        return rows


def test_a_worker_with_another_cojoin_opens_nothing_and_imports_nothing(tmp_path: Path, same: Path) -> None:
    version = cj.__version__.encode()
    changed = copied(tmp_path / "changed", "engine/joins/asof.py", by=(b"The as-of join", b"An as-of join"))
    old = copied(tmp_path / "old", "__init__.py", by=(version, b"0.5.0"))
    (tmp_path / "namesake" / "cojoin").mkdir(parents=True)
    left = copied(tmp_path / "left")
    (left / "cojoin" / "engine" / "joins" / "left_over.py").touch()
    sent = DUMPS(for_workers(converting()))
    *refused, accepted = opened(sent, tmp_path, None, tmp_path / "namesake", changed, old, left, same)
    assert not any("IMPORTED" in each for each in refused)
    assert all(each.startswith("cojoin.errors.EnvironmentSetupError: the Python worker on host ") for each in refused)
    assert all(sys.executable in each and "install the same in the Python of every host" in each for each in refused)
    none, namesake, other_rule, older, more = refused
    for each in (none, namesake):
        assert f"expected cojoin {cj.__version__}, found none (No module named 'cojoin')" in each
    for each, place in ((other_rule, changed), (more, left)):
        assert f"expected the sources of cojoin {cj.__version__} in {PACKAGE} on the driver" in each
        assert f"found others in {place / 'cojoin'} (digest " in each
    assert f"expected cojoin {cj.__version__}, found cojoin 0.5.0 in {old / 'cojoin'}" in older
    assert accepted == "[1000, 2000]"


class Described:
    """What a reader keeps of its description."""

    def on_a_worker(self) -> Described:
        return self


@pytest.mark.parametrize(
    "made",
    [
        partial(data_source, "topics"),
        pytest.param(AlignedReader, marks=pytest.mark.slow),
        pytest.param(WholeReader, marks=pytest.mark.slow),
    ],
)
def test_the_process_in_which_spark_plans_a_topic_is_compared_too(
    tmp_path: Path, same: Path, made: Callable[[Any], Any]
) -> None:
    """Spark pickles a data source's class for that process, which pickles the reader for the tasks."""
    refused, lacking = opened(DUMPS(made(Described())), tmp_path, None, same)
    assert f"expected cojoin {cj.__version__}, found none" in refused
    assert "IMPORTED" not in refused
    # With this cojoin it is opened, and only the description's own module is missing there.
    assert "No module named 'tests'" in lacking


def test_the_same_sources_are_equal_however_they_are_installed(tmp_path: Path, same: Path) -> None:
    archive, lines, compiled = tmp_path / "cojoin.zip", copied(tmp_path / "lines"), tmp_path / "compiled"
    shutil.make_archive(str(archive.with_suffix("")), "zip", same, "cojoin")
    file = lines / "cojoin" / "engine" / "joins" / "asof.py"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content.replace(b"\n", b"\r\n"))
    (lines / "cojoin" / "__pycache__").mkdir()
    (lines / "cojoin" / "__pycache__" / "kept.py").touch()
    (lines / "cojoin" / ".ipynb_checkpoints").mkdir()
    (lines / "cojoin" / ".ipynb_checkpoints" / "asof.py").touch()
    (lines / "cojoin" / "engine" / ".#asof.py").touch()
    py_compile.compile(str(PACKAGE / "__init__.py"), str(compiled / "cojoin" / "__init__.pyc"))
    facts = DUMPS(lambda _: installed())
    found = [literal_eval(each) for each in opened(facts, tmp_path, same, archive, lines, compiled)]
    assert [each["cojoin"] for each in found] == [cj.__version__] * 3 + ["of an unknown version"]
    assert {each["sources"] for each in found[:3]} == {installed()["sources"]}
    assert found[3]["sources"] not in {"", installed()["sources"]}, "compiled modules can't be compared with sources"
    # From an archive, as spark.submit.pyFiles gives it, it runs, too.
    assert opened(DUMPS(for_workers(converting())), tmp_path, archive) == ["[1000, 2000]"]


def test_another_python_or_pyarrow_is_told() -> None:
    expected = installed()
    assert refusal(expected) is None
    major = pa.__version__.partition(".")[0]
    assert refusal(expected | {"pyarrow": f"{major}.99.1"}) is None, "later numbers are corrections"
    told = refusal(expected | {"pyarrow": "12.0.1", "python": "3.7"})
    assert told is not None
    assert (
        f"expected Python 3.7, found {expected['python']}; expected pyarrow 12 (12.0.1), found {pa.__version__}" in told
    )


def test_a_module_that_the_worker_lacks_is_named(tmp_path: Path, same: Path) -> None:
    (tmp_path / "old" / "tests" / "session").mkdir(parents=True)
    (tmp_path / "old" / "tests" / "session" / "test_sealed.py").touch()
    (tmp_path / "old" / "cojoin").symlink_to(same / "cojoin")
    missing, old = opened(DUMPS(for_workers(OfThisModule())), tmp_path, same, tmp_path / "old")
    for told in (missing, old):
        assert told.startswith("cojoin.errors.EnvironmentSetupError: the Python worker on host ")
        assert "send it with spark.sparkContext.addPyFile(...)" in told
        assert "spark.submit.pyFiles" in told
    assert "lacks a module of the query's functions: No module named 'tests'" in missing
    assert "has another version of a module of the query's functions: Can't get attribute 'OfThisModule'" in old


def test_another_version_of_the_functions_module_is_refused(tmp_path: Path, same: Path) -> None:
    """A host that was not brought up to date has the class, too; its rows would be others."""
    own, lines, former = Path(__file__).read_bytes(), tmp_path / "lines", tmp_path / "former"
    for place, content in ((lines, own.replace(b"\n", b"\r\n")), (former, own + b"\n# Another rule.\n")):
        (place / "tests" / "session").mkdir(parents=True)
        (place / "tests" / "session" / "test_sealed.py").write_bytes(content)
        (place / "cojoin").symlink_to(same / "cojoin")
    sent = DUMPS(for_workers(OfThisModule(), OfThisModule()))
    assert opened(sent, tmp_path, lines) == ["[1, 2]"]
    (told,) = opened(sent, tmp_path, former)
    assert told.startswith("cojoin.errors.EnvironmentSetupError: the Python worker on host ")
    assert f"has another version of module {__name__!r} of the query's functions than the driver: " in told
    assert f"{former}/tests/session/test_sealed.py (digest " in told
    assert "send it with spark.sparkContext.addPyFile(...)" in told


def test_a_module_that_was_changed_after_a_worker_imported_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook that loads a module again: the driver has the new one, and workers go on with the old."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "_cojoin_users_modules", {}, raising=False)
    module = tmp_path / "changed_meanwhile.py"
    module.write_text("class Rule:\n    factor = 1\n")
    import changed_meanwhile  # type: ignore[import-not-found]

    loads, rule = CloudPickleSerializer().loads, changed_meanwhile.Rule()
    assert loads(DUMPS(Sealed(rule, rule))).factor == 1
    module.write_text("class Rule:\n    factor = 2\n")
    rule = importlib.reload(changed_meanwhile).Rule()
    with pytest.raises(RuntimeError, match="where it was changed since the session began, make the session again"):
        loads(DUMPS(Sealed(rule, rule)))


# A process that imports cojoin from a folder, in which a file is changed before it does something.
CHANGED = """
import os, sys
from pathlib import Path
folder, change = Path(sys.argv[1]), sys.argv[2]
import cojoin
file = folder / "cojoin" / "engine" / "joins" / "asof.py"
content = file.read_bytes()
os.replace(file, folder / "former")
file.write_bytes(content + b"# Another rule." * (change == "driver"))
from cojoin.session.sealed import for_workers, installed
if change == "worker":
    from pyspark.serializers import CloudPickleSerializer
    sent = CloudPickleSerializer().loads(Path(sys.argv[3]).read_bytes())
try:
    print(for_workers(lambda rows: rows)([1]))
except cojoin.EnvironmentSetupError as error:
    print(error)
"""


def run(code: str, place: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": os.pathsep.join([str(place), str(LIBRARIES)])}
    command = [sys.executable, "-S", "-c", code, str(place), *arguments]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_driver_whose_files_were_changed_before_its_first_query_is_refused(tmp_path: Path) -> None:
    """The digest of what is there now would be the workers', and not of what this process runs."""
    told = run(CHANGED, copied(tmp_path / "edited"), "driver")
    assert told == (
        f"this process has imported cojoin {cj.__version__}, and engine/joins/asof.py of {tmp_path}/edited/cojoin was "
        f"changed since, which has cojoin {cj.__version__} now: workers would import the latter; start this process "
        f"again\n"
    )


def test_a_worker_that_has_imported_former_files_is_refused(tmp_path: Path) -> None:
    """A daemon has imported cojoin long ago, and what is there now is the driver's."""
    sent = tmp_path / "sent"
    sent.write_bytes(DUMPS(for_workers(converting())))
    told = run(CHANGED, copied(tmp_path / "edited"), "worker", str(sent))
    assert f"found that engine/joins/asof.py was changed; it has run nothing: {AGAIN}" in told


def test_a_refused_worker_that_is_mended_is_accepted(tmp_path: Path) -> None:
    """As where the host is brought up to date while Spark keeps the process."""
    place, file = copied(tmp_path / "host"), tmp_path / "host" / "cojoin" / "engine" / "joins" / "asof.py"
    file.unlink()
    (tmp_path / "sent").write_bytes(DUMPS(for_workers(converting())))
    code = (
        "import os, sys\n"
        "from pyspark.serializers import CloudPickleSerializer\n"
        "place, sent, right = sys.argv[1:]\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        print(CloudPickleSerializer().loads(open(sent, 'rb').read())([1]))\n"
        "    except Exception as error:\n"
        "        print(error)\n"
        "        os.symlink(right, f'{place}/cojoin/engine/joins/asof.py')\n"
    )
    found = run(code, place, str(tmp_path / "sent"), str(PACKAGE / "engine" / "joins" / "asof.py"))
    refused, accepted = found.splitlines()
    assert f"found others in {place}/cojoin" in refused
    assert accepted == "[1000]"


def test_on_one_host_nothing_has_to_be_installed() -> None:
    """Driver and worker import the same folder, which one of them did before it was changed."""
    former = installed() | {"sources": "0123456789abcdef"}
    assert str(refusal(former)).endswith(f"it has run nothing: {AGAIN}")
    assert str(refusal(former | {"cojoin": "0.5.0"})).endswith(AGAIN)
    elsewhere = [former | {"disk": "another 1"}, former | {"path": "/opt/cojoin"}, former | {"python": "3.7"}]
    assert all("install the same in the Python of every host" in str(refusal(each)) for each in elsewhere)


def test_what_is_sealed_is_itself_where_it_is_opened() -> None:
    loads = CloudPickleSerializer().loads

    def three(key: int, rows: int, state: int) -> int:
        return key + rows * state

    assert loads(DUMPS(for_workers(three)))(1, 2, 3) == for_workers(three)(1, 2, 3) == 7
    assert for_workers(three).__name__ == "three"
    assert isinstance(loads(DUMPS(Sealed(OfThisModule()))), OfThisModule)
    # Once for a class: two functions of a query may share it.
    assert type(loads(DUMPS(Sealed(OfThisModule())))) is OfThisModule


def test_every_function_that_travels_is_sealed() -> None:
    """The calls of Spark that send a function, in all sources."""
    calls = re.compile(r"\.(?:mapInArrow|mapInPandas|applyInArrow|applyInPandas|applyInPandasWithState)\(\s*(\S+)")
    unsealed = [
        f"{path.relative_to(PACKAGE)}: {found[0]}"
        for path in PACKAGE.rglob("*.py")
        for found in calls.finditer(path.read_text("utf-8"))
        if not found[1].startswith("for_workers(") and f"{found[1].rstrip(',')} = for_workers(" not in path.read_text()
    ]
    # This one asks what the workers have.
    assert unsealed == ["session/workers.py: .mapInArrow(respond,"]

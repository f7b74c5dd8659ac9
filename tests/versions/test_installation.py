"""An installation of cojoin takes back nothing that is there, by the dry run of pip's own resolver.

The packages of the environment are files that name a version alone, so it is made in no time; cojoin is a wheel with
its metadata alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

from cojoin.installed_packages import Extra

tomllib = pytest.importorskip("tomllib", reason="pyproject.toml is read by a module of Python 3.11")
PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
VERSION = PROJECT["version"]
NEW = {"pandas": "3.1.1", "pyspark": "4.3.0", "py4j": "0.10.9.9"}
OTHERS = {"numpy": "2.4.6", "pyarrow": "26.0.1", "tqdm": "4.70.1", "obstore": "0.12.1"}
OTHERS |= {
    "deltalake": "1.6.6",
    "arro3-core": "0.9.1",
    "deprecated": "1.3.1",
    "wrapt": "2.5.2",
    "typing_extensions": "4.16.0",
}
OF_SPARK = ("numpy", "pyarrow", *OTHERS)
ADDED = {
    "kafka": ("confluent-kafka",),
    "registry": ("confluent-kafka", "fastavro", "jsonschema", "protobuf"),
    "sql": ("psycopg",),
    "metrics": ("opentelemetry-api",),
}
"""What the extras for Spark add to its own packages.

``delta`` adds nothing, for its jars are fetched; what ``connect`` adds are PySpark's own needs, which the file that
stands for it does not name.
"""


def environment(folder: Path, packages: dict[str, str]) -> Path:
    """Make an environment where these packages are installed, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version in packages.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text("")
    return folder / "bin" / "python"


def wheel(folder: Path, *needs: str) -> Path:
    """Make a wheel with the requirements and extras of ``pyproject.toml``, and further requirements."""
    extras = PROJECT["optional-dependencies"]
    all_needs = [*PROJECT["dependencies"], *needs]
    all_needs += [f"{each}; extra == '{extra}'" for extra, packages in extras.items() for each in packages]
    lines = ["Metadata-Version: 2.4", "Name: cojoin", f"Version: {VERSION}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {each}" for each in all_needs]
    path, info = folder / f"cojoin-{VERSION}-py3-none-any.whl", f"cojoin-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return path


def installed_by(python: Path, wheel: Path, extra: str, *options: str) -> dict[str, str] | str:
    """Return what pip would install, by name; or its message where it can't."""
    wanted = f"cojoin{extra} @ {wheel.as_uri()}"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    report = wheel.with_name("report.json")
    done = subprocess.run(
        [*pip, "--dry-run", "--report", report, *options, wanted], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return done.stderr
    found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    return {each["name"].lower(): each["version"] for each in found}


def by_the_index(python: Path, wheel: Path, extra: str) -> dict[str, str]:
    """Return what pip would install by the index of Python's packages; the test is left out where it has none."""
    found = installed_by(python, wheel, extra)
    if isinstance(found, str):
        assert "No matching distribution" in found or "connection" in found.lower(), found
        pytest.skip("the index of Python's packages can't be reached")
    return found


@pytest.mark.slow
def test_pandas_3_and_the_newest_spark_stay(tmp_path: Path) -> None:
    """Without an index: another version than those that are there could not be found."""
    python = environment(tmp_path / "new", {**NEW, **OTHERS})
    ours = wheel(tmp_path)
    for extra in ("", "[spark]", "[delta]"):
        assert installed_by(python, ours, extra, "--no-index") == {"cojoin": VERSION}
    # So an upper bound would be seen.
    for bound in ("pandas<3", "pyspark<=4.2.0; extra == 'spark'"):
        refusal = installed_by(python, wheel(tmp_path, bound), "[spark]", "--no-index")
        assert "conflicting dependencies" in refusal or f"No matching distribution found for {bound[:8]}" in refusal


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", *get_args(Extra)])
def test_what_the_index_has_changes_them_neither(tmp_path: Path, extra: str) -> None:
    found = by_the_index(environment(tmp_path / "new", NEW), wheel(tmp_path), f"[{extra}]" if extra else "")
    alone = {"": ("numpy", "pyarrow"), "plots": ("matplotlib",)}
    assert {"cojoin", *alone.get(extra, (*OF_SPARK, *ADDED.get(extra, ())))} <= found.keys()
    assert not found.keys() & NEW.keys()


@pytest.mark.slow
def test_an_extra_that_takes_spark_back_would_be_seen(tmp_path: Path) -> None:
    """As delta-spark does, which cojoin therefore does not need."""
    bounded = wheel(tmp_path, "delta-spark==4.4.0; extra == 'delta'")
    assert by_the_index(environment(tmp_path / "new", NEW), bounded, "[delta]")["pyspark"] < NEW["pyspark"]

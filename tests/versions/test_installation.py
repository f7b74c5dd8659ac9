"""An installation of cojoin takes back nothing that is there, by the dry run of pip's own resolver.

The packages of the environment are files that name a version alone, so it is made in no time; cojoin is a wheel with
its metadata alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

NEW = {"pandas": "3.1.1", "pyspark": "4.3.0", "py4j": "0.10.9.9"}
OTHERS = {"numpy": "2.4.6", "pyarrow": "26.0.1", "tqdm": "4.70.1", "obstore": "0.12.1"}
OTHERS |= {
    "deltalake": "1.6.6",
    "arro3-core": "0.9.1",
    "deprecated": "1.3.1",
    "wrapt": "2.5.2",
    "typing_extensions": "4.16.0",
}


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
    """Make a wheel with cojoin's metadata, and further requirements."""
    about = distribution("cojoin").metadata
    named = [f"{name}: {value}" for name, value in about.items() if name in ("Requires-Dist", "Provides-Extra")]
    lines = ["Metadata-Version: 2.4", "Name: cojoin", f"Version: {about['Version']}", *named]
    path = folder / f"cojoin-{about['Version']}-py3-none-any.whl"
    info = f"cojoin-{about['Version']}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{info}/METADATA", "\n".join([*lines, *(f"Requires-Dist: {each}" for each in needs)]) + "\n")
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


@pytest.mark.slow
def test_pandas_3_and_the_newest_spark_stay(tmp_path: Path) -> None:
    """Without an index: another version than those that are there could not be found."""
    python = environment(tmp_path / "new", {**NEW, **OTHERS})
    ours = wheel(tmp_path)
    for extra in ("", "[spark]"):
        assert installed_by(python, ours, extra, "--no-index") == {"cojoin": distribution("cojoin").version}
    # So an upper bound would be seen.
    for bound in ("pandas<3", "pyspark<=4.2.0; extra == 'spark'"):
        refusal = installed_by(python, wheel(tmp_path, bound), "[spark]", "--no-index")
        assert "conflicting dependencies" in refusal or f"No matching distribution found for {bound[:8]}" in refusal


@pytest.mark.slow
@pytest.mark.parametrize(("extra", "added"), [("", {"numpy", "pyarrow"}), ("[spark]", {*OTHERS})])
def test_what_the_index_has_changes_them_neither(tmp_path: Path, extra: str, added: set[str]) -> None:
    found = installed_by(environment(tmp_path / "new", NEW), wheel(tmp_path), extra)
    if isinstance(found, str):
        assert "No matching distribution" in found or "connection" in found.lower(), found
        pytest.skip("the index of Python's packages can't be reached")
    assert {"cojoin", *added} <= found.keys()
    assert not found.keys() & NEW.keys()

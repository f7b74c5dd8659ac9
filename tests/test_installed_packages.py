"""Joins in memory need numpy and pyarrow alone; what needs more says so before it starts, with the command for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from cojoin import installed_packages
from cojoin.errors import EnvironmentSetupError
from cojoin.installed_packages import Extra, check_packages, check_pandas

ROOT = Path(__file__).resolve().parents[1]
ALONE = """
import sys
MISSING = ("pandas", "pyspark", "py4j", "delta", "deltalake", "obstore", "tqdm", "cloudpickle", "matplotlib")
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
"""What a process runs so that it finds none of these packages."""

JOINED = """
import cojoin as cj, pyarrow as pa, cojoin.testing, datetime
rows = pa.table({"k": ["a", "a"], "t": pa.array([0, 5]).cast(pa.timestamp("us", "UTC")), "v": [1, 2]})
columns = {"key": "k", "event_time": "t"}
pair = cj.connect(cj.Input(rows, **columns), cj.Input(rows.rename_columns(["k", "t", "w"]), **columns))
def refused(call):
    try:
        call()
    except cj.EnvironmentSetupError as error:
        print(error)
"""


def alone(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ALONE + JOINED + code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.push
def test_joins_in_memory_work_without_other_packages() -> None:
    code = """
assert pair.asof_join().to_arrow()["w"].to_pylist() == [1, 2]
assert pair.temporal_join().run().output.num_rows == 2
assert pair.interval_join("-1 hour", "1 hour").run().output.num_rows == 4
class Count(cj.KeyedCoProcessFunction):
    def open(self, ctx):
        self.count = ctx.get_state(cj.ValueStateDescriptor("count", "long"))
    def process_element1(self, row, ctx):
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)
        return []
    def process_element2(self, row, ctx):
        return []
    def on_timer(self, timestamp, ctx):
        yield {"n": self.count.value()}
counted = pair.process(Count(), "n long")
assert counted.to_arrow()["n"].to_pylist() == [2], counted.to_arrow()
steps = list(counted.steps(2))
assert [step.output.num_rows for step in steps] == [0, 0, 1]
assert all("<table" in step._repr_html_() and "watermark" in str(step) for step in steps)
result = pair.asof_join().run()
assert "1970-01-01" in repr(result) and "1970-01-01" in result._repr_html_()
assert cj.diff(pair.asof_join(), pair.asof_join("inner")).equal
assert cj.lateness(rows, event_time="t").counted == 2
print("done")
"""
    assert alone(code) == "done\n"


@pytest.mark.push
def test_what_needs_a_package_says_how_to_install_it() -> None:
    code = """
refused(lambda: pair.asof_join().to_pandas())
refused(lambda: pair.asof_join().run().to_pandas())
refused(lambda: cj.lateness(rows, event_time="t").to_pandas())
refused(lambda: cojoin.testing.check_determinism(pair.asof_join()))
refused(lambda: cj.spark_session)
refused(lambda: cj.kafka)
refused(lambda: cj.plots.plot_timeline(pair.asof_join(), ["a"]))
"""
    pickler = (
        "check_determinism also runs the function in other processes: expected the package cloudpickle, or pyspark, "
        "which has its own, found none; run: pip install cloudpickle"
    )
    of_spark = 'expected the packages pyspark, pandas, tqdm, deltalake, found none; run: pip install "cojoin[spark]"'
    assert alone(code).splitlines() == [
        *['to_pandas(): expected pandas 2.2 or later, found none; run: pip install "pandas>=2.2"'] * 3,
        pickler,
        f"cojoin.spark_session: {of_spark}",
        f"cojoin.kafka: {of_spark}",
        'plot_timeline: expected the package matplotlib, found none; run: pip install "cojoin[plots]"',
    ]


@pytest.mark.push
def test_commands_say_it_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    (tmp_path / "job.py").write_text("def join(spark): ...\n")
    for words, code in (
        ("demo --local --rows 100", 0),
        ("demo", 2),
        ("checkpoints list /lake/c", 2),
        (f"run {tmp_path}/job.py:join --output delta:/c --checkpoint /d", 2),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "cojoin", *words.split()],
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == code, said
        assert ('pip install "pandas>=2.2"' if code == 0 else 'pip install "cojoin[spark]"') in said


@pytest.mark.push
def test_a_missing_deltalake_is_named_before_anything_starts(tmp_path: Path) -> None:
    code = """
MISSING = ("deltalake",)
refused(lambda: cj.spark_session)
refused(lambda: cj.kafka)
"""
    cure = 'expected the package deltalake, found none; run: pip install "cojoin[spark]"'
    assert alone(code).splitlines() == [f"cojoin.spark_session: {cure}", f"cojoin.kafka: {cure}"]


@pytest.mark.push
@pytest.mark.parametrize("modules", [(), ("deltalake",)])
def test_a_deltalake_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...]) -> None:
    monkeypatch.setattr(installed_packages, "is_installed", lambda _: True)
    monkeypatch.setattr(installed_packages, "_version", lambda name: "1.6.5" if name == "deltalake" else "9.0")
    with pytest.raises(EnvironmentSetupError) as caught:
        check_packages("connect()", "spark", *modules)
    assert str(caught.value) == (
        'connect(): expected deltalake 1.6.6 or later, found 1.6.5; run: pip install "cojoin[spark]"'
    )


@pytest.mark.parametrize(
    ("found", "is_right"), [("2.1.4", False), ("2.2.0", True), ("3.1.1", True), ("4.0.0rc1", True)]
)
def test_pandas_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, found: str, is_right: bool) -> None:
    monkeypatch.setattr(installed_packages, "_version", lambda _: found)
    if is_right:
        check_pandas("input 'trades'")
        return
    with pytest.raises(EnvironmentSetupError) as caught:
        check_pandas("input 'trades'")
    assert str(caught.value) == (
        "input 'trades': expected pandas 2.2 or later, found 2.1.4; run: pip install \"pandas>=2.2\""
    )


def test_spark_that_is_too_old_is_refused_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_packages, "is_installed", lambda _: True)
    monkeypatch.setattr(
        installed_packages, "_version", {"pyspark": "4.0.0", "pandas": "3.1.1", "deltalake": "1.7.0"}.get
    )
    with pytest.raises(EnvironmentSetupError) as caught:
        check_packages("connect()", "spark")
    assert str(caught.value) == (
        'connect(): expected pyspark 4.0.1 or later, found 4.0.0; run: pip install "cojoin[spark]"'
    )
    # Spark's own folder has no metadata; the session's version is checked later.
    monkeypatch.setattr(installed_packages, "_version", {"pyspark": "", "pandas": "2.2.0", "deltalake": "1.6.6"}.get)
    check_packages("connect()", "spark")


def test_a_part_of_a_package_that_is_missing_is_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google", None)
    monkeypatch.delitem(sys.modules, "google.protobuf", raising=False)
    with pytest.raises(EnvironmentSetupError, match=r"^x: expected the package protobuf, found none; run: pip install"):
        check_packages("x", "registry", "google.protobuf")


def test_the_installation_has_no_upper_bounds_and_needs_two_packages_alone() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["dependencies"] == ["numpy>=1.26", "pyarrow>=18"]
    extras = project["optional-dependencies"]
    assert [each for packages in extras.values() for each in packages if re.search("[<=~!]=|<", each)] == []
    assert set(get_args(Extra)) == set(extras)
    # Its own upper bound would take PySpark back.
    assert "delta-spark" not in str(extras)


def test_the_package_is_small() -> None:
    """Beside numpy and pyarrow at most 15 MB: the byte code that pip makes is as large as the sources."""
    files = [each for each in (ROOT / "cojoin").rglob("*") if each.is_file() and "__pycache__" not in each.parts]
    assert 2 * sum(each.stat().st_size for each in files) <= 15_000_000

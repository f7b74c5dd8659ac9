"""The README and CONTRIBUTING are as short as promised, what they name is there, and the README's Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cojoin as cj

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
_BLOCK = re.compile(r"```python\n(?P<code>.*?)```", re.DOTALL)


def blocks() -> list[str]:
    return [found["code"] for found in _BLOCK.finditer(README.read_text("utf-8"))]


@pytest.mark.spark
def test_the_blocks_run_and_give_what_they_say(spark, capsys):
    # As in a person's session, so that Spark's workers get the function by its value.
    namespace: dict = {"__name__": "__main__"}
    codes = blocks()
    assert len(codes) == 4
    for code in codes:
        exec(compile(code, str(README), "exec"), namespace)
    enriched = namespace["pair"].asof_join()
    assert enriched.to_arrow()["tier"].to_pylist() == [None, "silver", "gold"]
    tiers = namespace["tiers"].sort_values("trade_id")["tier"]
    assert tiers.isna().tolist() == [True, False, False]
    assert tiers.tolist()[1:] == ["silver", "gold"]
    written = spark.read.format("delta").load(f"{namespace['lake']}/enriched")
    assert [row.tier for row in written.orderBy("trade_id").collect()] == [None, "silver", "gold"]
    assert namespace["query"].progress.is_conserved
    assert "watermark (UTC)" in capsys.readouterr().out
    # The same examples on Spark.
    frames = {name: spark.createDataFrame(namespace[f"{name}_df"]) for name in ("trades", "customers")}
    pair = cj.connect(*(cj.Input(frame, **namespace["columns"], name=name) for name, frame in frames.items()))
    for joined in (pair.asof_join(), pair.process(namespace["Tiers"](), "trade_id long, tier string")):
        assert [row.tier for row in joined.to_dataframe().orderBy("trade_id").collect()] == [None, "silver", "gold"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_what_a_document_links_to_is_there(name):
    text = (ROOT / name).read_text("utf-8")
    for path in re.findall(r"\]\(([\w/.]+)\)", text):
        assert (ROOT / path).exists(), path


def test_the_files_that_contributing_names_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)
    assert len(named) > 20
    for path in named:
        assert (ROOT / "cojoin" / path).exists() or (ROOT / path).exists(), path


def test_the_readme_is_short():
    lines = README.read_text("utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


def test_the_two_commands_are_there():
    text = README.read_text("utf-8")
    assert ".venv/bin/cojoin demo" in text
    assert "\n.ci/run" in text
    assert (ROOT / ".ci" / "run").exists()
    assert "://" not in (ROOT / "requirements.lock").read_text("utf-8")


def test_ci_runs_the_versions_of_python_that_are_promised():
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert re.findall(r'"(3\.\d+)"', workflow.split("steps:")[0]) == promised

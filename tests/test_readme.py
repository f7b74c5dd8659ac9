"""The README's Python runs as it stands there, block after block, as its reader would type it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n```python\n(?P<code>.*?)```", re.DOTALL)


def blocks() -> list[str]:
    """Return the blocks; those that need more than Spark are marked, and left out."""
    text = README.read_text("utf-8")
    return [found["code"] for found in _BLOCK.finditer(text) if not found["before"].startswith("<!-- not run")]


@pytest.mark.spark
def test_the_blocks_run_and_give_what_they_say(spark, capsys):
    # As in a person's session, so that Spark's workers get the function by its value.
    namespace: dict = {"__name__": "__main__"}
    codes = blocks()
    assert len(codes) == 4
    for code in codes:
        exec(compile(code, str(README), "exec"), namespace)
    tiers = [row.tier for row in namespace["enriched"].orderBy("trade_id").collect()]
    assert tiers == [None, "silver", "gold"]
    assert [row.tier for row in namespace["tiers"].orderBy("trade_id").collect()] == [None, "silver", "gold"]
    written = spark.read.format("delta").load(f"{namespace['lake']}/enriched")
    assert [row.tier for row in written.orderBy("trade_id").collect()] == [None, "silver", "gold"]
    assert namespace["query"].progress.is_conserved
    assert "watermark (UTC)" in capsys.readouterr().out


def test_every_block_is_python_that_compiles():
    for found in _BLOCK.finditer(README.read_text("utf-8")):
        compile(found["code"], str(README), "exec")


def test_what_the_readme_names_is_there():
    text = README.read_text("utf-8")
    for path in re.findall(r"\]\(([\w/.]+)\)", text):
        assert (README.parent / path).exists(), path
    assert (README.parent / ".ci" / "run").exists()
    assert "http" not in (README.parent / "requirements.lock").read_text("utf-8")
    assert len(text.splitlines()) < 400

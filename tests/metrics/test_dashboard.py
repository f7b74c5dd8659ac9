"""The queries of the guide's dashboard name only what a scrape has."""

from __future__ import annotations

import re
from pathlib import Path

from cojoin.metrics.metric_names import METRICS

GUIDE = Path(__file__).parents[2] / "notebooks" / "06_operations.py"


def test_each_name_of_the_dashboard_exists_and_each_metric_has_a_panel() -> None:
    section = GUIDE.read_text("utf-8").partition("\n# ## How do other tools see it?")[2].partition("\n# ## ")[0]
    (dashboard,) = re.findall(r'"""\npanel \| PromQL.*?"""', section, re.DOTALL)
    names = {*re.findall(r"\bcojoin_\w+", dashboard)}
    labels = {label.replace(".", "_") for each in METRICS for label in each.attributes}
    metrics = {each.prometheus + ("_bucket" if each.kind == "histogram" else "") for each in METRICS}
    assert names - labels - metrics == set()
    # The watermark of the query is the least of its inputs'.
    assert metrics - names == {"cojoin_query_watermark_seconds", "cojoin_input_event_time_lag_seconds"}
    # Counters are only meaningful as rates.
    for name in (each.prometheus for each in METRICS if each.kind == "counter"):
        for found in re.finditer(rf"{name}\b(\{{[^}}]*\}})?", dashboard):
            assert re.search(r"(rate|increase)\($", dashboard[: found.start()])
            assert re.match(r"\[\d+m\]\)", dashboard[found.end() :])
    for line in re.sub(r"\n  ", " ", dashboard).splitlines():
        assert line.count("(") == line.count(")")


def test_each_name_that_the_guide_tells_exists() -> None:
    text = GUIDE.read_text("utf-8")
    names = {*re.findall(r"\bcojoin_(?:query|input|output)_\w+", text)}
    known = {each.prometheus for each in METRICS}
    assert {name.removesuffix("_bucket") for name in names} <= known

"""What ``--output`` and ``--rejected`` may be, and what is reported of what they can't be."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from cojoin.cli.jobs import Output
from tests.spark.refused import refused


@pytest.mark.parametrize(
    ("text", "kind", "place", "shown"),
    [
        ("delta:/lake/enriched", "delta", "/lake/enriched", "delta:/lake/enriched"),
        ("parquet:s3a://lake/e", "parquet", "s3a://lake/e", "parquet:s3a://lake/e"),
        ("delta:s3a://me:hunter2@lake/e", "delta", "s3a://me:hunter2@lake/e", "delta:s3a://***@lake/e"),
        ("enriched_topic", None, "enriched_topic", "enriched_topic"),
    ],
)
def test_an_output_is_a_place_or_a_name(text: str, kind: str | None, place: str, shown: str) -> None:
    output = Output.parse(text)
    assert (output.kind, output.place, str(output)) == (kind, place, shown)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/lake/enriched", "expected delta:PATH, parquet:FOLDER, or the name of a sink in the job's file, got '/lake"),
        ("delta:", "expected delta:PATH"),
        ("json:/lake", "expected delta or parquet before the colon, got 'json'"),
        (
            "kafka:host:9092/enriched",
            "a topic is a sink in the job's file: write NAME = cojoin.sinks.kafka(...), and NAME",
        ),
    ],
)
def test_other_outputs_are_refused(text: str, told: str) -> None:
    with refused(told):
        Output.parse(text)


def test_a_tables_name_needs_a_catalog() -> None:
    with refused("delta:enriched: this is a table's name, and --conf sets no catalog; write a path, such as delta:./e"):
        Output.parse("delta:enriched").check_place({"spark.driver.memory": "2g"})
    Output.parse("delta:enriched").check_place({"spark.sql.catalogImplementation": "hive"})
    for text in ("delta:./enriched", "parquet:enriched", "enriched"):
        Output.parse(text).check_place({})


@pytest.mark.push
def test_a_name_is_a_sink_of_the_file() -> None:
    import cojoin as cj

    module: Any = ModuleType("job")
    module.__file__ = "/jobs/job.py"
    module.topic = cj.sinks.kafka("localhost:9092", "enriched", key="customer_id", options={"linger.ms": "5"})
    module.login, module.write = {"sasl.password": "hunter2"}, lambda frame, batch_id: None
    module.enriched = lambda spark: None
    assert Output.parse("topic").sink(module, "--output") is module.topic
    assert Output.parse("write").sink(module, "--output") is module.write
    assert Output.parse("delta:/lake/e").sink(module, "--output") == cj.sinks.delta("/lake/e")
    assert Output.parse("parquet:/lake/e").sink(module, "--output") == cj.sinks.parquet("/lake/e")
    with refused("--rejected topc: /jobs/job.py has no 'topc'; did you mean 'topic'?"):
        Output.parse("topc").sink(module, "--rejected")
    with refused("a function that takes (DataFrame, batch_id), got dict"):
        Output.parse("login").sink(module, "--output")
    with refused("a function that takes (DataFrame, batch_id), got function"):
        Output.parse("enriched").sink(module, "--output")

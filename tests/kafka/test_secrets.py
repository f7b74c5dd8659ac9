"""A password of the options is nowhere but in the options."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from tests.kafka.replayed import LEFT, inputs, join, make, row, start, version, write
from tests.kafka.test_connection import silent

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

SECRET = "opensesame-1001"
OPTIONS = {"sasl.username": "ali", "sasl.password": SECRET, "ssl.key.password": f"{SECRET}-too"}


def test_a_secret_is_nowhere(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    servers = make(broker, "secret-l", "secret-r")
    write(servers, "secret-l", [row(each, each) for each in range(4)])
    write(servers, "secret-r", [version(7, 0)])
    both = inputs(servers, "secret-l", "secret-r", options=OPTIONS)
    joined = join(servers, "secret-l", "secret-r", options=OPTIONS, patience="2 seconds")
    shown: list[Any] = [repr(each) for each in both] + [repr(each.source) for each in both] + [repr(joined)]
    shown += [str(each.source) for each in both]
    frame = both[0].source.open()
    frame.explain(extended=True)
    both[0].source.open(streaming=False).explain(extended=True)
    shown += [frame._jdf.queryExecution().toString(), str(spark.sparkContext.getConf().getAll())]

    seen: list[Any] = []
    before = {each.id for each in spark.streams.active}
    query = start(joined, tmp_path, cj.Trigger.processing_time("0.3 seconds"))
    (stream,) = [each for each in spark.streams.active if each.id not in before]
    while query.is_active and (query.progress is None or query.progress.inputs[0].rows_in < 4):
        pass
    stream.explain(extended=True)
    while stream.lastProgress is None:
        pass
    seen += [json.dumps(each.json) for each in stream.recentProgress] + [stream.lastProgress.json, str(stream.status)]
    with silent(broker), pytest.raises(cj.QueryFailedError, match="patience=") as ended:
        query.await_termination(60, progress=False)
    causes: list[Any] = []
    cause: BaseException | None = ended.value
    while cause is not None:
        causes += [str(cause), repr(cause)]
        cause = cause.__cause__ or cause.__context__
    with silent(broker), pytest.raises(cj.QueryFailedError) as away:
        cj.kafka.source(servers, "secret-l", schema=LEFT, options=OPTIONS, patience="1 second").open()

    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert any("offsets" in str(each) for each in files)
    said = capfd.readouterr()
    everything = {
        "descriptions": shown,
        "progress": [*seen, repr(query), repr(query.progress), str(query.progress.table() if query.progress else "")],
        "errors": [*causes, str(away.value), repr(away.value)],
        "files": [each.read_bytes().decode(errors="replace") for each in files],
        "output": [said.out, said.err, caplog.text],
    }
    assert "secret-l" in said.out + "".join(shown)
    for name, texts in everything.items():
        assert texts, name
        for text in texts:
            assert "opensesame" not in text, (name, text[max(0, text.index("opensesame") - 300) :][:600])

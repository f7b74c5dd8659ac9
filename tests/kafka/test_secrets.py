"""Passwords, keys and tokens are nowhere but in the options and in what the function of the user's returns."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cojoin as cj
from cojoin.testing import capture
from tests.kafka.logins import grant, login, secrets, user_of
from tests.kafka.replayed import LEFT, RIGHT, make, pairs, row, run, start, version, write
from tests.kafka.test_client import silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tests.servers.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

KEY_PASSWORD = "opensesame-1001"


def sources(broker: Broker, name: str = "secret", **further: Any) -> list[cj.kafka.KafkaSource]:
    """Describe two topics: one by SCRAM, with a key that is there as well, and one by a token."""
    by_password, by_token, by_key = (login(broker, how) for how in ("SCRAM-SHA-256", "token", "mutual"))
    keys = {name: value for name, value in by_key["options"].items() if name.startswith("ssl.")}
    by_password["options"] |= {**keys, "ssl.key.password": KEY_PASSWORD, "debug": "security,broker"}
    by_token["options"] |= {"debug": "security,broker"}
    return [
        cj.kafka.source(topics=f"{name}-l", schema=LEFT, **by_password, **further),
        cj.kafka.source(topics=f"{name}-r", schema=RIGHT, **by_token, **further),
    ]


def inputs(both: Sequence[cj.kafka.KafkaSource]) -> list[cj.Input]:
    strategy = cj.WatermarkStrategy.for_bounded_out_of_orderness("1 second")
    return [
        cj.Input(each, key="k", event_time="at", name=name, watermark=strategy)
        for each, name in zip(both, ("left", "right"), strict=True)
    ]


def join(broker: Broker, **further: Any) -> cj.Joined:
    return cj.connect(*inputs(sources(broker, **further)), key_groups=2).asof_join(suffixes=("", "_right"))


def assert_nowhere(broker: Broker, everything: dict[str, Sequence[Any]]) -> None:
    for name, texts in everything.items():
        assert texts, name
        for text in texts:
            for secret in (KEY_PASSWORD, *secrets(broker)):
                assert secret not in str(text), (name, str(text)[max(0, str(text).index(secret) - 300) :][:600])


def commands(pid: int) -> list[str]:
    """Return the command lines and environments of a process and all that it has started."""
    folder = Path(f"/proc/{pid}")
    try:
        found = [(folder / name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ")]
        children = [each.read_text().split() for each in folder.glob("task/*/children")]
    except OSError:
        return []
    return found + [text for each in children for child in each for text in commands(int(child))]


def plans(spark: SparkSession) -> list[str]:
    """Return the plans and descriptions of all queries as Spark's UI and history server show them."""
    store: Any = spark._jsparkSession.sharedState().statusStore()  # type: ignore[union-attr]
    executions = store.executionsList()
    each = [executions.apply(number) for number in range(executions.size())]
    return [f"{one.description()} {one.details()} {one.physicalPlanDescription()}" for one in each]


@pytest.mark.slow
def test_a_secret_is_nowhere(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    servers = make(broker, "secret-l", "secret-r")
    grant(broker, user_of("SCRAM-SHA-256"), "secret-l")
    grant(broker, user_of("token"), "secret-r")
    write(servers, "secret-l", [row(each, each) for each in range(4)])
    write(servers, "secret-r", [version(7, 0)])
    both = inputs(sources(broker))
    joined = join(broker, patience="5 seconds")
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
        time.sleep(0.1)
    stream.explain(extended=True)
    while stream.lastProgress is None:
        time.sleep(0.1)
    seen += [json.dumps(each.json) for each in stream.recentProgress] + [stream.lastProgress.json, str(stream.status)]
    with silent(broker), pytest.raises(cj.QueryFailedError, match="patience=") as ended:
        query.await_termination(60, progress=False)
    causes: list[Any] = []
    cause: BaseException | None = ended.value
    while cause is not None:
        causes += [str(cause), repr(cause)]
        cause = cause.__cause__ or cause.__context__
    with silent(broker), pytest.raises(cj.QueryFailedError) as away:
        sources(broker, patience="2 seconds")[0].open()

    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert any("offsets" in str(each) for each in files)
    said = capfd.readouterr()
    everything = {
        "descriptions": shown,
        "progress": [*seen, repr(query), repr(query.progress), str(query.progress.table() if query.progress else "")],
        "errors": [*causes, str(away.value), repr(away.value)],
        "files": [each.read_bytes().decode(errors="replace") for each in files],
        "output": [said.out, said.err, caplog.text],
        "processes": commands(os.getpid()),
        "plans": plans(spark),
    }
    assert "secret-l" in said.out + "".join(shown)
    assert_nowhere(broker, everything)
    assert "rdkafka" in caplog.text


@pytest.mark.slow  # two runs more, for the files of a capture alone
def test_a_capture_has_none(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    servers = make(broker, "captured-l", "captured-r")
    grant(broker, user_of("SCRAM-SHA-256"), "captured-l")
    grant(broker, user_of("token"), "captured-r")
    write(servers, "captured-r", [version(7, 0), version(8, 20)])
    for begin in (0, 4):
        write(servers, "captured-l", [row(each, each) for each in range(begin, begin + 4)])
        run(join(broker, name="captured"), tmp_path, checkpoint_interval=1, retained_checkpoints=9)
    assert pairs(spark, tmp_path)
    capture(
        cj.Snapshot(str(tmp_path / "checkpoint"), at=0),
        tmp_path / "test_captured.py",
        joined=join(broker, name="captured"),
        keys=[1],
    )
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert_nowhere(broker, {"files": [each.read_bytes().decode(errors="replace") for each in files]})

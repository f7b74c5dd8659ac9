"""A command's session is started when it is needed, once; one that a job has made itself is used."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cojoin.cli import embedded_spark
from cojoin.cli.embedded_spark import session_on_demand
from cojoin.cli.options import parse_arguments, secrets_of
from tests.spark.refused import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = ["run", "job.py:enriched", "--output", "delta:/lake/enriched", "--checkpoint", "/lake/c"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings of each session that is started; Spark is not."""
    seen: list[Any] = []

    @contextmanager
    def session(folder: Any, say: Any, **settings: Any) -> Iterator[str]:
        assert folder.is_dir()
        seen.append(settings)
        yield "session"
        seen.append("stopped")

    monkeypatch.setattr(embedded_spark, "local_session", session)
    return seen


def test_a_session_is_started_at_the_first_call(started: list[Any]) -> None:
    words = [*RUN, "--conf", "a=b", "--master", "local[2]"]
    with session_on_demand(print, parse_arguments(words, secrets_of(words))) as session:
        assert started == []
        assert (session(), session()) == ("session", "session")
        assert started == [{"master": "local[2]", "conf": {"a": "b"}, "log": None}]
    assert started[1:] == ["stopped"]


def test_settings_for_a_session_that_the_job_has_made_come_too_late(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for more, made in (((), True), (("--conf", "a=b"), False), (("--conf", "a=b"), True), (("--master", "x"), True)):
        words, has_one = [*RUN, *more], iter([False, True] if made else [True, True])
        monkeypatch.setattr(embedded_spark, "has_session", lambda has_one=has_one: next(has_one))
        with session_on_demand(print, parse_arguments(words, secrets_of(words))) as session:
            if more and made:
                with refused("the job makes a Spark session itself, so --master and --conf come too late"):
                    session()
            else:
                session()
    assert started.count("stopped") == 2

"""What of a cluster's options is shown."""

from __future__ import annotations

import pickle

from cojoin.kafka.client import ClusterOptions, DebugLog


def test_options_are_pickled_and_show_no_secret() -> None:
    options = ClusterOptions("one:9092", {"sasl.password": "open", "ssl.key.password": "opensesame", "client.id": "us"})
    assert repr(options) == "ClusterOptions(bootstrap_servers='one:9092')"
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.mask("opensesame, open, us") == "***, ***, us"
    assert ClusterOptions("one:9092", {"sasl.password": ""}).mask("text") == "text"


def test_what_librdkafka_logs_is_heard_without_secrets() -> None:
    heard: list[str] = []
    log = DebugLog(ClusterOptions("one:9092", {"sasl.password": "opensesame"}).mask, heard.append)
    log.log(20, "%s of %s", "the password", "opensesame")
    assert heard == ["the password of ***"]

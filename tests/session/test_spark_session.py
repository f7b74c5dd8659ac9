"""The session of a process, and a server of Spark Connect that does not answer."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import cojoin as cj

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_running_session_is_given_as_it_is(spark: SparkSession) -> None:
    assert cj.spark_session(conf={"spark.sql.shuffle.partitions": 99}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_an_address_without_a_server_is_told_without_its_token() -> None:
    """In a process of its own, as one that has a session returns that."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        port = taken.getsockname()[1]
        script = f"import cojoin as cj; cj.spark_session(master='sc://127.0.0.1:{port}/;token=hush')"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "EnvironmentSetupError: Spark Connect: no server answers at" in last
    assert f"sc://127.0.0.1:{port} (" in last
    assert "hush" not in last

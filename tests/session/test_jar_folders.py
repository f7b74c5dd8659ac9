"""Jars are fetched once, whole, by whoever comes first, from a repository on this machine."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cojoin as cj
from cojoin.session.jars import cache_folder, fetch_jars
from tests.spark.repository import NAMES, PACKAGE, make_repository

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.spark

PROGRAM = f"""
import json, sys
from cojoin.session.jars import fetch_jars
print(json.dumps([str(jar) for jar in fetch_jars([{PACKAGE!r}], settings=json.loads(sys.argv[1]))]))
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings that find the package, on a machine whose folders of jars are empty."""
    monkeypatch.setenv("COJOIN_JARS", str(tmp_path / "jars"))
    return make_repository(tmp_path)


@pytest.fixture
def start(settings: dict[str, str]) -> Callable[[], subprocess.Popen[str]]:
    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, json.dumps(settings)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return begin


def ended(process: subprocess.Popen[str]) -> tuple[list[Path], str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return [Path(jar) for jar in json.loads(out)], err


def left() -> list[str]:
    return [path.name for path in cache_folder().iterdir() if path.is_dir()]


@pytest.mark.slow
def test_two_processes_fetch_once_and_what_is_damaged_is_fetched_anew(
    settings: dict[str, str], start: Callable[[], subprocess.Popen[str]]
) -> None:
    (jars, one), (same, two) = map(ended, [start(), start()])
    assert jars == same
    assert {jar.name for jar in jars} == NAMES
    assert (one + two).count("Fetching") == 1

    sizes = [jar.stat().st_size for jar in jars]
    jars[0].write_bytes(jars[0].read_bytes()[:-7])  # the machine stopped before all was on its disk
    stale = cache_folder() / f".{jars[0].parent.name}-stale"
    stale.mkdir()
    said: list[str] = []
    assert fetch_jars([PACKAGE], settings=settings, say=said.append) == jars
    assert [jar.stat().st_size for jar in jars] == sizes
    assert said == [f"Fetching {PACKAGE} and their dependencies, which may take minutes ..."]
    assert left() == [jars[0].parent.name]
    # Nothing is asked for what is there, nor is a repository needed.
    assert fetch_jars([PACKAGE], say=said.append) == jars
    assert len(said) == 1


@pytest.mark.slow
def test_after_a_killed_process_the_next_one_fetches(start: Callable[[], subprocess.Popen[str]]) -> None:
    killed = start()
    deadline = time.monotonic() + 60
    while not [*cache_folder().glob(".*/spark.log")]:  # the launcher runs
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    jars, said = ended(start())
    assert {jar.name for jar in jars} == NAMES
    assert "Fetching" in said
    assert left() == [jars[0].parent.name]


@pytest.mark.slow  # Ivy is asked twice, and says no twice.
def test_what_can_not_be_fetched_is_told_in_one_sentence_with_what_to_do(settings: dict[str, str]) -> None:
    with pytest.raises(cj.EnvironmentSetupError) as caught:
        fetch_jars(["test.shop:nothing:1.0"], settings=settings)
    message = str(caught.value)
    assert message.startswith("could not fetch test.shop:nothing:1.0: ")
    assert "not found" in message
    for cure in ("spark.jars.repositories", "spark.jars.ivySettings", "proxy", str(cache_folder()), "spark.jars"):
        assert cure in message
    assert "\n" not in message
    assert left() == []


@pytest.mark.slow  # The launcher runs two times or three.
def test_a_repository_that_breaks_off_is_asked_again(settings: dict[str, str], tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path.endswith("money-2.5.jar") and asked.count(self.path) <= 2:
                self.send_error(503)
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    serve = functools.partial(Handler, directory=str(tmp_path / "repository"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Path(settings["spark.jars.ivySettings"]).write_text(
            '<ivysettings><settings defaultResolver="there"/><resolvers><ibiblio name="there" m2compatible="true" '
            f'root="http://127.0.0.1:{server.server_port}/"/></resolvers></ivysettings>',
            encoding="utf-8",
        )
        jars = fetch_jars([PACKAGE], settings=settings)
        server.shutdown()
    assert {jar.name for jar in jars} == NAMES
    assert sum(path.endswith("money-2.5.jar") for path in asked) == 3


@pytest.mark.slow  # It asks Maven Central.
def test_a_local_maven_repository_without_the_jars_does_not_matter(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "home" / ".m2" / "repository"
    shutil.copytree(tmp_path / "repository", local)
    for jar in local.glob("**/*.jar"):
        jar.unlink()
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Duser.home={tmp_path / 'home'}")
    here = {"spark.jars.repositories": (tmp_path / "repository").as_uri(), "spark.jars.ivy": settings["spark.jars.ivy"]}
    assert {jar.name for jar in fetch_jars([PACKAGE], settings=here)} == NAMES


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("COJOIN_JARS", str(tmp_path / "file" / "jars"))
    with pytest.raises(cj.EnvironmentSetupError, match=r"could not keep jars in .*: .*; let COJOIN_JARS name another"):
        fetch_jars([PACKAGE])


def test_the_folder_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COJOIN_JARS", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "cojoin" / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == Path.home() / ".cache" / "cojoin" / "jars"

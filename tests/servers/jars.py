"""Jars for the tests, fetched by the Ivy that PySpark brings along, so that Java is all a machine must have.

A folder of jars appears whole or not at all: it is filled under another name and renamed at the end, so a download
that was killed is never taken for a finished one. What exists is not fetched again, and folders are named by version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyspark

Coordinate = tuple[str, str, str]  # organisation, module, version

ATTEMPTS = 3
FETCH_SECONDS = 900  # for one attempt: tens of megabytes over a slow line

TOKEN_PROVIDER = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13")
TOKEN_PROVIDER_STANDIN = "4.1.0-preview1"


class FetchError(RuntimeError):
    """Ivy could not find or load a jar; the message holds the end of what it said."""


def cache_folder() -> Path:
    """The folder that keeps jars between runs: `COJOIN_TEST_CACHE`, or one in the user's cache."""
    chosen = os.environ.get("COJOIN_TEST_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "cojoin-tests"


def java() -> str:
    """The Java that Spark takes as well: the one of `JAVA_HOME`, or the first on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def fetch_jars(coordinates: list[Coordinate], into: Path, transitive: bool) -> list[Path]:
    """The jars in the folder `into`, which is filled with `coordinates` first if it does not exist.

    Args:
        coordinates: What to fetch, in versions that are resolved together.
        into: The folder; its name should say the versions, as it is not looked into again.
        transitive: Whether to fetch what these need at run time, too.

    Raises:
        FetchError: If one of them is missing after a few attempts; `into` does not exist then.
    """
    if not into.is_dir():
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{into.name}-", dir=into.parent) as work:
            jars = _retrieve(coordinates, Path(work), transitive=transitive)
            try:
                jars.rename(into)
            except OSError:
                if not into.is_dir():  # otherwise another run was quicker, and its folder is as good
                    raise
    return sorted(into.glob("*.jar"))


def kafka_session_conf() -> dict[str, str]:
    """The Spark configuration that gives a session Spark's own Kafka source and sink.

    Not every Maven mirror has the connector's small companion for delegation tokens in each version. It is tried once;
    where it is missing, an earlier one stands in, from a folder whose existence is the memory of that decision.
    """
    conf = {"spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"}
    organisation, module = TOKEN_PROVIDER
    own = cache_folder() / f"token-provider-{pyspark.__version__}"
    standin = cache_folder() / f"token-provider-{pyspark.__version__}-standin-{TOKEN_PROVIDER_STANDIN}"
    if not standin.is_dir():
        try:
            fetch_jars([(organisation, module, pyspark.__version__)], own, transitive=False)
        except FetchError:
            fetch_jars([(organisation, module, TOKEN_PROVIDER_STANDIN)], standin, transitive=False)
        else:
            return conf
    jars = fetch_jars([], standin, transitive=False)
    return conf | {"spark.jars.excludes": f"{organisation}:{module}", "spark.jars": ",".join(map(str, jars))}


def _retrieve(coordinates: list[Coordinate], work: Path, *, transitive: bool) -> Path:
    """Run Ivy in `work` until it succeeds; its own cache there lasts over the attempts, which saves their loads."""
    (work / "ivy.xml").write_text(_ivy_file(coordinates, transitive=transitive), encoding="utf-8")
    jars = work / "jars"
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = [java(), "-jar", str(ivy), "-ivy", "ivy.xml", "-cache", str(work / "cache"), "-confs", "default"]
    command += ["-types", "jar", "bundle", "-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]"]
    said = ""
    for attempt in range(ATTEMPTS):
        time.sleep(2 * attempt)
        shutil.rmtree(jars, ignore_errors=True)
        try:
            run = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            said = f"no end after {FETCH_SECONDS} s"
            continue
        if run.returncode == 0 and jars.is_dir():
            return jars
        said = run.stdout + run.stderr
    names = ", ".join(":".join(each) for each in coordinates)
    msg = f"could not fetch {names} in {ATTEMPTS} attempts; Ivy said at last:\n{said[-3000:]}"
    raise FetchError(msg)


def _ivy_file(coordinates: list[Coordinate], *, transitive: bool) -> str:
    """A module that depends on `coordinates`: the command line alone takes only one of them."""
    dependencies = "".join(
        f"<dependency org={quoteattr(organisation)} name={quoteattr(module)} rev={quoteattr(version)}"
        f' transitive="{str(transitive).lower()}" conf="default"/>'
        for organisation, module, version in coordinates
    )
    return (
        '<ivy-module version="2.0"><info organisation="tests" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>"
    )

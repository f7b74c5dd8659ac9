"""A schema registry for the tests: Apicurio's, which serves the API of Confluent's. It keeps nothing when it stops.

The distribution is fetched once from Maven Central, as the broker's jars are. It is an archive, so Ivy does not fetch
it; its digest is known. This is the last version for Java 17. ``python -m tests.servers.registry`` fetches it alone.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
import urllib.request
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from cojoin.errors import EnvironmentSetupError
from cojoin.session.jars import cache_folder
from cojoin.storage.local_store import locked
from tests.servers import Server, ServerError, free_ports
from tests.servers.jars import java

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION = "2.6.13.Final"
DIGEST = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
NAME = f"apicurio-registry-app-{VERSION}"
PLACE = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/{NAME}-all.tar.gz"
START_SECONDS = 180


def registry_folder() -> Path:
    """Return the folder of the registry's program; it is fetched if it is not there."""
    folder = cache_folder() / NAME
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{NAME}.lock"), lambda: None):
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{NAME}-") as work:
        archive, unpacked = Path(work) / "archive", Path(work) / "unpacked"
        try:
            with urllib.request.urlopen(PLACE, timeout=300) as answer, archive.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as error:
            msg = f"could not fetch {PLACE}: {error}; it needs the network, once"
            raise EnvironmentSetupError(msg) from error
        found = sha256(archive.read_bytes()).hexdigest()
        if found != DIGEST:
            msg = f"{PLACE}: expected the digest {DIGEST}, got {found}"
            raise ServerError(msg)
        with tarfile.open(archive) as packed:
            packed.extractall(unpacked, filter="data")
        unpacked.rename(folder)


class RegistryServer:
    """A schema registry, running inside its `with` block; with `port` at that of one that has stopped."""

    def __init__(self, port: int | None = None) -> None:
        self.port = free_ports(1)[0] if port is None else port
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: Server | None = None

    @property
    def url(self) -> str:
        """The address of the API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    @property
    def client(self) -> SchemaRegistryClient:
        """A client of its own, which remembers nothing."""
        return SchemaRegistryClient({"url": self.url})

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        """Register a schema, and return its id."""
        return int(self.client.register_schema(subject, Schema(schema, kind)))

    def __enter__(self) -> Self:
        program = registry_folder() / f"{NAME}-runner.jar"
        self._folder = tempfile.TemporaryDirectory(prefix="cojoin-registry-")
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1"]
        options += [f"-Dquarkus.http.port={self.port}", "-Dregistry.rest.artifact.deletion.enabled=true"]
        command = [java(), *options, "-jar", str(program)]
        try:
            self._server = Server("registry", command, Path(self._folder.name))
            self._server.wait_until(self._serves, START_SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _serves(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
            return bool(answer.status == 200)

    def stop(self) -> None:
        """End the registry that this object started; a second call does nothing."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


if __name__ == "__main__":
    try:
        registry_folder()
    except EnvironmentSetupError as error:
        sys.exit(str(error))

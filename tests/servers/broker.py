"""A Kafka broker for the tests: real, alone, without Docker, with nothing kept when it stops.

Records carry event times of any year, so the broker never deletes by age, rolls no file by a record's time and takes
times from the future. Topics are made only on demand: a misspelled name is an error, not an empty topic. A guarded one
listens with logins and with TLS as well, each way at an address of its own; who comes without a login may do
everything, a user what access lists say.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import Server, ServerError, archive_options, free_ports
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.jars import broker_class_path, java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

CLUSTER_ID = "Y29qb2luLXRlc3RzLTAwMQ"  # any 16 bytes: no other broker ever reads the storage
START_SECONDS = 240
TOPIC_SECONDS = 30

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
log.retention.ms=-1
log.roll.ms=9223372036854775807
log.message.timestamp.after.max.ms=9223372036854775807
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=200
"""

USERS = {"ali": "opensesame-of-ali", "morgiana": "opensesame-of-morgiana"}
"""The users of a guarded broker, with their passwords, for PLAIN and for SCRAM."""

MUTUAL_USER = "cassim"
"""The user whom a guarded broker knows by a certificate."""

CERTIFIED_HOST = "kafka.cojoin.example"
"""The host that a guarded broker's certificate names: not the one that it is reached by."""

KEYS_PASSWORD = "of-tests-alone"  # of keys that live as long as their broker

GUARDED = """\
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},\\
  SASL_PLAINTEXT://127.0.0.1:{login_port},SSL://127.0.0.1:{tls_port},\\
  SASL_SSL://127.0.0.1:{secure_port},MUTUAL://127.0.0.1:{mutual_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login_port},SSL://127.0.0.1:{tls_port},\\
  SASL_SSL://127.0.0.1:{secure_port},MUTUAL://127.0.0.1:{mutual_port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,\\
  SASL_SSL:SASL_SSL,MUTUAL:SSL
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl_ssl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms=3600000
listener.name.sasl_ssl.ssl.keystore.type=PEM
listener.name.sasl_ssl.ssl.keystore.location={server}
listener.name.mutual.ssl.keystore.type=PEM
listener.name.mutual.ssl.keystore.location={server}
listener.name.mutual.ssl.truststore.type=PEM
listener.name.mutual.ssl.truststore.location={authority}
listener.name.mutual.ssl.client.auth=required
listener.name.mutual.ssl.principal.mapping.rules=RULE:^CN=(.*)$/$1/
listener.name.ssl.ssl.keystore.type=PKCS12
listener.name.ssl.ssl.keystore.location={keys}
listener.name.ssl.ssl.keystore.password={keys_password}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""

# The three requests of Kafka's protocol that this needs, as (key, version); a Java tool takes seconds for each of them.
LIST_OFFSETS, METADATA, CREATE_TOPICS = (2, 1), (3, 1), (19, 2)


class Broker:
    """A single-node broker, running inside its `with` block."""

    def __init__(self, *, guarded: bool = False, options: Sequence[str] = ()) -> None:
        """Choose the addresses; nothing runs yet.

        Args:
            guarded: Whether it also listens with logins and with TLS, and obeys access lists.
            options: Further options of its JVM.
        """
        self._guarded, self._options = guarded, options
        self._port, self._controller_port, self._login_port, self._tls_port = free_ports(4)
        self._secure_port, self._mutual_port = free_ports(2)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: Server | None = None
        self._certificates: Certificates | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What Kafka's clients call the address."""
        return f"127.0.0.1:{self._port}"

    @property
    def login_servers(self) -> str:
        """The address at which a guarded broker takes logins."""
        return f"127.0.0.1:{self._login_port}"

    @property
    def tls_servers(self) -> str:
        """The address at which a guarded broker speaks TLS; it signed its certificate itself, for another host."""
        return f"127.0.0.1:{self._tls_port}"

    @property
    def secure_servers(self) -> str:
        """The address of logins by TLS: PLAIN, SCRAM, and OAUTHBEARER with tokens that nobody signed."""
        return f"127.0.0.1:{self._secure_port}"

    @property
    def mutual_servers(self) -> str:
        """The address at which a client's certificate is its login."""
        return f"127.0.0.1:{self._mutual_port}"

    @property
    def certificates(self) -> Certificates:
        """The certificates of these two addresses, and that of the client ``MUTUAL_USER``."""
        assert self._certificates is not None, "not a guarded broker, or it does not run"
        return self._certificates

    @property
    def pid(self) -> int:
        """The broker's process id."""
        return self._running.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Fetch the jars if need be, format the storage, start the broker and wait until it serves."""
        runtime, class_path = java(), broker_class_path()
        self._folder = tempfile.TemporaryDirectory(prefix="cojoin-kafka-")
        folder = Path(self._folder.name)
        options = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *archive_options("kafka").split()]
        command = [runtime, *options, "-cp", class_path]
        settings = folder / "server.properties"
        values = {"port": self._port, "controller_port": self._controller_port, "data": (folder / "data").as_posix()}
        content = SETTINGS.format(**values)
        if self._guarded:
            self._certificates = certified = make_certificates(folder, MUTUAL_USER)
            # Of a setting that is there twice the last counts.
            content += GUARDED.format(
                **values,
                login_port=self._login_port,
                tls_port=self._tls_port,
                secure_port=self._secure_port,
                mutual_port=self._mutual_port,
                server=certified.server.as_posix(),
                authority=certified.authority.as_posix(),
                users=" ".join(f'user_{name}="{password}"' for name, password in USERS.items()),
                keys=_make_keys(folder).as_posix(),
                keys_password=KEYS_PASSWORD,
            )
        settings.write_text(content, encoding="utf-8")
        try:
            _format(command, settings, USERS if self._guarded else {})
            self._server = Server(
                "kafka", [runtime, *self._options, *command[1:], "kafka.Kafka", str(settings)], folder
            )
            self._server.wait_until(self._serves, START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self, seconds: float = 15) -> None:
        """End the broker that this object started, and forget its data; a second call does nothing."""
        if self._server is not None:
            self._server.stop(seconds)
            self._server = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic, and return when each of its partitions can be read and written."""
        server = self._running
        topic = _text(name) + struct.pack(">ihii", partitions, 1, 0, 0)
        body = struct.pack(">i", 1) + topic + struct.pack(">ib", TOPIC_SECONDS * 1000, 0)
        answer = self._ask(CREATE_TOPICS, body)
        (code,) = struct.unpack_from(">h", answer, 4 + 4 + len(_text(name)))
        if code:
            msg = f"made no topic {name!r} of {partitions} partitions: Kafka's error code {code}"
            raise ServerError(server.report(msg))
        server.wait_until(lambda: self._leads(name, partitions), TOPIC_SECONDS)

    @property
    def _running(self) -> Server:
        if self._server is None:
            msg = "the broker is not running: use it inside its `with` block"
            raise ServerError(msg)
        return self._server

    def _serves(self) -> bool:
        """Whether the broker counts itself among the live ones, which it does last of all."""
        (brokers,) = struct.unpack_from(">i", self._ask(METADATA, struct.pack(">i", 0)))
        return bool(brokers)

    def _leads(self, topic: str, partitions: int) -> bool:
        """Whether the broker knows the end of each partition: the topic is made a moment before."""
        latest = b"".join(struct.pack(">iq", partition, -1) for partition in range(partitions))
        body = struct.pack(">ii", -1, 1) + _text(topic) + struct.pack(">i", partitions) + latest
        answers = self._ask(LIST_OFFSETS, body)[4 + len(_text(topic)) + 4 :]
        return all(code == 0 for _, code, _, _ in struct.iter_unpack(">ihqq", answers))

    def _ask(self, request: tuple[int, int], body: bytes) -> bytes:
        """Send one request over a connection of its own, and return the answer without its header."""
        header = struct.pack(">hhi", *request, 0) + _text("cojoin-tests")
        with socket.create_connection(("127.0.0.1", self._port), timeout=TOPIC_SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            with connection.makefile("rb") as stream:
                prefix = stream.read(4)
                answer = stream.read(struct.unpack(">i", prefix)[0]) if len(prefix) == 4 else b""
        if len(answer) < 4:
            msg = "the broker closed the connection without an answer"
            raise ConnectionError(msg)
        return answer[4:]


def _text(value: str) -> bytes:
    """A string as Kafka's protocol writes it: its length, then its bytes."""
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _make_keys(folder: Path) -> Path:
    """Make a key with a certificate that it signed itself, for a host of another name."""
    keytool, keys = Path(java()).with_name("keytool"), folder / "keys.p12"
    command = [str(keytool), "-genkeypair", "-alias", "broker", "-keyalg", "EC", "-groupname", "secp256r1"]
    command += ["-dname", f"CN={CERTIFIED_HOST}", "-ext", f"SAN=dns:{CERTIFIED_HOST}", "-ext", "bc:c", "-validity", "2"]
    command += ["-storetype", "PKCS12", "-keystore", str(keys), "-storepass", KEYS_PASSWORD]
    run = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    if run.returncode != 0:
        msg = f"could not make the broker's keys:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
        raise ServerError(msg)
    return keys


def _format(command: list[str], settings: Path, users: Mapping[str, str]) -> None:
    """Write the storage's identity, without which a broker does not start, and the users who log in by SCRAM."""
    tool = [*command, "kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(settings)]
    for name, password in users.items():
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            tool += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
    run = subprocess.run(tool, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    if run.returncode != 0:
        msg = f"could not format the broker's storage:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
        raise ServerError(msg)

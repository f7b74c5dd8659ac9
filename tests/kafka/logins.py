"""The ways to log in to the tests' broker, as arguments of ``cojoin.kafka.source``."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from pyspark.serializers import CloudPickleSerializer

from cojoin.kafka.reader import AlignedReader
from tests.kafka.replayed import admin
from tests.servers.broker import MUTUAL_USER, USERS

if TYPE_CHECKING:
    from collections.abc import Callable

    import cojoin as cj
    from tests.servers.broker import Broker

TOKEN_USER = "zora"
"""The user whom the tokens of these tests name."""

TOKEN_BEGIN = base64.urlsafe_b64encode(b'{"alg": "none"}').rstrip(b"=").decode()
"""How each of these tokens begins."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LOGINS = (*MECHANISMS, "token", "mutual")


def unsigned_token(user: str = TOKEN_USER, seconds: float = 3_600) -> str:
    """Return a token that nobody signed, as the tests' broker takes them."""
    now = time.time()
    claims = json.dumps({"sub": user, "iat": now - 60, "exp": now + seconds}).encode()
    return f"{TOKEN_BEGIN}.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}."


def token_function(seconds: float = 3_600) -> Callable[[], tuple[str, float]]:
    """Return a function that returns tokens; it is sent to the workers with what it holds."""

    def token() -> tuple[str, float]:
        return unsigned_token(seconds=seconds), seconds

    return token


def login(broker: Broker, how: str) -> dict[str, Any]:
    """Return the servers and arguments of a login: a mechanism with a password, ``token`` or ``mutual``."""
    certificates = broker.certificates
    authority = {"ssl.ca.pem": certificates.authority.read_text()}
    if how == "mutual":
        own = {
            "ssl.certificate.pem": certificates.client.read_text(),
            "ssl.key.pem": certificates.client_key.read_text(),
        }
        options = {"security.protocol": "SSL", **authority, **own}
        return {"bootstrap_servers": broker.mutual_servers, "options": options}
    if how == "token":
        return {"bootstrap_servers": broker.secure_servers, "options": authority, "token": token_function()}
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": how, **authority}
    options |= {"sasl.username": "ali", "sasl.password": USERS["ali"]}
    return {"bootstrap_servers": broker.secure_servers, "options": options}


def secrets(broker: Broker) -> list[str]:
    """Return what must not be seen: the password, also as it is encoded, the key's lines, how a token begins."""
    password, key = USERS["ali"], broker.certificates.client_key.read_text().splitlines()[1:-1]
    return [password, base64.b64encode(password.encode()).decode().rstrip("="), TOKEN_BEGIN, *key]


def user_of(how: str) -> str:
    """Return whom a login names."""
    return {"token": TOKEN_USER, "mutual": MUTUAL_USER}.get(how, "ali")


def allow(
    broker: Broker, user: str, kind: ResourceType, name: str, *operations: AclOperation, prefixed: bool = False
) -> list[AclBinding]:
    """Let a user do something with a topic, a group or a transactional id, and return the rights."""
    how = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    bindings = [AclBinding(kind, name, how, f"User:{user}", "*", each, AclPermissionType.ALLOW) for each in operations]
    client = admin(broker.bootstrap_servers)  # without a name it would be closed before it has answered
    for done in client.create_acls(bindings).values():
        done.result(20)
    return bindings


def grant(broker: Broker, user: str, *topics: str) -> None:
    """Let a user read topics, and nothing else."""
    bindings = [right for each in topics for right in allow(broker, user, ResourceType.TOPIC, each, AclOperation.READ)]
    client = admin(broker.bootstrap_servers)
    every = ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY
    deadline = time.monotonic() + 20
    while not set(bindings) <= set(client.describe_acls(AclBindingFilter(ResourceType.TOPIC, None, *every)).result(20)):
        assert time.monotonic() < deadline


def read_to_the_end(
    source: cj.kafka.KafkaSource, start: dict[str, Any] | None = None
) -> tuple[list[tuple[str, int, int]], dict[str, Any]]:
    """Read what is there as a bounded run does, its tasks as they are sent to workers, but in this process.

    Args:
        source: The topics.
        start: The offset at which an earlier run ended.

    Returns:
        The records' topics, partitions and offsets, and the offset at which this run ended.
    """
    spark = CloudPickleSerializer()
    reader = spark.loads(spark.dumps(AlignedReader(source.reading(2))))
    found: list[tuple[str, int, int]] = []
    try:
        reader.prepareForTriggerAvailableNow()
        at = reader.initialOffset() if start is None else start
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            tasks = spark.loads(spark.dumps(reader.partitions(at, end)))
            worker = spark.loads(spark.dumps(reader))
            for batch in (each for task in tasks for each in worker.read(task)):
                columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
                found += [each for each in zip(*columns, strict=True) if each[2] is not None]
            at = end
    finally:
        reader.stop()
    return sorted(found), at

"""Schemas of a registry, asked for once a process and kept, by confluent-kafka's own client.

What an id stands for never changes, so it is kept as long as the process lives. An id that the registry does not know
is asked for again after half a minute. A registry that does not answer is an error that names it: within seconds before
a query starts, and after about half a minute while it runs. An answer costs a request of some milliseconds, and the
first one in a process half a second more, for the client's imports.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cojoin.errors import ConfigurationError, QueryFailedError
from cojoin.installed_packages import check_packages
from cojoin.kafka.formats.registry import TokenFunctionError
from cojoin.kafka.formats.registry_refusals import answer_problem, client_problem, no_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cojoin.kafka.formats.registry import Registry
    from cojoin.kafka.formats.wire_format import SchemaName

__all__ = ["FoundSchema", "MissingReferenceError", "SchemaLookup", "check_registry"]

_AT_START = {"timeout": 4, "max.retries": 1, "retries.wait.ms": 200}
_RUNNING = {"timeout": 10, "max.retries": 8, "retries.wait.ms": 500, "retries.max.wait.ms": 8_000}
_UNKNOWN_SECONDS = 30.0
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403
_MOST_KEPT = 10_000

_CLIENTS: dict[tuple[object, ...], Any] = {}
_FOUND: dict[tuple[object, ...], FoundSchema] = {}
_UNKNOWN: dict[tuple[object, ...], float] = {}
_LOCK = threading.Lock()


class MissingReferenceError(QueryFailedError):
    """A schema refers to another one that the registry does not have."""


@dataclass(frozen=True)
class FoundSchema:
    """A schema of the registry.

    Attributes:
        kind: ``"AVRO"``, ``"PROTOBUF"`` or ``"JSON"``.
        text: The schema.
        references: The schemas that it refers to, each with the name by which it does, those first that others need.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaLookup:
    """Looks up schemas of one registry.

    Args:
        registry: The registry.
        what: The input, for messages.
        at_start: Whether no query runs yet: then the registry is not waited for.
    """

    def __init__(self, registry: Registry, what: str, *, at_start: bool = False) -> None:
        self._registry, self._at_start = registry, at_start
        self._place, self._known_by = f"{what}: schema registry {registry.title}", (*registry.known_by, at_start)

    def by_id(self, number: SchemaName) -> FoundSchema | None:
        """Return the schema of an id or a GUID; None where the registry does not know it.

        Raises:
            ConfigurationError: The registry refuses the login, or there is none at the address.
            MissingReferenceError: The schema refers to one that is not there.
            QueryFailedError: It does not answer.
        """
        place = (*self._registry.known_by, number)
        with _LOCK:
            if (known := _FOUND.get(place)) is not None:
                return known
            if time.monotonic() < _UNKNOWN.get(place, 0.0):
                return None
            if isinstance(number, int):
                answer = self.ask(lambda client: client.get_schema(number), {_NO_SCHEMA})
            else:
                # A registry without GUIDs has nothing at this address.
                answer = self.ask(lambda client: client.get_schema_by_guid(str(number)), {_NO_SCHEMA, 404})
            if answer is None:
                _forget_some(_UNKNOWN)
                _UNKNOWN[place] = time.monotonic() + _UNKNOWN_SECONDS
                return None
            _forget_some(_FOUND)
            return _FOUND.setdefault(place, self._found(answer))

    def of_subject(self, subject: str, version: int | None) -> FoundSchema:
        """Return a version of a subject, the newest for None.

        Raises:
            ConfigurationError: There is no such subject or version, or what ``by_id`` raises.
            QueryFailedError: The registry does not answer.
        """
        with _LOCK:
            answer = self.ask(
                lambda client: _newest(client, subject) if version is None else client.get_version(subject, version),
                {_NO_SUBJECT, _NO_VERSION},
            )
            if answer is None:
                there = self.ask(lambda client: client.get_versions(subject), {_NO_SUBJECT, _NO_VERSION})
                if there:
                    missing = f"subject {subject!r} has no version {version}; it has {', '.join(map(str, there))}"
                else:
                    missing = f"there is no subject {subject!r}; name another with subject=, or give the columns as DDL"
                msg = f"{self._place}: {missing}"
                raise ConfigurationError(msg)
            return self._found(answer.schema)

    def newest_of(self, subject: str, version: int | None) -> tuple[int, FoundSchema] | None:
        """Return a version of a subject, the newest for None, with its id; None where there is no such subject.

        Raises:
            ConfigurationError: There is no such version, or what ``by_id`` raises.
            QueryFailedError: The registry does not answer.
        """
        if version is not None:
            found = self.of_subject(subject, version)
            with _LOCK:
                answer = self.ask(lambda client: client.get_version(subject, version))
            return int(answer.schema_id), found
        with _LOCK:
            answer = self.ask(lambda client: _newest(client, subject), {_NO_SUBJECT, _NO_VERSION})
            return None if answer is None else (int(answer.schema_id), self._found(answer.schema))

    def register(self, subject: str, schema: FoundSchema) -> int:
        """Register a schema, and return its id.

        Raises:
            ConfigurationError: The registry refuses the login, or that this user registers.
            QueryFailedError: It does not answer, or does not take the schema.
        """
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - takes half a second

        with _LOCK:
            return int(self.ask(lambda client: client.register_schema(subject, Schema(schema.text, schema.kind))))

    def _found(self, schema: Any) -> FoundSchema:
        references: dict[str, str] = {}
        self._add_references(schema, references)
        return FoundSchema(str(schema.schema_type or "AVRO"), str(schema.schema_str), tuple(references.items()))

    def _add_references(self, schema: Any, found: dict[str, str]) -> None:
        for each in schema.references or ():
            if each.name in found:
                continue
            asked = lambda client, each=each: client.get_version(each.subject, each.version)  # noqa: E731
            answer = self.ask(asked, {_NO_SUBJECT, _NO_VERSION})
            if answer is None:
                msg = (
                    f"{self._place}: a schema refers to version {each.version} of subject {each.subject!r}, which is "
                    f"not there; register it again"
                )
                raise MissingReferenceError(msg)
            self._add_references(answer.schema, found)
            found[each.name] = str(answer.schema.schema_str)

    def ask(self, question: Callable[[Any], Any], absent: Collection[int] = ()) -> Any:
        """Return what a function of the client returns; None where the registry answers with a code of ``absent``.

        Raises:
            ConfigurationError: The registry refuses the login, or there is none at the address.
            QueryFailedError: It does not answer. While a query runs, also a token function that fails, or a certificate
                that is not taken; they are a ConfigurationError before.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - takes half a second

        try:
            return question(self._client())
        except SchemaRegistryError as error:
            if error.error_code in absent or error.http_status_code in absent:
                return None
            status, said = error.http_status_code, str(error.error_message)
            raise answer_problem(self._registry, self._place, status, said) from None
        except (ConfigurationError, QueryFailedError):
            raise
        except TokenFunctionError as error:
            kind = ConfigurationError if self._at_start else QueryFailedError
            msg = f"{self._place}: token: {error}"
            raise kind(msg) from None
        except Exception as error:  # noqa: BLE001 - the client raises those of its HTTP library
            _CLIENTS.pop(self._known_by, None)  # the next one reads certificates again, which may be renewed
            raise no_answer(self._registry, self._place, error, at_start=self._at_start) from None

    def _client(self) -> Any:
        if self._known_by not in _CLIENTS:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415

            settings: dict[str, Any] = {"url": self._registry.url} | (_AT_START if self._at_start else _RUNNING)
            settings |= dict(self._registry.settings)
            if self._registry.token is not None:
                settings |= {
                    "bearer.auth.credentials.source": "CUSTOM",
                    "bearer.auth.custom.provider.function": _fields,
                    "bearer.auth.custom.provider.config": {
                        "registry": self._registry,
                        "cluster": settings.pop("bearer.auth.logical.cluster", ""),
                    },
                }
            try:
                _CLIENTS[self._known_by] = SchemaRegistryClient(settings)
            except (ValueError, TypeError, OSError) as error:
                problem = client_problem(self._registry, error)
                msg = f"{self._place}: {problem}"
                raise ConfigurationError(msg) from None
        return _CLIENTS[self._known_by]


def _newest(client: Any, subject: str) -> Any:
    client.clear_latest_caches()  # the client would keep the version that was the newest when it was first asked
    return client.get_latest_version(subject)


def _fields(config: dict[str, Any]) -> dict[str, Any]:
    registry: Registry = config["registry"]
    return {"bearer.auth.token": registry.asked_token(), "bearer.auth.logical.cluster": config["cluster"]}


def _forget_some(kept: dict[Any, Any]) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()


def check_registry(what: str, *needed: str) -> None:
    """Check that the packages for a registry's schemas are installed.

    Args:
        what: The input, for the message.
        needed: The further modules that the format needs.

    Raises:
        EnvironmentSetupError: One is missing.
    """
    check_packages(what, "registry", "confluent_kafka", "httpx2", *needed)

"""Messages for what brokers refuse to a sink: what was expected, what they said, and what to do."""

from __future__ import annotations

__all__ = ["LOST", "PASSING", "send_problem", "timeout_problem"]

LOST = {
    *("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE"),
    *("_FATAL", "_STATE", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "UNKNOWN_PRODUCER_ID", "TRANSACTION_ABORTABLE"),
}
"""The errors of a transaction that was ended by others: by a later producer of its id, or because it took too long."""

PASSING = {
    *("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
    *("UNSTABLE_OFFSET_COMMIT", "GROUP_COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR_FOR_GROUP", "_WAIT_COORD"),
}
"""Errors of a coordinator that is just starting, or still ends an earlier transaction."""

_TRANSACTION_TIMEOUT = "transaction.timeout.ms"


_KINDS = {
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "the brokers do not let this user write transactions: {said}; grant it WRITE and DESCRIBE on the transactional "
        "ids that begin with 'cojoin-', such as {application!r}, or use delivery='at_least_once'"
    ),
    "GROUP_AUTHORIZATION_FAILED": (
        "the brokers do not let this user keep its position: {said}; grant it READ and DESCRIBE on the consumer groups "
        "that begin with 'cojoin-', such as {application!r}, or use delivery='at_least_once'"
    ),
    "TOPIC_AUTHORIZATION_FAILED": (
        "the brokers do not let this user write: {said}; grant it WRITE, READ and DESCRIBE on the topic {topic!r}"
    ),
    "UNKNOWN_TOPIC_OR_PART": "there is no topic {topic!r} any more: {said}; create it, and start a new query",
    "INVALID_TRANSACTION_TIMEOUT": (
        "option transaction.timeout.ms: {said}; expected at most the brokers' transaction.max.timeout.ms, which is 15 "
        "minutes by default: give the option a smaller value, or the brokers a larger one"
    ),
    "UNSUPPORTED_VERSION": (
        "the brokers have no transactions: {said}; expected Kafka 2.5 or later, or use delivery='at_least_once'"
    ),
    "MSG_SIZE_TOO_LARGE": (
        "a record is larger than topic {topic!r} takes: {said}; nothing of the batch was committed. Give the topic a "
        "larger max.message.bytes and start the query again, or write fewer or smaller columns in a new query"
    ),
    "OFFSET_METADATA_TOO_LARGE": (
        "the brokers' offset.metadata.max.bytes is too small: {said}; expected its default, 4096, or more"
    ),
    "INVALID_RECORD": (
        "topic {topic!r} does not take a record: {said}; a compacted topic needs a key in each record: give key=, with "
        "a column that is never null"
    ),
}
_SAME = {
    "CLUSTER_AUTHORIZATION_FAILED": "TOPIC_AUTHORIZATION_FAILED",
    "UNKNOWN_TOPIC_ID": "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_PARTITION": "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC": "UNKNOWN_TOPIC_OR_PART",
    "_UNSUPPORTED_FEATURE": "UNSUPPORTED_VERSION",
}


def send_problem(name: str, said: str, *, topic: str, application: str) -> str | None:
    """Return what to do about an error of a producer; None for an error that it has no advice for.

    Args:
        name: librdkafka's name of the error.
        said: Its text, without secrets.
        topic: The topic.
        application: The beginning of the transactional ids and of the groups.

    >>> print(send_problem("UNKNOWN_TOPIC_ID", "unknown", topic="enriched", application="cojoin-0b8e-output"))
    there is no topic 'enriched' any more: unknown; create it, and start a new query
    """
    text = _KINDS.get(_SAME.get(name, name))
    return None if text is None else text.format(said=said, topic=topic, application=application)


def timeout_problem(seconds: float, timeout_ms: int) -> str:
    """Return the message for a transaction that the brokers ended because it took too long.

    Args:
        seconds: How long it took.
        timeout_ms: How long it might take.
    """
    return (
        f"its transaction took {seconds:.0f} s, and the brokers end one after {timeout_ms / 1000:g} s "
        f"({_TRANSACTION_TIMEOUT}); nothing of the batch was written. Give the option {_TRANSACTION_TIMEOUT} a larger "
        f"value (up to the brokers' transaction.max.timeout.ms), or read fewer rows a batch, and start the query again"
    )

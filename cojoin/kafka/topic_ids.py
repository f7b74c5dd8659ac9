"""The ids of a source's cluster and topics, which show whether its offsets still belong to the same records.

A cluster has an id, and so has a topic; a topic that is created anew gets another one. A checkpoint keeps both. They
are compared with what the brokers report at every start; the topics' ids are also compared for every batch while a
query runs. In another cluster, or in a topic that was created anew, an offset belongs to another record, so going on
would miss records or read them twice, without an error. This is always refused. ``data_loss="skip"`` and
``allow_data_loss=True`` go on without records that no longer exist; they do not accept other records.

Brokers before Kafka 2.8 have no topic ids, and checkpoints of cojoin 0.5.0 have neither id: there the ids are added
when they are known, and compared from the next start on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["difference", "merged"]


def difference(known: Mapping[str, Any], found: Mapping[str, Any], servers: str) -> str | None:
    """Return how a source differs from before, and what to do; None where it does not, or where that can't be known.

    Args:
        known: The ids that were kept: ``cluster``, an id, and ``topics``, ids by name; each may be missing.
        found: The ids now, in the same form.
        servers: The bootstrap servers of the cluster now.

    >>> difference({"topics": {"trades": "a"}}, {"cluster": "c", "topics": {"trades": "a", "quotes": "b"}}, "one:9092")
    >>> print(difference({"topics": {"trades": "a"}}, {"topics": {"trades": "b"}}, "one:9092"))
    topic 'trades' was deleted and made anew since it was read (its id was a and is b), so its offsets are other \
records'; begin a new query, with a checkpoint of its own
    """
    old, new = known.get("cluster"), found.get("cluster")
    if old is not None and new is not None and old != new:
        return (
            f"what was read is in the Kafka cluster {old}, and {servers} are the cluster {new}, where the same offsets "
            f"are other records'; name brokers of {old} as bootstrap_servers, or begin a new query, with a checkpoint "
            f"of its own"
        )
    topics = found.get("topics") or {}
    for name, one in (known.get("topics") or {}).items():
        two = topics.get(name)
        if one is not None and two is not None and one != two:
            return (
                f"topic {name!r} was deleted and made anew since it was read (its id was {one} and is {two}), so its "
                f"offsets are other records'; begin a new query, with a checkpoint of its own"
            )
    return None


def merged(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids to keep: those found now, and those of topics that do not exist at the moment.

    >>> merged({"topics": {"trades-2025": "a"}}, {"cluster": "c", "topics": {"trades-2026": "b"}})
    {'cluster': 'c', 'topics': {'trades-2025': 'a', 'trades-2026': 'b'}}
    """
    topics = {**(known.get("topics") or {}), **(found.get("topics") or {})}
    cluster = found.get("cluster") or known.get("cluster")
    return ({"cluster": cluster} if cluster else {}) | ({"topics": topics} if topics else {})

"""Upserts: a table keeps one row for each key, and which one does not depend on the batches in which the rows came.

Of several rows of one key the *greatest* stays (``conflict="last"``) or the *least* (``"first"``). Rows are compared by
the columns that order them, then by their content, column by column, as in the engine's total order
(``ordering.sort_keys``): nulls first, NaN last. With ``"error"`` no key may come twice.

With ``order_by``, rows are ordered by these columns, and the stored row of a key is compared like any other. Without
it, they are ordered by the columns in whose order the output is emitted over all batches (``Plan.output_order``). A
later batch then has the greater rows, so its rows replace stored ones with ``"last"``, and not with ``"first"``.

A row with a null in its key is left out and counted, since no table can look for it. A row that the ``deletes`` column
marks is not stored: if it is the one of its key that stays, the stored row is removed. A later row could not be
compared with a removed row, so ``deletes`` can't be combined with ``order_by``.

It costs one encoding of a batch's keys, and a sort of the rows whose keys come more than once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cojoin.engine.ordering import sort_keys
from cojoin.engine.values.arguments import check_word
from cojoin.engine.values.hashes import key_hashes
from cojoin.engine.values.keys import KEYABLE, encode_keys, is_keyable
from cojoin.engine.values.rows import decode_rows
from cojoin.engine.values.tables import concat
from cojoin.engine.values.types import type_to_ddl
from cojoin.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

Conflict: TypeAlias = Literal["last", "first", "error"]
"""Which of the rows of one key stays."""


class KeyedRows(NamedTuple):
    """The keys of some rows: the positions of the rows without a null in their key, and a code for each one's key.

    ``null_keys`` is the number of the other rows; ``repeated`` is that of rows with a key, less that of distinct keys.
    """

    places: NDArray[np.int64]
    codes: NDArray[np.int64]
    null_keys: int
    repeated: int


class Standing(NamedTuple):
    """The positions of the rows that stay, in rising order, and the numbers of those that do not, by reason."""

    places: NDArray[np.int64]
    null_keys: int
    superseded: int


@dataclass(frozen=True)
class Upsert:
    """The rule of an upsert.

    Attributes:
        key: The columns whose values together are distinct in each row of the table.
        conflict: Which of the rows of one key stays.
        order_by: The columns of the output by which rows are compared, also with stored ones; none where the order of
            the output decides.
        deletes: A boolean column that marks the rows that remove the stored one; it is not stored.
    """

    key: tuple[str, ...]
    conflict: Conflict = "last"
    order_by: tuple[str, ...] = ()
    deletes: str | None = None

    @classmethod
    def of(cls, key: Any, conflict: Any, order_by: Any, deletes: Any, sink: str) -> Upsert | None:
        """Return the rule of a sink's arguments; None without a key.

        Raises:
            ConfigurationError: An argument is invalid, or needs another one.
        """
        columns, order = _names(key, f"{sink}: upsert"), _names(order_by, f"{sink}: order_by")
        if not columns:
            for name, value in (("conflict", conflict != "last"), ("order_by", order), ("deletes", deletes)):
                if value:
                    msg = f'{sink}: {name}: it is for upserts; name the columns of the key, such as upsert=["trade_id"]'
                    raise ConfigurationError(msg)
            return None
        check_word(f"{sink}: conflict", conflict, get_args(Conflict))
        if deletes is not None and (not isinstance(deletes, str) or not deletes):
            msg = f"{sink}: deletes: expected the name of a boolean column, or None, got {deletes!r}"
            raise ConfigurationError(msg)
        if deletes is not None and (order or conflict != "last"):
            other = "order_by=" if order else f"conflict={conflict!r}"
            msg = (
                f"{sink}: deletes: it does not go with {other}: nothing remains of a removed row that a later one "
                f"could be compared with; leave deletes= out, so that the column is stored, and readers filter by it"
            )
            raise ConfigurationError(msg)
        if order and conflict == "error":
            msg = f"{sink}: order_by: it does not go with conflict='error', by which no key may come twice"
            raise ConfigurationError(msg)
        return cls(columns, conflict, order, deletes)

    def within(self, schema: pa.Schema, order: Sequence[str] | None, role: str) -> Upsert:
        """Return the rule with the columns' names spelled as in an output's schema.

        ``order`` are the columns in whose order the output's rows are emitted over all batches, None where there are
        none. ``role`` names the output in messages.

        Raises:
            ConfigurationError: The output lacks a column, its type does not fit, or rows have no order.
        """
        names: dict[str, str] = {name.lower(): name for name in schema.names}

        def named(column: str, argument: str) -> str:
            if column.lower() not in names:
                near = did_you_mean(column, schema.names)
                msg = f"{role}: {argument}: the output has no column {column!r}{near}"
                raise ConfigurationError(msg)
            return names[column.lower()]

        key = tuple(named(column, "upsert") for column in self.key)
        order_by = tuple(named(column, "order_by") for column in self.order_by)
        deletes = None if self.deletes is None else named(self.deletes, "deletes")
        for column in key:
            if not is_keyable(schema.field(column).type):
                got = type_to_ddl(schema.field(column).type)
                msg = f"{role}: upsert: column {column!r} is {got}, and a key's columns are {KEYABLE}; cast it"
                raise ConfigurationError(msg)
        if deletes is not None and (deletes in key or not pa.types.is_boolean(schema.field(deletes).type)):
            msg = (
                f"{role}: deletes: expected a boolean column that is not of the key, got {deletes!r}, which is "
                f"{type_to_ddl(schema.field(deletes).type)}"
            )
            raise ConfigurationError(msg)
        if len(key) + (deletes is not None) == len(schema.names):
            msg = f"{role}: upsert: the output has no columns besides the key, so there is nothing to update"
            raise ConfigurationError(msg)
        if order is None and not order_by and self.conflict != "error":
            msg = (
                f"{role}: order_by: expected the columns by which rows of one key are compared, such as "
                f'order_by=["event_time"]: only the rows of a temporal join, and of an as-of join that looks backward, '
                f"are emitted in event-time order, and only if late left rows are not applied"
            )
            raise ConfigurationError(msg)
        return Upsert(key, self.conflict, order_by, deletes)

    def as_dict(self) -> dict[str, Any]:
        """Return the rule as JSON values."""
        rule = {"key": list(self.key), "conflict": self.conflict}
        rule |= {"order_by": list(self.order_by)} if self.order_by else {}
        return rule | ({} if self.deletes is None else {"deletes": self.deletes})

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of an output that are stored."""
        return pa.schema([field for field in schema if field.name != self.deletes])

    def keyed(self, rows: pa.Table) -> KeyedRows:
        """Return the positions and codes of the rows' keys."""
        keys = rows.select(list(self.key))
        places = present(keys)
        known = keys if len(places) == rows.num_rows else keys.take(pa.array(places))
        (codes,), count = encode_keys([known])
        return KeyedRows(places, codes, rows.num_rows - len(places), len(places) - count)

    def standing(self, rows: pa.Table, order: Sequence[str], keyed: KeyedRows | None = None) -> Standing:
        """Return which rows stay; ``order`` are the columns that order them without ``order_by``.

        ``keyed`` are the codes of their keys if the caller has them already. If no key comes twice, only the
        key's columns are read. With ``conflict="error"`` all rows of a key stay.

        >>> rows = pa.table({"id": [1, 2, 1, None], "at": [5, 6, 7, 8]})
        >>> Upsert(("id",)).standing(rows, ["at"])
        Standing(places=array([1, 2]), null_keys=1, superseded=1)
        """
        places, codes, null_keys, superseded = self.keyed(rows) if keyed is None else keyed
        if not superseded or self.conflict == "error":
            return Standing(places, null_keys, 0)
        is_tied = np.bincount(codes)[codes] > 1
        tied, of_key = places[is_tied], codes[is_tied]
        columns = rows.select(list(dict.fromkeys([*(self.order_by or order), *rows.column_names])))
        table = columns.take(pa.array(tied))
        ranks = [key for column in table.columns for key in sort_keys(column)]
        by_rank = np.lexsort([*reversed(ranks), of_key])
        of_key = of_key[by_rank]
        is_end = np.ones(len(of_key), dtype=bool)
        if self.conflict == "last":
            is_end[:-1] = of_key[1:] != of_key[:-1]
        else:
            is_end[1:] = of_key[1:] != of_key[:-1]
        return Standing(np.sort(np.concatenate([places[~is_tied], tied[by_rank][is_end]])), null_keys, superseded)

    def winners(self, stored: pa.Table, rows: pa.Table) -> NDArray[np.bool_]:
        """Return which rows stay by ``order_by`` when they are compared with stored ones; their keys are distinct.

        >>> stored, rows = pa.table({"id": [1, 2], "at": [5, 5]}), pa.table({"id": [2, 1], "at": [4, 6]})
        >>> Upsert(("id",), order_by=("at",)).winners(stored, rows).tolist()
        [False, True]
        """
        places = self.standing(concat([stored, rows]), ()).places
        wins = np.zeros(rows.num_rows, dtype=bool)
        wins[places[places >= stored.num_rows] - stored.num_rows] = True
        return wins

    def example(self, rows: pa.Table, keyed: KeyedRows) -> str | None:
        """Return the most frequent key of rows, with its count, for messages; None where no key comes twice.

        >>> rows, rule = pa.table({"id": [3, 4, 3]}), Upsert(("id",))
        >>> rule.example(rows, rule.keyed(rows))
        'id=3, which comes 2 times'
        """
        if not keyed.repeated:
            return None
        counts = np.bincount(keyed.codes)
        place = int(keyed.places[np.argmax(keyed.codes == counts.argmax())])
        return f"{show_key(rows.select(list(self.key)).slice(place, 1))}, which comes {counts.max():,} times"


def present(keys: pa.Table) -> NDArray[np.int64]:
    """Return the positions of the rows without a null in their key."""
    is_present = [pc.is_valid(column).to_numpy() for column in keys.columns if column.null_count]
    return np.flatnonzero(reduce(np.logical_and, is_present)) if is_present else np.arange(keys.num_rows)


def show_key(keys: pa.Table) -> str:
    """Return the key of the first row, for messages.

    >>> show_key(pa.table({"id": [3], "day": ["mon"]}))
    "id=3, day='mon'"
    """
    (row,) = decode_rows(keys.slice(0, 1), beyond=str)
    return ", ".join(f"{name}={value!r}" for name, value in row.as_dict().items())


def is_same_rule(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Return whether two results of ``Upsert.as_dict``, or None for appends, are the same rule; case is ignored."""
    return json.dumps(one).lower() == json.dumps(other).lower()


def spelled_rule(rule: Mapping[str, Any] | None) -> str:
    """Return a rule as a sink's arguments, for messages.

    >>> spelled_rule({"key": ["id"], "conflict": "last"}), spelled_rule(None)
    ("with upsert=['id'], conflict='last'", 'without upsert=')
    """
    if rule is None:
        return "without upsert="
    return "with " + ", ".join(f"{'upsert' if name == 'key' else name}={value!r}" for name, value in rule.items())


def already_stored(key: str) -> str:
    """Return the message that the table already has a key that must not come twice."""
    return (
        f"a key must not come twice, by conflict='error', and the table has {key} already; nothing was "
        f'written: choose conflict="last" or "first", or delete the row'
    )


class KeySet:
    """The distinct keys of some rows, for finding the rows of other tables that have one of them."""

    def __init__(self, keys: pa.Table) -> None:
        """Take the key columns of rows; the keys have no nulls and are distinct."""
        self._keys, hashes = keys, key_hashes(keys)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._has_collisions = bool((self._hashes[1:] == self._hashes[:-1]).any())

    def __len__(self) -> int:
        return int(self._keys.num_rows)

    def find(self, keys: pa.Table) -> NDArray[np.int64]:
        """Return for each row of ``keys`` the position of its key in this set; -1 if it is not in it or has a null.

        The columns have the types of this set's columns.

        >>> KeySet(pa.table({"id": [3, 4]})).find(pa.table({"id": [4, None, 5]})).tolist()
        [1, -1, -1]
        """
        of_rows = np.full(keys.num_rows, -1, dtype=np.int64)
        rows = present(keys)
        if not len(self) or not len(rows):
            return of_rows
        known = keys if len(rows) == keys.num_rows else keys.take(pa.array(rows))
        hashes = key_hashes(known)
        near = np.minimum(np.searchsorted(self._hashes, hashes), len(self) - 1)
        likely = np.flatnonzero(self._hashes[near] == hashes)
        if not len(likely):
            return of_rows
        # Unequal keys may have the same hash, so all keys with a hash that both sides have are compared.
        own = np.flatnonzero(np.isin(self._hashes, hashes[likely])) if self._has_collisions else np.unique(near[likely])
        positions = self._order[own]
        own_keys = self._keys.take(pa.array(positions)).rename_columns(keys.column_names)
        (codes, own_codes), count = encode_keys([known.take(pa.array(likely)), own_keys])
        position_of_code = np.full(count, -1, dtype=np.int64)
        position_of_code[own_codes] = positions
        of_rows[rows[likely]] = position_of_code[codes]
        return of_rows


def _names(declared: Any, label: str) -> tuple[str, ...]:
    columns = (declared,) if isinstance(declared, str) else () if declared is None else declared
    is_list = isinstance(columns, (list, tuple)) and all(isinstance(column, str) and column for column in columns)
    if not is_list or len({column.lower() for column in columns}) < len(columns):
        msg = f"{label}: expected a column's name, or a list of distinct names, got {declared!r}"
        raise ConfigurationError(msg)
    return tuple(columns)

"""The small files that cojoin itself writes into a checkpoint: JSON documents, each with a checksum.

A document has its format number, its query, and a checksum of its path, format and content. One that was truncated,
changed, or moved to another path is rejected, with an error that names the file, the damage and the remedy; so is one
of another query than ``query.json`` names. Release 0.5.0 wrote documents without checksums; where a document's form
allows it, these are read unchecked.

A document is written whole, over an earlier one: unconditionally, by compare-and-swap with the one that was read
(``replace_document``), or unless a later run has written it (``write_fenced``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from cojoin.errors import CheckpointError, QueryFailedError
from cojoin.storage.store import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.storage.store import Store

T = TypeVar("T")

IDENTITY = "query.json"
"""The document that names the query to which all documents of a checkpoint belong."""

_FORMAT, _SEAL, _CONTENT, _QUERY = "format", "sha256", "content", "query_id"
_MISSHAPEN = (KeyError, TypeError, ValueError, AttributeError, IndexError)

_queries: WeakKeyDictionary[Store, str] = WeakKeyDictionary()
"""The query that each store's documents belong to, once it was read; it never changes."""
_SUFFIX = ".json"
_TRIES = 5


@dataclass(frozen=True)
class Form:
    """The format and the required fields of one kind of document.

    Attributes:
        label: The kind of document, for messages, such as ``"the description of the query"``.
        format: The format that this version writes, and the newest that it reads.
        cure: What to do where a document is damaged, as the end of a sentence.
        fields: The names that the content must have, each with the types that its JSON value may have.
        unsealed: The format that release 0.5.0 wrote without a checksum; 0 where its documents had no format number;
            None where there were no such documents.
    """

    label: str
    format: int
    cure: str
    fields: Mapping[str, type | tuple[type, ...]] = field(default_factory=dict)
    unsealed: int | None = None


def to_text(name: str, form: Form, content: Mapping[str, Any], query_id: str | None = None) -> str:
    """Return the text of the document ``name``, with its format, its checksum, and its query unless that is None.

    >>> form = Form("an example", 2, "write it again")
    >>> print(to_text("example.json", form, {"a": 1}))
    {
     "format": 2,
     "sha256": "d492b94ceff6e38e88f848d8a3cb8cf55882cbc7322be20125af28d144d22613",
     "content": {
      "a": 1
     }
    }
    """
    # The checksum covers what a reader gets back: JSON turns keys into strings and tuples into lists.
    values = json.loads(json.dumps(content))
    document = {_FORMAT: form.format, _SEAL: _seal(name, form.format, values, query_id), _CONTENT: values}
    return json.dumps(document if query_id is None else {_QUERY: query_id, **document}, indent=1)


def from_text(files: Store, name: str, form: Form, text: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Return the parsed content of a document's text; the arguments and errors are those of ``read_document``."""
    content = _content(files, name, form, text)
    for required, types in form.fields.items():
        if required not in content:
            raise damaged(files, name, form, f"its {required!r} is missing")
        if not _is_of(content[required], types):
            raise damaged(files, name, form, f"its {required!r} is {_shown(content[required])}")
    try:
        return parse(content)
    except CheckpointError:
        raise
    except _MISSHAPEN as error:
        raise damaged(files, name, form, f"it is not of the shape that was written ({error!r})") from error


def damaged(files: Store, name: str, form: Form, why: str) -> CheckpointError:
    """Return the error for a damaged document."""
    msg = f"{files.named}: {name}, {form.label}, is damaged: {why}; {form.cure}"
    return CheckpointError(msg)


def _content(files: Store, name: str, form: Form, text: str) -> dict[str, Any]:
    document = _document(files, name, form, text)
    number, sealed = document.get(_FORMAT, 0), {_SEAL, _CONTENT} & set(document)
    if number > form.format:
        msg = (
            f"{files.named}: {name}, {form.label}, has the format {number}, which is newer than "
            f"{form.format}: upgrade cojoin; where no newer one was ever used with this "
            f"checkpoint, the file is damaged: {form.cure}"
        )
        raise CheckpointError(msg)
    if number == form.unsealed and not sealed:
        return {each: value for each, value in document.items() if each != _FORMAT}
    if number < form.format and not sealed:
        msg = (
            f"{files.named}: {name}, {form.label}, has the format {number}, that of an earlier version of "
            f"cojoin, which this one can't continue; start with a new checkpoint, or with the version that wrote it"
        )
        raise CheckpointError(msg)
    content = document.get(_CONTENT)
    if _SEAL not in document or not isinstance(content, dict):
        missing = _CONTENT if _SEAL in document else _SEAL
        why = f"a document of the format {number} has its {missing!r}, and this one has none"
        raise damaged(files, name, form, why)
    query_id = document.get(_QUERY)
    if document[_SEAL] != _seal(name, number, content, query_id):
        raise damaged(files, name, form, "its checksum is another's, so it is not what cojoin wrote")
    _check_query(files, name, form, query_id)
    return content


def _check_query(files: Store, name: str, form: Form, query_id: str | None) -> None:
    """Check that a document belongs to the checkpoint's query; one that names none was written before there was one."""
    known = None if query_id is None else query_of(files, name)
    if known is not None and known != query_id:
        # The query that is cached may be that of a checkpoint that was deleted and made again.
        _queries.pop(files, None)
        known = query_of(files, name)
    if known is not None and known != query_id:
        why = (
            f"it belongs to the query {query_id}, and {IDENTITY} names the query {known}: one of both is another "
            f"checkpoint's"
        )
        raise damaged(files, name, form, why)


def query_of(files: Store, name: str) -> str | None:
    """Return the query that a document belongs to; None for the one that names it, and where that one is missing."""
    if name == IDENTITY:
        return None
    if files not in _queries:
        # A damaged one names no query; reading it for its content raises the error.
        with contextlib.suppress(ValueError, AttributeError):
            identity = json.loads(files.read(IDENTITY) or "{}")
            content = identity.get(_CONTENT, identity)
            is_whole = _SEAL not in identity or identity[_SEAL] == _seal(IDENTITY, identity.get(_FORMAT), content, None)
            if is_whole and isinstance(content.get(_QUERY), str):
                _queries[files] = content[_QUERY]
    return _queries.get(files)


def _document(files: Store, name: str, form: Form, text: str) -> dict[str, Any]:
    if not text.strip():
        raise damaged(files, name, form, "it is empty")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(files, name, form, f"it is not a JSON document, or was cut off ({error})") from error
    if not isinstance(document, dict):
        raise damaged(files, name, form, f"expected a JSON object, got {_shown(document)}: cojoin did not write it")
    if _FORMAT not in document and form.unsealed != 0:
        raise damaged(files, name, form, f"it has no {_FORMAT!r}: cojoin did not write it")
    if not _is_of(document.get(_FORMAT, 0), int):
        raise damaged(files, name, form, f"expected its 'format' to be a number, got {_shown(document[_FORMAT])}")
    return document


def _is_of(value: Any, types: type | tuple[type, ...]) -> bool:
    # Not isinstance: in Python, a bool is an int.
    return type(value) in (types if isinstance(types, tuple) else (types,))


def _seal(name: str, number: int, content: Any, query_id: Any) -> str:
    sealed = [name, number, content] if query_id is None else [name, number, content, query_id]
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]}..."


def write_document(files: Store, name: str, form: Form, content: Mapping[str, Any]) -> None:
    """Write a document with its checksum, in place of an earlier one."""
    files.write(name, to_text(name, form, content, query_of(files, name)))


def read_document(files: Store, name: str, form: Form, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """Return a document's content as ``parse`` converts it; None where the document is missing.

    Raises ``CheckpointError`` where it is damaged (``parse`` fails on a missing or unexpected value, too), or has a
    newer format. The message names the file and says what to do.
    """
    text = read_text(files, name, form)
    return None if text is None else from_text(files, name, form, text, parse)


def read_text(files: Store, name: str, form: Form) -> str | None:
    """Return a document's text without checking it; None where the document is missing."""
    text, tag = read_tagged_text(files, name, form)
    return None if tag is None else text


def read_tagged_text(files: Store, name: str, form: Form) -> tuple[str, str | None]:
    """Return a document's text, unchecked, and its tag for ``replace_document``; "" and None where it is missing."""
    try:
        stored = files.read_tagged(name)
    except UnreadableFileError as error:
        raise damaged(files, name, form, f"it can't be read: {error.why}") from error
    return ("", None) if stored is None else (stored.content.decode(errors="replace"), stored.tag)


SETTLE_SECONDS = 0.2
"""The seconds that writers wait for each other without compare-and-swap: more than from a read to its write."""


def replace_document(files: Store, name: str, form: Form, content: Mapping[str, Any], tag: str | None) -> bool:
    """Write a document with its checksum if it still has the tag of ``read_tagged_text``, as ``Store.replace``."""
    return files.replace(name, to_text(name, form, content, query_of(files, name)).encode(), tag)


def epoch_in(content: Mapping[str, Any]) -> int:
    """Return the lease epoch of the run that wrote a document; 0 where none had a lease."""
    return int(content.get("epoch", 0))


def write_fenced(
    files: Store,
    name: str,
    form: Form,
    content: Mapping[str, Any],
    action: str,
    *,
    epoch_of: Callable[[Mapping[str, Any]], int] = epoch_in,
    over: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Write a document unless a later run has written it, by compare-and-swap; an equal one stays as it is.

    ``epoch_of`` returns the lease epoch of the run that wrote a content; ``over`` turns the stored content into the one
    that replaces it (None: ``content`` itself). ``QueryFailedError`` names a later run, and its ``action``;
    ``CheckpointError`` is for a damaged document, and one that other runs write again and again.
    """
    epoch = epoch_of(content)
    for _ in range(_TRIES):
        text, tag = read_tagged_text(files, name, form)
        if tag is not None and (later := from_text(files, name, form, text, epoch_of)) > epoch:
            msg = (
                f"{files.named}: fenced off: another run, of epoch {later}, {action} meanwhile; this query "
                f"held epoch {epoch} and stops"
            )
            raise QueryFailedError(msg)
        new = content if tag is None or over is None else from_text(files, name, form, text, over)
        if text == to_text(name, form, new, query_of(files, name)) or replace_document(files, name, form, new, tag):
            return
    msg = f"{files.named}: {name} is written again and again by other runs of the query; stop them"
    raise CheckpointError(msg)


def numbered_name(directory: str, number: int) -> str:
    """Return the path of a batch's document in a directory that has one for each batch.

    >>> numbered_name("manifest", 7)
    'manifest/000000000007.json'
    """
    return f"{directory}/{number:012d}{_SUFFIX}"


def numbers_in(files: Store, directory: str) -> list[int]:
    """Return the batches that have a document in a directory, in ascending order; other files are skipped."""
    stems = [name.removesuffix(_SUFFIX) for name in files.names(directory) if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())

"""The small files that cojoin itself writes into a checkpoint: JSON documents, each with a checksum.

A document is written whole, over an earlier one: without a look, or by compare-and-swap, if it still is the one that
was read (``replace_document``), or if no later run has written it (``write_fenced``). ``document_text`` is what stands
in it, and its checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from cojoin.errors import CheckpointError
from cojoin.storage.document_text import damaged, from_text, query_of, to_text
from cojoin.storage.store import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cojoin.storage.document_text import Form
    from cojoin.storage.store import Store

__all__ = [
    "numbered_name",
    "numbers_in",
    "read_document",
    "read_tagged_text",
    "read_text",
    "replace_document",
    "write_document",
    "write_fenced",
]

T = TypeVar("T")

_SUFFIX = ".json"
_TRIES = 5


def write_document(files: Store, name: str, form: Form, content: Mapping[str, Any]) -> None:
    """Write a document with its checksum, in place of an earlier one.

    Args:
        files: The checkpoint.
        name: The document's path below the checkpoint, such as ``"query.json"``.
        form: The kind of document.
        content: JSON values.
    """
    files.write(name, to_text(name, form, content, query_of(files, name)))


def read_document(files: Store, name: str, form: Form, parse: Callable[[dict[str, Any]], T]) -> T | None:
    """Read a document, check its format and checksum, and return its parsed content.

    Args:
        files: The checkpoint.
        name: The document's path below the checkpoint.
        form: The kind of document.
        parse: Converts the content, or ``dict``. Where it fails on a missing or unexpected value, the document counts
            as damaged.

    Returns:
        The result of ``parse``; None where there is no such document.

    Raises:
        CheckpointError: The document is damaged, or its format is not one that this version reads. The message names
            the file and says what to do.
    """
    text = read_text(files, name, form)
    return None if text is None else from_text(files, name, form, text, parse)


def read_text(files: Store, name: str, form: Form) -> str | None:
    """Return a document's text without checking it; the arguments are those of ``read_document``.

    Returns:
        The text; None where there is no such document.

    Raises:
        CheckpointError: The file exists and can't be read.
    """
    text, tag = read_tagged_text(files, name, form)
    return None if tag is None else text


def read_tagged_text(files: Store, name: str, form: Form) -> tuple[str, str | None]:
    """Return a document's text without checking it, and the tag that ``replace_document`` takes.

    Returns:
        The text and the tag; an empty text and None where there is no such document.

    Raises:
        CheckpointError: The file exists and can't be read.
    """
    try:
        found = files.read_tagged(name)
    except UnreadableFileError as error:
        raise damaged(files, name, form, f"it can't be read: {error.why}") from error
    return ("", None) if found is None else (found.content.decode(errors="replace"), found.tag)


def replace_document(files: Store, name: str, form: Form, content: Mapping[str, Any], tag: str | None) -> bool:
    """Write a document with its checksum, if it still is the one that was read.

    Args:
        files: The checkpoint.
        name: The document's path below the checkpoint.
        form: The kind of document.
        content: JSON values.
        tag: The tag that ``read_tagged_text`` returned; None where there was no such document.

    Returns:
        Whether it was written; False where another process has written or deleted it since (``Store.replace``).
    """
    return files.replace(name, to_text(name, form, content, query_of(files, name)).encode(), tag)


def write_fenced(
    files: Store,
    name: str,
    form: Form,
    content: Mapping[str, Any],
    epoch_of: Callable[[Mapping[str, Any]], int],
    over: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> int | None:
    """Write a document unless a later run has written it, by compare-and-swap.

    Args:
        files: The checkpoint.
        name: The document's path below the checkpoint.
        form: The kind of document.
        content: JSON values.
        epoch_of: Returns the lease epoch of the run that wrote a content.
        over: Takes the content that is there, and returns what is written over it; None where that is ``content``.

    Returns:
        None where the document was written; the epoch of the later run where it was not.

    Raises:
        CheckpointError: The document that is there is damaged, or other runs write it again and again.
    """
    for _ in range(_TRIES):
        text, tag = read_tagged_text(files, name, form)
        if tag is not None and (found := from_text(files, name, form, text, epoch_of)) > epoch_of(content):
            return found
        new = content if tag is None or over is None else from_text(files, name, form, text, over)
        if replace_document(files, name, form, new, tag):
            return None
    msg = f"checkpoint {files.root}: {name} is written again and again by other runs of the query; stop them"
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

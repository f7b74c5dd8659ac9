"""Files on an object store: S3 and what speaks its protocol, Google Cloud Storage, and Azure's.

They are read and written by ``obstore``, without the JVM. ``create`` and ``replace`` are the store's own conditional
writes (``If-None-Match`` and ``If-Match``), so they are exact among all processes. An object store has no directories:
``make_directory`` writes a hidden empty object, so that Spark finds a folder. A task reads a file at any position
(``ObjectFile``): each read is one request for a range of bytes.

``obstore`` repeats a request that fails for a passing reason for some seconds. It may repeat a conditional write whose
answer was lost, too; the file is then read again, and if it has this content, it was written.

An error has the store's code and message, and the remedy. The rest of an answer is left out, since S3 repeats access
keys and signatures in it. URLs are cut after the host, since those of Azure may be signed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from cojoin.errors import CheckpointError
from cojoin.storage.local_store import escaped
from cojoin.storage.locations import MASK, without_login
from cojoin.storage.object_store_settings import client_of
from cojoin.storage.store import NO_BUCKET, Store, Tagged, cure_of, former_name, visible_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from obstore.store import ObjectStore as Client

    from cojoin.storage.object_store_settings import Settings

ERRORS = (BaseError, OSError, ValueError)
"""The errors that the client raises."""

ABSENT = (NotFoundError, FileNotFoundError)
"""Those among them that mean that the object does not exist."""

_URL = re.compile(r"\b(https?://[^\s/?]+)[^\s]*")
_SIGNATURE = re.compile(r"\b(sig|[\w-]*signature|[\w-]*token)=[^&\s'\"<>)]+", re.IGNORECASE)
"""The parts of a signed address that let anyone in, which an answer may have without its host."""

_CODE, _MESSAGE = re.compile(r"<Code>([^<]*)</Code>"), re.compile(r"<Message>([^<]*)</Message>")
_STATUS = re.compile(r"non-2xx status code: (\d{3}[^:<]*)")
_UNREACHED = re.compile(r"- HTTP error: ([^\n<]*)")

_UNKNOWN = ("status code: 501", "NotImplemented", "InvalidArgument", "InvalidRequest", "UnsupportedHeader")
_CURE_WITHOUT_CODE = (
    "see that the session's credentials are right, have not expired, and may list, read, write and delete in it, and "
    "that the region is the bucket's"
)
_clients: deque[tuple[Settings, Any]] = deque(maxlen=16)
_DIRECTORY = ".directory"
_DELETED_AT_ONCE = 500


class Explained(NamedTuple):
    """An error of a store on one line, and what to do; None where that is not known."""

    why: str
    cure: str | None


def explained(error: BaseException) -> Explained:
    """Return what an error means.

    >>> text = "Generic S3 error: Error performing GET http://host:1/lake?X=1 in 2.05ms - Server returned non-2xx "
    >>> text += "status code: 400 Bad Request: <Error><Code>ExpiredToken</Code><Message>Expired.</Message></Error>"
    >>> explained(OSError(text)).why
    'the store answered 400 Bad Request: ExpiredToken: Expired.'
    """
    text = str(error).strip()
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    answer, unreached = [match[1].strip() for match in (status, code, message) if match], _UNREACHED.search(text)
    if answer:
        why = f"the store answered {': '.join(answer)}"
    elif unreached is not None:
        why = f"the store does not answer: {unreached[1]}"
    else:
        why = text.partition("\n")[0].partition(": <")[0]
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) and status is None:
        text += " status code: 403"
    if status is not None and code is None and status[1].startswith(("400", "403")):
        # The answer to a request for an object's size has no body.
        return Explained(why, _CURE_WITHOUT_CODE)
    cure = cure_of(text)
    plain = _SIGNATURE.sub(rf"\1={MASK}", _URL.sub(r"\1/...", " ".join(why.split())))
    return Explained(without_login(plain), cure)


@contextlib.contextmanager
def absence_allowed() -> Iterator[None]:
    """Ignore that an object does not exist, but not that its bucket does not."""
    try:
        yield
    except ABSENT as error:
        if any(sign in str(error) for sign in NO_BUCKET):
            raise


def is_unknown_condition(error: BaseException | None) -> bool:
    """Return whether a store refuses a conditional write because it has no conditions."""
    return error is not None and any(sign in str(error) for sign in _UNKNOWN)


class ObjectFile(io.RawIOBase):
    """An object, by its path below the bucket, open for reading; small reads need a buffer in front of it.

    Raises ``FileNotFoundError`` where the object does not exist, ``OSError`` where the store can't be reached or
    refuses.
    """

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__()
        self._name, self._at = name.lstrip("/"), 0
        self._client = _client(settings)
        self._size = int(self._request(lambda: self._client.head(self._name))["size"])

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it can be read at any position."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit and remain, and return their number."""
        wanted = min(len(buffer), max(0, self._size - self._at))
        if wanted:
            content = self._request(lambda: self._client.get_range(self._name, start=self._at, length=wanted))
            buffer[:wanted] = memoryview(content)
            self._at += wanted
        return wanted

    def _request(self, send: Callable[[], Any]) -> Any:
        try:
            return send()
        except ABSENT as error:
            raise FileNotFoundError(explained(error).why) from error
        except ERRORS as error:
            why, cure = explained(error)
            raise OSError(f"{why}; {cure}" if cure else why) from error


def _client(settings: Settings) -> Any:
    """Return the client of a bucket or container; all tasks of a process share it."""
    for known, client in _clients:
        if known == settings:
            return client
    _clients.append((settings, client_of(settings)))
    return _clients[-1][1]


class ObjectStore(Store):
    """The objects below a prefix of a bucket or container.

    ``client`` is the store of ``obstore`` whose prefix is the path of ``root``, which has Spark's scheme, such as
    ``s3a://lake/checkpoint``; tasks get the ``settings`` with which it was made.
    """

    has_conditional_writes = True
    _errors = ERRORS

    def __init__(
        self, client: Client, root: str, label: str = "checkpoint", *, settings: Settings | None = None
    ) -> None:
        self.label, self._client, self._root, self._settings = label, client, root.rstrip("/"), settings

    @classmethod
    def of(cls, settings: Settings, root: str, label: str = "checkpoint") -> ObjectStore:
        """Return the objects below a root, reached by these settings; ``CheckpointError`` where one is invalid."""
        try:
            return cls(client_of(settings), root, label, settings=settings)
        except ERRORS as error:
            msg = (
                f"{label} {without_login(root)!r}: its store can't be opened: {explained(error).why}; see the "
                f"session's settings fs.*"
            )
            raise CheckpointError(msg) from error

    def for_tasks(self) -> Settings | None:
        """Return how tasks reach the store without the JVM."""
        return self._settings

    @property
    def root(self) -> str:
        """The root, absolute and with its scheme."""
        return self._root

    def path(self, name: str) -> str:
        """Return the full path of an object below the root, as Spark takes it."""
        return f"{self._root}/{name}" if name else self._root

    def url(self, name: str) -> str:
        """Return the full path of an object as a URL, as Spark's own logs write it: with blanks escaped."""
        scheme, _, rest = self.path(name).partition("://")
        return f"{scheme}://{escaped(rest)}"

    def exists(self, name: str = "") -> bool:
        """Return whether there is an object of a name, or any object below it."""
        with self._translated_errors(name, "accessed"):
            for path in (name, former_name(name)) if name else ():
                with absence_allowed():
                    self._client.head(path)
                    return True
            chunks = iter(self._client.list(f"{name}/" if name else None, chunk_size=1))
            return bool(next(chunks, None))

    def read_tagged(self, name: str) -> Tagged | None:
        """Return an object with its tag, or None where it does not exist."""
        with self._translated_errors(name, "read"):
            return self._get(name) or self._put_back(name)

    def read_unreplaced(self, name: str) -> bytes | None:
        """Return an object's bytes, by one request; None where it does not exist."""
        with self._translated_errors(name, "read"):
            stored = self._get(name)
        return None if stored is None else stored.content

    def _get(self, name: str) -> Tagged | None:
        with absence_allowed():
            answer = self._client.get(name)
            return Tagged(bytes(answer.bytes()), _tag(answer.meta))
        return None

    def _put_back(self, name: str) -> Tagged | None:
        """Rename an object that release 0.5.0 left under its second name, and return it; None if there was none."""
        former = self._get(former_name(name))
        if former is None:
            return None
        with contextlib.suppress(AlreadyExistsError, PreconditionError):
            self._client.put(name, former.content, mode="create")
        return self._get(name)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write an object whole, in place of an earlier one."""
        with self._translated_errors(name, "written"):
            self._client.put(name, content)

    def replace(self, name: str, content: bytes, tag: str | None) -> bool:
        """Write an object whole, if it still is the one that was read; see ``Store.replace``."""
        mode: Any = "create" if tag is None else _as_version(tag)
        with self._translated_errors(name, "written"):
            try:
                self._client.put(name, content, mode=mode)
            except (AlreadyExistsError, PreconditionError, *ABSENT):
                # The first answer may have been lost, and this is the one to a repeated request.
                stored = self.read_tagged(name)
                return stored is not None and stored.content == content and stored.tag != tag
        return True

    def check_conditional_writes(self) -> None:
        """Check, by writes of a temporary object, that the store does not ignore conditions silently."""
        if not self._honours_conditions(f".probe-{uuid.uuid4().hex}"):
            msg = (
                f"{self.named}: its store does not honour conditional writes (If-None-Match and If-Match), "
                f"by which a second query or writer is refused; upgrade the store's server, put the {self.label} on "
                f"another store, or set spark.cojoin.storage=hadoop in the session: then of two that start, or commit, "
                f"within one moment neither is refused"
            )
            raise CheckpointError(msg)

    def _honours_conditions(self, name: str) -> bool:
        try:
            if not self.replace(name, b"1", None) or self.replace(name, b"2", None):
                return False
            stored = self.read_tagged(name)
            if stored is None or not self.replace(name, b"3", stored.tag):
                return False
            return not self.replace(name, b"4", stored.tag)
        except CheckpointError as error:
            if is_unknown_condition(error.__cause__):
                return False
            raise
        finally:
            # The probe is harmless, and an error of the block matters more than one of its deletion.
            with contextlib.suppress(CheckpointError):
                self.delete(name)

    def make_directory(self, name: str) -> None:
        """Write a hidden empty object, which makes Spark find a folder."""
        self.write_bytes(f"{name}/{_DIRECTORY}" if name else _DIRECTORY, b"")

    def check_place(self) -> None:
        """Check that objects can be listed, written and deleted below the root."""
        self.exists()
        with self._translated_errors("", "written to"):
            self._client.put(".probe", b"")
        self.delete(".probe")

    def modified(self, name: str) -> int:
        """Return when an object was last written, in epoch milliseconds."""
        with self._translated_errors(name, "accessed"):
            return int(self._client.head(name)["last_modified"].timestamp() * 1000)

    def size(self, name: str) -> int:
        """Return the size of an object, or of all objects below a name, in bytes."""
        with self._translated_errors(name, "accessed"):
            with absence_allowed():
                return int(self._client.head(name)["size"]) if name else self._size_below("")
            return self._size_below(f"{name}/")

    def _size_below(self, prefix: str) -> int:
        return sum(int(each["size"]) for chunk in self._client.list(prefix or None) for each in chunk)

    def sizes(self, directory: str) -> dict[str, int]:
        """Return the sizes of all objects below a directory, by their names below the root."""
        with self._translated_errors(directory, "listed"):
            chunks = [*self._client.list(f"{directory}/" if directory else None)]
        return {str(each["path"]): int(each["size"]) for chunk in chunks for each in chunk}

    def delete(self, name: str) -> None:
        """Delete an object where it exists."""
        with self._translated_errors(name, "deleted"), absence_allowed():
            # The second name first: release 0.5.0 may have left it, and it would be found instead.
            self._client.delete([former_name(name), name])

    def delete_directory(self, name: str) -> None:
        """Delete all objects below a name."""
        with self._translated_errors(name, "deleted"):
            paths = [str(each["path"]) for chunk in self._client.list(f"{name}/" if name else None) for each in chunk]
            for start in range(0, len(paths), _DELETED_AT_ONCE):
                self._client.delete(paths[start : start + _DELETED_AT_ONCE])

    def names(self, directory: str) -> list[str]:
        """Return the names below a directory in order, of objects and of directories; none where it is missing."""
        with self._translated_errors(directory, "listed"):
            listed = self._client.list_with_delimiter(directory or None)
        paths = [str(each["path"]) for each in listed["objects"]] + [str(each) for each in listed["common_prefixes"]]
        # Hadoop marks a directory by an empty object, whose name is the directory's own.
        return visible_names({path.rpartition("/")[2] for path in paths if path != directory})

    def times(self, descends: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Yield the path of each object below the root, and when it was written; see ``Store.times``."""
        root = f"/{self._root.partition('://')[2].partition('/')[2]}".rstrip("/")
        with self._translated_errors("", "listed"):
            for chunk in self._client.list(chunk_size=1000):
                for entry in chunk:
                    name = str(entry["path"])
                    if all(map(descends, name.split("/")[:-1])):
                        yield f"{root}/{name}", int(entry["last_modified"].timestamp() * 1000)

    def _explained(self, error: BaseException) -> Explained:
        return explained(error)


def _tag(meta: Any) -> str:
    """Return an object's tag: its entity tag, and its version where the store counts versions."""
    return f"{meta.get('e_tag') or ''}\n{meta.get('version') or ''}"


def _as_version(tag: str) -> dict[str, str]:
    e_tag, _, version = tag.partition("\n")
    return {name: value for name, value in (("e_tag", e_tag), ("version", version)) if value}

"""The interface by which cojoin itself reads, writes, lists and deletes the files below one directory, on any store.

A file is written whole or not at all, and a reader never sees a part of one. ``create`` writes a file only where there
is none, and ``replace`` only where the file still is the one that was read (compare-and-swap): of several processes
that try, one succeeds. ``replace`` is atomic where ``has_conditional_writes`` is true. Elsewhere the file is compared
first and then written, and of two processes that do so at the same moment both may succeed.

``local_store``, ``object_store`` and ``hadoop_store`` are the stores; ``sessions.open_store`` chooses one. The tests
compare each with their simulated store by the same sequences of operations.

The message of a store's error has the remedy if one is known (``cure_of``), for cojoin's own clients and for Hadoop.
"""

from __future__ import annotations

import contextlib
import re
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from cojoin.errors import CheckpointError
from cojoin.storage.locations import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cojoin.storage.object_store_settings import Settings

_JAVAS_UNREACHED = ("Unable to execute HTTP request", "Connection refused", "UnknownHostException")
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
"""The answers of stores where a bucket or container does not exist."""

_CURES = (
    (
        ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "token expired"),
        (
            "its credentials have expired: renew them in the session's settings fs.* or the environment, and start the "
            "query again, which continues where it stopped"
        ),
    ),
    (
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed", "status code: 401"),
        "it refuses these credentials: correct them in the session's settings fs.* or the environment",
    ),
    (NO_BUCKET, "make the bucket, or correct its name"),
    (
        ("status code: 403", "AccessDenied", "AuthorizationFailure", "AuthorizationPermissionMismatch"),
        "give the session's credentials the right to list, read, write and delete in it",
    ),
    (
        ("StorageFull", "QuotaExceeded", "status code: 507", "InsufficientStorage", "No space left on device"),
        "make room in it, and start the query again, which continues where it stopped",
    ),
    (
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "status code: 301", "without LOCATION"),
        "set the bucket's region, for example with fs.s3a.endpoint.region",
    ),
    (
        ("error sending request", "error trying to connect", "timed out", "dns error", *_JAVAS_UNREACHED),
        (
            "see that the store runs, and that this machine reaches it by the endpoint in the session's settings, such "
            "as fs.s3a.endpoint; then start the query again, which continues where it stopped"
        ),
    ),
    (
        ("SlowDown", "ServerBusy", "status code: 500", "status code: 502", "status code: 503", "status code: 504"),
        "the store is overloaded or down: start the query again once it answers; it continues where it stopped",
    ),
    (
        ("No FileSystem for scheme",),
        (
            "write the scheme that a connector of Spark's serves: s3a:// for S3, abfss:// for Azure, gs:// for Google; "
            "the session needs that connector's package in spark.jars.packages"
        ),
    ),
    (
        # The answer to a HEAD request has no text.
        ("status code: 400",),
        (
            "it gives no reason; temporary credentials may have expired: renew them in the session's settings fs.* or "
            "the environment, and start the query again, which continues where it stopped"
        ),
    ),
)
_TRIES = 5
FORMER = ".former"
"""The ending of a file's second name, under which Hadoop's stores keep it while it is being replaced."""

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_SAFE_SECONDS = 24 * 3600.0
"""The age from which a temporary file is abandoned; a writer that was suspended for longer fails at its rename."""


def cure_of(text: str) -> str | None:
    """Return what to do about an error; None where that is not known.

    >>> cure_of("Server returned non-2xx status code: 404 Not Found: NoSuchBucket")
    'make the bucket, or correct its name'
    >>> cure_of("S3Exception: Bad Request (Service: S3, Status Code: 400, Request ID: null)").partition(";")[0]
    'it gives no reason'
    """
    # The AWS SDK for Java capitalises it.
    text = text.replace("Status Code", "status code")
    return next((cure for signs, cure in _CURES if any(sign in text for sign in signs)), None)


class UnreadableFileError(CheckpointError):
    """A file of a store exists and can't be read; ``why`` is the store's message."""

    def __init__(self, store: Store, name: str, why: str) -> None:
        super().__init__(f"{store.named}: {name} can't be read: {why}; put it back from a backup of the {store.label}")
        self.why = why


class UnplacedFileError(CheckpointError):
    """A file's new content could not be renamed into place: other processes replaced the file each time."""


class Tagged(NamedTuple):
    """A file's content, and a tag that ``replace`` compares; every content that the file has had has another tag."""

    content: bytes
    tag: str


class Store(ABC):
    """The files below one directory; ``label`` names the directory in messages, such as ``"checkpoint"``.

    ``has_conditional_writes``: ``create`` and ``replace`` are atomic among all processes that reach the store. Errors
    are ``CheckpointError``.
    """

    label: str
    has_conditional_writes: bool
    _errors: tuple[type[BaseException], ...] = ()
    """The errors of the store's client, which ``_translated_errors`` raises as a ``CheckpointError``."""

    @property
    @abstractmethod
    def root(self) -> str:
        """The directory, absolute and with its scheme."""

    @property
    def named(self) -> str:
        """The label and the root, without a login, for messages."""
        return f"{self.label} {without_login(self.root)}"

    @abstractmethod
    def path(self, name: str) -> str:
        """Return the full path of a file or directory below the root, as Spark takes it."""

    @abstractmethod
    def url(self, name: str) -> str:
        """Return a file's URL as Spark's own logs write it: with blanks and the like escaped."""

    @abstractmethod
    def exists(self, name: str = "") -> bool:
        """Return whether a file or directory exists."""

    @abstractmethod
    def read_tagged(self, name: str) -> Tagged | None:
        """Return a file with its tag; None where it does not exist.

        Raises ``UnreadableFileError`` where the file exists and can't be read, and ``CheckpointError`` where the store
        can't be reached or refuses access: the file itself may be intact.
        """

    @abstractmethod
    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole, in place of an earlier one; ``UnplacedFileError`` where it could not be put in place."""

    @abstractmethod
    def replace(self, name: str, content: bytes, tag: str | None) -> bool:
        """Write a file whole if it still has this tag; with None, if it does not exist.

        Returns False where another process has written or deleted it since. Where two processes write the same content,
        both may get True: the content should name its writer. Raises ``CheckpointError`` where it can't be written, or
        it is not known whether it was written.
        """

    @abstractmethod
    def make_directory(self, name: str) -> None:
        """Create a directory where it does not exist."""

    @abstractmethod
    def check_place(self) -> None:
        """Check that the root directory exists or can be created; what is created for the check is deleted again."""

    @abstractmethod
    def modified(self, name: str) -> int:
        """Return the time when a file was last written, in epoch milliseconds."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of a file, or of all files below a directory, in bytes."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file where it exists."""

    @abstractmethod
    def delete_directory(self, name: str) -> None:
        """Delete a directory with its content where it exists."""

    def delete_empty_directory(self, name: str) -> None:  # noqa: B027 - object stores have no directories
        """Delete a directory if it exists and is empty."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """Return the names in a directory in order, of complete files and of directories; none where it is missing."""

    def times(self, descends: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Yield the path and time of each file below the root, hidden ones too, while they are listed.

        Paths have no scheme and host. Times are modification times in epoch milliseconds. ``descends`` is called with a
        directory's name and returns whether the files below it are listed. A caller may stop early; a store without
        such a listing yields nothing. Local files cost some 5 microseconds each, an object store answers with 1,000 at
        once, and Hadoop's file systems cost half a millisecond a file.
        """
        del descends
        return iter(())

    def delete_abandoned(self, directory: str) -> None:  # noqa: B027 - object stores have no temporary files
        """Delete the temporary files that killed processes have left in a directory itself; it need not exist."""

    def check_conditional_writes(self) -> None:
        """Check by a trial that ``replace`` is atomic, where ``has_conditional_writes`` alone does not guarantee it."""
        return

    def for_tasks(self) -> Settings | None:
        """Return how tasks reach the store without the JVM; None where they need no settings.

        It may hold credentials: it travels with the tasks, as Spark's own settings do, and is never written to a file.
        """
        return None

    def create(self, name: str, content: bytes) -> bool:
        """Write a file whole where there is none, and return whether it was written; errors are those of ``replace``.

        Where two processes create a file at the same moment, one of them gets False.
        """
        return self.replace(name, content, None)

    def read_bytes(self, name: str) -> bytes | None:
        """Return a file's bytes; None where it does not exist. Errors are those of ``read_tagged``."""
        stored = self.read_tagged(name)
        return None if stored is None else stored.content

    def read_unreplaced(self, name: str) -> bytes | None:
        """Return the bytes of a file that is never replaced, as one of Delta's log; otherwise as ``read_bytes``."""
        return self.read_bytes(name)

    def sizes(self, directory: str) -> dict[str, int] | None:
        """Return the sizes of all files below a directory, by their names below the root.

        None means that a listing costs more than a look at each file.
        """
        del directory
        return None

    def read(self, name: str) -> str | None:
        """Return a file's text; None where it does not exist. Errors are those of ``read_tagged``.

        Bytes that are not UTF-8 become replacement characters, so that parsing finds a damaged text.
        """
        content = self.read_bytes(name)
        return None if content is None else content.decode(errors="replace")

    def write(self, name: str, text: str) -> None:
        """Write a text file whole, in place of an earlier one; errors are those of ``write_bytes``."""
        self.write_bytes(name, text.encode())

    def write_checked(self, name: str, text: str, check: Callable[[], None]) -> None:
        """Write a text file whole if ``check`` raises no error and no other process has written the file meanwhile.

        It is for files in Spark's formats, which can't contain the id of the run that wrote them. Raises
        ``CheckpointError`` where other runs write the file again and again; other errors are those of ``replace``.
        """
        for _ in range(_TRIES):
            stored = self.read_tagged(name)
            check()
            if self.replace(name, text.encode(), None if stored is None else stored.tag):
                return
        msg = f"{self.named}: {name} is written again and again by other runs; stop them"
        raise CheckpointError(msg)

    @contextlib.contextmanager
    def _translated_errors(self, name: str, action: str) -> Iterator[None]:
        """Raise an error of the client as a ``CheckpointError`` with its message on one line; see ``_refused``."""
        try:
            yield
        except CheckpointError:
            raise
        except self._errors as error:
            raise self._refused(name, action, *self._explained(error)) from error

    def _explained(self, error: BaseException) -> tuple[str, str | None]:
        """Return an error's message on one line, and what to do; None where the root directory is at fault."""
        return str(error), None

    def _refused(self, name: str, action: str, why: str, cure: str | None = None) -> CheckpointError:
        """Return the error for what the store refuses, on one line; ``action`` is a participle such as ``"written"``.

        ``cure`` is None where the root directory is at fault.
        """
        place = "expected a directory that exists or can be made, and that Spark's driver may read and write"
        file = name or "the directory"
        return CheckpointError(f"{self.named}: {file} can't be {action}: {why}; {cure or place}")


def former_name(name: str) -> str:
    """Return a file's second name, under which Hadoop's stores keep it while it is being replaced.

    >>> former_name("manifest/7.json")
    'manifest/.7.json.former'
    """
    directory, slash, last = name.rpartition("/")
    return f"{directory}{slash}.{last}{FORMER}"


def visible_names(names: set[str]) -> list[str]:
    """Return the names of complete files in order: not of hidden files, but also of files that are being replaced.

    >>> visible_names({"b", ".a.former", ".c.0f.tmp"})
    ['a', 'b']
    """
    former = {name[1:].removesuffix(FORMER) for name in names if name.startswith(".") and name.endswith(FORMER)}
    return sorted(former.union(name for name in names if not name.startswith(".")))


def is_abandoned(name: str, modified: float) -> bool:
    """Return whether a file is an interrupted write's temporary file that was last written (epoch seconds) a day ago.

    >>> is_abandoned(f".7.json.{'0' * 32}.tmp", 0.0), is_abandoned("7.json", 0.0)
    (True, False)
    """
    return _TEMPORARY.fullmatch(name) is not None and time.time() - modified > _SAFE_SECONDS

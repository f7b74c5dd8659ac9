"""Points of a query's life at which something is done to its driver: which method is entered or left, in which batch.

Nothing of cojoin is changed: this process alone puts a step before or after the method, and there it does the deed: it
dies, stands still, or raises. What a point needs to be reached (a restoration, a savepoint, another query's table) is
its job.
"""

from __future__ import annotations

import importlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Condition", "JobKind", "Point"]

JobKind: TypeAlias = Literal["run", "savepoint", "promotion", "restoration", "same table", "changed"]
"""A savepoint is taken of a batch without a snapshot; a promotion makes a checkpoint one."""

Condition: TypeAlias = "Callable[[tuple[Any, ...], int], bool]"
"""Whether a call is the one, by its arguments and the batch that was chosen."""


@dataclass(frozen=True)
class Point:
    """A point at which the deed is done, once.

    Attributes:
        phase: To what it belongs.
        name: What has just happened.
        where: The methods of which one is meant, as ``module:Class.method`` or ``module:function``; none for a moment
            by the clock.
        enters: Whether the deed is done before the method, or after.
        condition: Which of the method's calls it is.
        job: What the driver does.
    """

    phase: str
    name: str
    where: tuple[str, ...] = ()
    enters: bool = False
    condition: Condition = lambda _, __: True
    job: JobKind = "run"

    @contextmanager
    def armed(self, batch: int, deed: Callable[[], object]) -> Iterator[None]:
        """Have the deed done in this process where the point is reached for the first time.

        Args:
            batch: The batch that was chosen.
            deed: What is done; what it raises goes up as if the method had.
        """
        done = False

        def is_meant(arguments: tuple[Any, ...]) -> bool:
            nonlocal done
            if done or not self.condition(arguments, batch):
                return False
            done = True
            return True

        with ExitStack() as stack:
            for where in self.where:
                stack.enter_context(self._stepped(where, is_meant, deed))
            yield

    @contextmanager
    def _stepped(
        self, where: str, is_meant: Callable[[tuple[Any, ...]], bool], deed: Callable[[], object]
    ) -> Iterator[None]:
        owner, name = _found(where)
        original, kept = getattr(owner, name), vars(owner).get(name)

        @wraps(original)
        def stepped(*arguments: Any, **options: Any) -> Any:
            meant = is_meant((*arguments, *options.values()))
            if meant and self.enters:
                deed()
            result = original(*arguments, **options)
            if meant and not self.enters:
                deed()
            return result

        setattr(owner, name, stepped)
        try:
            yield
        finally:
            # One that a class has from another is that one's again.
            delattr(owner, name)
            if kept is not None:
                setattr(owner, name, kept)


def _found(where: str) -> tuple[Any, str]:
    """Return a method's owner and its name."""
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name

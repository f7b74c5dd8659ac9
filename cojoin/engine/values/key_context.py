"""The current key of a call, as Flink's ``KeyContext``: the caller of a function sets it, states and timers read it."""

from __future__ import annotations

__all__ = ["NO_KEY", "KeyContext"]

NO_KEY = -1
"""The code that means that no key is current."""


class KeyContext:
    """The key that is being processed, shared by the contexts, the states and the timers of one call.

    Attributes:
        code: The number of the key in the micro-batch; ``NO_KEY`` where no key is current.
    """

    __slots__ = ("code",)

    def __init__(self) -> None:
        self.code = NO_KEY

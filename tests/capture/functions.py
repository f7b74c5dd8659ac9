"""Functions of which tests are captured, and some of which no test can be."""

from __future__ import annotations

from typing import Any

from cojoin import KeyedCoProcessFunction, ValueStateDescriptor


class Scaled(KeyedCoProcessFunction):
    """Each trade with its tier, and its price times a factor."""

    def __init__(self, by: Any = 1) -> None:
        self.by = by

    def open(self, ctx: Any) -> None:
        self.tier = ctx.get_state(ValueStateDescriptor("tier", "string"))

    def process_element1(self, trade: Any, ctx: Any) -> Any:
        yield trade.trade, self.tier.value(), None if trade.price is None else trade.price * self.by

    def process_element2(self, version: Any, ctx: Any) -> None:
        self.tier.update(version.tier)


def make_scaled() -> Scaled:
    return Scaled(by=7)


class Walled:
    """A class with a function in it."""

    class Inner(Scaled):
        pass


class Secretive(Scaled):
    """A function with a secret."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token


class Counted(Scaled):
    """Counts the rows of all keys in an attribute."""

    def open(self, ctx: Any) -> None:
        super().open(ctx)
        self.count = 0

    def process_element1(self, trade: Any, ctx: Any) -> Any:
        self.count += 1
        yield self.count, None, None


class ByClass(Scaled):
    """Counts the rows of all runs in an attribute of the class."""

    seen = 0

    def process_element1(self, trade: Any, ctx: Any) -> Any:
        type(self).seen += 1
        yield self.seen, None, None

"""The rows of a harness: one at a time, a micro-batch, a text table, or all of them as static inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cojoin.testing.events import NOT_GIVEN, Element, HarnessError, Time
from cojoin.testing.harness_calls import HarnessCalls
from cojoin.testing.harness_tables import parse_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cojoin.testing.checks import Partition

__all__ = ["HarnessElements"]


class HarnessElements(HarnessCalls):
    """The part of a harness that processes rows."""

    def process_element1(self, value: Any, timestamp: Time = NOT_GIVEN, *, partition: Partition = None) -> None:
        """Process one row of the first (left) input.

        Args:
            value: A tuple, a dict or a ``Row``. It may contain the event time or leave it out.
            timestamp: The event time in epoch milliseconds or as an aware datetime; None is a row without event time.
                Leave it out if the value contains it.
            partition: The source partition that the row comes from (see ``Element``).

        Raises:
            SchemaError: The row does not fit the input's columns, or its event time is neither in the value nor given.
            HarnessError: The input or the source partition is finished.
            FunctionError: The function raised an error. The harness is unchanged; with ``fresh_calls=False`` it accepts
                only ``restore``.
        """
        self.process_batch([Element(value, timestamp, partition)], [])

    def process_element2(self, value: Any, timestamp: Time = NOT_GIVEN, *, partition: Partition = None) -> None:
        """Process one row of the second (right) input; see ``process_element1``."""
        self.process_batch([], [Element(value, timestamp, partition)])

    def process_batch(self, elements1: Iterable[Any] = (), elements2: Iterable[Any] = ()) -> None:
        """Process several rows in one micro-batch, as Spark would; the rows of a key come in the declared ``order``.

        Args:
            elements1: Rows of the first input: values that contain their event time, or ``Element``s.
            elements2: Rows of the second input, in the same forms.

        Raises:
            SchemaError: As in ``process_element1``, like the other errors.
            HarnessError: An input or a source partition is finished.
            FunctionError: The function raised an error.
        """
        self._call(*self._elements(elements1, elements2))

    def process_table1(self, text: str) -> None:
        """Process the rows of a text table (``parse_table``) of the first input, from top to bottom, one call each.

        Columns that the table leaves out are null; the event-time column must not be left out.
        """
        for row in self._parsed(0, text):
            self.process_element1(row)

    def process_table2(self, text: str) -> None:
        """Process the rows of a text table of the second input; see ``process_table1``."""
        for row in self._parsed(1, text):
            self.process_element2(row)

    def run_static(self, elements1: Iterable[Any] = (), elements2: Iterable[Any] = ()) -> None:
        """Process all rows in one batch and drain, as for static inputs; it must be the only call.

        Args:
            elements1: Rows of the first input, as in ``process_batch``.
            elements2: Rows of the second input.

        Raises:
            HarnessError: Another call came before.
        """
        if self._calls:
            msg = f"run_static: expected a harness that was not used, got one after {self._calls} calls; make a new one"
            raise HarnessError(msg)
        self._call(*self._elements(elements1, elements2), end=True)
        self._ended = True

    def _elements(self, *elements: Iterable[Any]) -> tuple[list[Element], list[Element]]:
        first, second = ([each if isinstance(each, Element) else Element(each) for each in side] for side in elements)
        return first, second

    def _parsed(self, side: int, text: str) -> Sequence[dict[str, Any]]:
        spec = self._inputs[side]
        # Columns that a table leaves out are null; leaving out the event time is an error.
        nulls = dict.fromkeys(name for name in spec.schema.names if name != spec.event_time)
        return [nulls | row.as_dict() for row in parse_table(text, self._inputs[side].schema)]

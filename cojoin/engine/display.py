"""How objects show themselves: as a text in a terminal, as HTML in a notebook, from one description of both.

Showing runs nothing, reads no rows and never fails: what can't be found out at the moment is left out.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cojoin.engine.formats import text_table
from cojoin.engine.values.rows import show_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Display", "display_of", "html_table", "html_text"]


@dataclass(frozen=True)
class Display:
    """What an object shows: a headline, a table and notes.

    Attributes:
        head: The headline.
        table: Rows of texts; the first one is the header.
        notes: Sentences below the table.
        share: How much of something is done, from 0 to 1; None shows no bar. HTML alone has it.

    >>> print(Display("Two inputs", [("input", "rows"), ("trades", "1,000"), ("customers", "20")]).text())
    Two inputs
    input       rows
    ---------  -----
    trades     1,000
    customers     20
    """

    head: str
    table: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    share: float | None = None

    def text(self) -> str:
        """Return it as lines of text."""
        lines = [self.head, *([text_table(self.table)] if self.table else []), *self.notes]
        return show_text("\n".join(lines))

    def html(self) -> str:
        """Return it as HTML."""
        bar = "" if self.share is None else f' <progress value="{min(max(self.share, 0), 1):.4f}"></progress>'
        notes = "".join(f"<p>{html_text(note)}</p>" for note in self.notes)
        return f"<p><b>{html_text(self.head)}</b>{bar}</p>{html_table(self.table)}{notes}"


def html_text(text: str) -> str:
    """Return a text as HTML, with nothing in it taken for a tag.

    >>> html_text("a < b")
    'a &lt; b'
    """
    return html.escape(show_text(text)).replace("\n", "<br>")


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of texts as an HTML table; the first row is the header, if any, and numbers are right-aligned.

    >>> html_table([("input", "rows"), ("a<b", "20")])
    '<table><thead><tr><th style="text-align:left">input</th><th style="text-align:right">rows</th></tr></thead><tbody>\
<tr><td style="text-align:left">a&lt;b</td><td style="text-align:right">20</td></tr></tbody></table>'
    """
    if not rows:
        return ""
    numeric = [
        len(rows) > 1 and all(row[column].replace(",", "").isdigit() for row in rows[1:])
        for column in range(len(rows[0]))
    ]

    def cells(row: Sequence[str], tag: str) -> str:
        sides = ("right" if number else "left" for number in numeric)
        made = (
            f'<{tag} style="text-align:{side}">{html_text(cell)}</{tag}>' for cell, side in zip(row, sides, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(cells(row, "td") for row in rows[1:])
    header = f"<thead>{cells(rows[0], 'th')}</thead>" if any(rows[0]) else ""
    return f"<table>{header}<tbody>{body}</tbody></table>"


def display_of(build: Callable[[], Display], kind: str) -> Display:
    """Return what a function builds; if it fails, as where a session has stopped, a headline that says no more.

    Args:
        build: The function.
        kind: The name of the object's class.
    """
    try:
        return build()
    except Exception:  # noqa: BLE001 - an object that can't show itself hides the error that matters
        return Display(f"{kind} (it can't be shown at the moment)")

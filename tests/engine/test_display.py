"""What objects show: the same in text and in HTML, with nothing taken for a tag, and never an error."""

from __future__ import annotations

from html.parser import HTMLParser

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cojoin.engine.display import Display, Section, display_of, html_table

CELLS = st.text(st.characters(exclude_characters="\r\n"), max_size=6)


class Cells(HTMLParser):
    """The rows of the tables of a page, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows:
            self.rows[-1][-1] += data


@given(st.lists(st.tuples(CELLS, CELLS), min_size=2, max_size=4).filter(lambda rows: any(rows[0])))
def test_a_browser_reads_what_the_cells_say(rows: list[tuple[str, str]]) -> None:
    page = html_table(rows)
    page.encode()
    said = [["".join(f"\\x{ord(c) & 255:02x}" if 0xD800 <= ord(c) < 0xE000 else c for c in cell) for cell in row]
            for row in rows]  # fmt: skip
    assert Cells(page).rows == said


def test_numbers_are_at_the_right_and_an_empty_header_is_left_out() -> None:
    assert html_table([("rows",), ("1,000",)]).count("text-align:right") == 2
    assert html_table([("offset",), ("-1",), ("20",)]).count("text-align:right") == 3
    assert html_table([("rows",), ("x",)]).count("text-align:right") == 0
    assert "<thead>" not in html_table([("", ""), ("key", "id")])
    assert html_table([]) == ""


def test_text_and_html_have_the_same_parts() -> None:
    shown = Display("A <b>", [("input", "rows"), ("trades", "3")], ["one & two"], share=0.25)
    assert shown.text().splitlines() == ["A <b>", "input   rows", "------  ----", "trades     3", "one & two"]
    page = shown.html()
    assert page.startswith('<p><b>A &lt;b&gt;</b> <progress value="0.2500"></progress></p><table>')
    assert page.endswith("<p>one &amp; two</p>")


def test_sections_are_separated_by_blank_lines_and_count_what_they_leave_out() -> None:
    sections = [Section.of("rows of 'a<b'", pa.table({"id": [7, 8, 9]}), 1), Section("output: no rows")]
    shown = Display("A", [("input", "rows"), ("trades", "3")], sections=sections)
    lines = ["A", "", "input   rows", "------  ----", "trades     3"]
    lines += ["", "rows of 'a<b'", "  id", "  --", "   7", "  ... and 2 more", "", "output: no rows"]
    assert shown.text().splitlines() == lines
    assert "<p>rows of &#x27;a&lt;b&#x27; (and 2 more)</p><table>" in shown.html()
    assert shown.html().endswith("</table><p>output: no rows</p>")


def test_what_fails_shows_its_kind() -> None:
    def fails() -> Display:
        raise ConnectionError

    assert display_of(fails, "Query").text() == "Query (it can't be shown at the moment)"

"""The documentation site is built without a warning, has every public name, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from urllib.parse import unquote

import pytest

from tests.surface import MODULES, is_opaque

pytestmark = [pytest.mark.slow]

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # A process of its own: Sphinx imports what is meant for type checkers alone.
    command = [sys.executable, "notebooks/build_site.py", str(folder)]
    built = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return folder


class Links(HTMLParser):
    """The links, the anchors and the loaded files of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors.add(values.get("id", ""))
        if tag == "a":
            self.links.add(values.get("href", ""))
        elif tag in ("script", "link", "img", "iframe"):
            self.loaded.add(values.get("src") or values.get("href") or "")


def methods(member: object) -> list[str]:
    """Return the public methods and properties of a class of cojoin's, inherited ones too."""
    return [
        name
        for base in (member.__mro__ if isinstance(member, type) else ())
        if base.__module__.startswith("cojoin.")
        for name, value in vars(base).items()
        if isinstance(value, (FunctionType, property)) and not name.startswith("_")
    ]


def test_each_public_name_has_its_place(site: Path) -> None:
    anchors = {each for page in site.glob("reference/*.html") for each in Links(page).anchors}
    # What is public in several modules has one place.
    first: dict[int, str] = {}
    for place in MODULES.values():
        module = import_module(place)
        for public in module.__all__:
            member = getattr(module, public)
            if not isinstance(member, ModuleType):
                name = first.setdefault(id(member), f"{place}.{public}")
                wanted = [name, *(f"{name}.{method}" for method in ([] if is_opaque(member) else methods(member)))]
                missing = [each for each in wanted if each not in anchors]
                assert not missing, missing


def test_links_lead_to_what_is_there_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {page.resolve(): Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 100
    lost, elsewhere = [], []
    for page, found in pages.items():
        elsewhere += [f"{page.name}: {each}" for each in found.loaded if re.match(r"(https?:)?//", each)]
        for link in found.links:
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (target in pages and anchor not in pages[target].anchors):
                lost.append(f"{page.name}: {link}")
    assert not lost
    assert not elsewhere


def test_what_reads_text_finds_all_pages(site: Path) -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
    assert {f"{each.relative_to(site)}" for each in site.glob("*.html")} - {*listed} == {"genindex.html", "search.html"}
    assert all((site / each).exists() for each in listed)
    reference = (site / "reference.txt").read_text("utf-8")
    assert all(f"{name}.{each}" in reference for name in ("cojoin",) for each in import_module(name).__all__)

"""Builds the documentation site: ``python notebooks/build_site.py FOLDER``.

It has no text of its own. Its pages are the README, the guides as they are executed, the other pages of this folder, the
changelog and the rest of the project's documents; the reference is made from the docstrings, and the index of questions
from the guides' headings. Beside them are ``llms.txt``, which lists the pages, and ``reference.txt``, which is the
reference as one file. A warning is an error.

Sphinx builds it, as it reads docstrings as they are written here (reStructuredText, with napoleon) and notebooks with
their outputs (MyST-NB), and as both are kept by many projects. The pages load nothing from elsewhere.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

_FOLDER = Path(__file__).resolve().parent
_PROJECT = _FOLDER.parent
sys.path.insert(0, str(_PROJECT))
from tests.surface import MODULES, is_opaque

_PAGES = {
    "Answers": ("questions", "coming_from", "flink"),
    "How it is built": ("architecture", "decisions"),
}
_DOCUMENTS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_SETTINGS = {
    "project": "cojoin",
    "author": "The cojoin authors",
    "copyright": "the cojoin authors",
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "html_title": "cojoin",
    "html_copy_source": False,
    "html_show_sphinx": False,
    "nb_execution_mode": "off",
    "nb_ipywidgets_js": {},
    "nb_mime_priority_overrides": [("html", "text/plain", 30)],
    "myst_heading_anchors": 4,
    "autodoc_member_order": "bysource",
    "autodoc_typehints": "signature",
    "python_use_unqualified_type_names": True,
    "python_maximum_signature_line_length": 100,
    "napoleon_google_docstring": True,
    "napoleon_numpy_docstring": False,
    "napoleon_use_ivar": True,
    "default_role": "literal",
    # A type of an annotation may be public in two modules, such as ``Record``; then it is no link.
    "suppress_warnings": ["ref.python"],
    "pygments_style": "default",
    "highlight_language": "python3",
}


class Page(NamedTuple):
    """A page that ``llms.txt`` lists."""

    name: str
    title: str
    begin: str


def build(folder: Path) -> None:
    """Write the site into a folder, which it makes.

    Raises:
        RuntimeError: Sphinx had a warning; it is on the standard error.
    """
    with tempfile.TemporaryDirectory() as temporary:
        sources, doctrees = Path(temporary, "sources"), Path(temporary, "doctrees")
        sources.mkdir()
        pages = _stage(sources)
        in_reference = [each.name for each in pages if each.name.startswith("reference/")]
        texts = Path(temporary, "texts")
        _run(sources, folder, doctrees, "html", [])
        _run(sources, texts, doctrees, "text", [str(sources / f"{name}.rst") for name in in_reference])
        reference = "\n\n".join(Path(texts, f"{name}.txt").read_text("utf-8") for name in in_reference)
    Path(folder, "reference.txt").write_text(reference, "utf-8")
    Path(folder, "llms.txt").write_text(_listed(pages), "utf-8")


def _run(sources: Path, output: Path, doctrees: Path, kind: str, only: list[str]) -> None:
    """Have Sphinx write pages of a kind: all, or only those of some sources."""
    with docutils_namespace():  # Sphinx registers the same names again for each kind.
        app = Sphinx(sources, None, output, doctrees, kind, _SETTINGS, status=None)
        app.build(filenames=only)
        if app._warncount:
            msg = f"{app._warncount} warnings of the {kind} pages; they are above"
            raise RuntimeError(msg)


def _stage(sources: Path) -> list[Page]:
    """Write the sources of all pages into a folder, and return the pages in their order."""
    guides = sorted(_FOLDER.glob("[0-9]*.ipynb"))
    for guide in guides:
        content = json.loads(guide.read_text("utf-8"))
        for cell in content["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = _linked("".join(cell["source"]))
        Path(sources, guide.name).write_text(json.dumps(content), "utf-8")
    for page in (*_FOLDER.glob("*.md"), *(_PROJECT / name for name in _DOCUMENTS)):
        Path(sources, page.name).write_text(_linked(page.read_text("utf-8")), "utf-8")
    Path(sources, "questions.md").write_text(_questions(sources, guides), "utf-8")
    reference = _reference(sources)
    names = {
        "Guides": [guide.stem for guide in guides],
        **{title: list(names) for title, names in _PAGES.items()},
        "Reference": [f"reference/{name}" for name in MODULES],
        "The project": [name.removesuffix(".md") for name in _DOCUMENTS],
    }
    trees = [
        f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(each) + "\n```" for title, each in names.items()
    ]
    readme = _linked((_PROJECT / "README.md").read_text("utf-8"))
    Path(sources, "index.md").write_text("\n\n".join([readme, *trees]), "utf-8")
    written = [name for title, each in names.items() if title != "Reference" for name in each]
    return [*(_page(sources, name) for name in ("index", *written)), *reference]


def _linked(text: str) -> str:
    """Return a document's text with the links of the site: its pages lie in one folder, its anchors are as on GitHub."""

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        target = target.removeprefix("../").removeprefix("notebooks/")
        return f"]({target}#{_anchor(anchor)})" if anchor else f"]({target})"

    return re.sub(r"\]\((?!https?:)([^)\s]+)\)", link, text)


def _anchor(title: str) -> str:
    """Return the anchor of a heading, from its text or from Jupyter's anchor."""
    return re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-")


def _markdown(path: Path) -> str:
    """Return a page's text; of a notebook that of its cells of text."""
    text = path.read_text("utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(each["source"]) for each in json.loads(text)["cells"] if each["cell_type"] == "markdown")


def _headings(path: Path) -> list[tuple[int, str]]:
    """Return the levels and texts of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", _markdown(path), flags=re.MULTILINE | re.DOTALL)
    return [(len(match[1]), match[2].strip()) for match in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE)]


def _questions(sources: Path, guides: list[Path]) -> str:
    """Return the page with each question that a guide answers, under the guide's title."""
    lines = ["# Questions", "", "What the guides answer, each with a link to its place.", ""]
    for guide in guides:
        (_, title), *others = _headings(sources / guide.name)
        lines += [f"## {title}", ""]
        lines += [f"{'  ' * (level - 2)}* [{text}]({guide.name}#{_anchor(text)})" for level, text in others]
        lines.append("")
    return "\n".join(lines)


def _reference(sources: Path) -> list[Page]:
    """Write the reference's sources: a page for each public module, and one for each public thing, at its first name."""
    folder = sources / "reference"
    folder.mkdir()
    pages: list[Page] = []
    named: dict[int, str] = {}
    for name, place in MODULES.items():
        module = import_module(place)
        members = {each: getattr(module, each) for each in module.__all__}
        listed, own = [_title(name), f".. automodule:: {place}", "   :no-members:", "   :no-index:", ""], []
        for each in sorted(members, key=lambda each: (not callable(members[each]), each.lower())):
            member = members[each]
            if isinstance(member, ModuleType):
                listed += [f":doc:`{each} <cojoin.{each}>`", f"   {_begin(member)}", ""]
                continue
            page = named.setdefault(id(member), f"{name}.{each}")
            listed += [f":doc:`{each} <{page}>`", f"   {_begin(member)}", ""]
            if page == f"{name}.{each}":
                Path(folder, f"{page}.rst").write_text(_member_source(page, place, each, member), "utf-8")
                own.append(Page(f"reference/{page}", page, _begin(member)))
        tree = [".. toctree::", "   :hidden:", "", *(f"   {each.title}" for each in own), ""] if own else []
        Path(folder, f"{name}.rst").write_text("\n".join([*listed, *tree]), "utf-8")
        pages += [Page(f"reference/{name}", name, _begin(module)), *own]
    return pages


def _member_source(title: str, place: str, name: str, member: Any) -> str:
    """Return the source of a public name's page."""
    if isinstance(member, type):
        kind = "autoexception" if issubclass(member, BaseException) else "autoclass"
        has_members = kind == "autoclass" and not is_opaque(member)
        options = ["   :members:", "   :inherited-members: tuple, dict, Exception, ABC"] if has_members else []
        name += "()" if is_opaque(member) else ""
    else:
        kind, options = ("autofunction" if inspect.isfunction(member) else "autodata"), []
    return "\n".join([_title(title), f".. {kind}:: {place}.{name}", *options, ""])


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n"


def _begin(member: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text)[0]


def _page(sources: Path, name: str) -> Page:
    """Return a page by its source, with the first sentence of its text."""
    path = next(sources.glob(f"{name}.*"))
    parts = _markdown(path).split("\n\n")
    paragraphs = [each for each in parts if each.strip() and not each.startswith(("#", "```", "|", "---"))]
    begin = " ".join(paragraphs[0].split()) if paragraphs else ""
    return Page(name, _headings(path)[0][1], re.split(r"(?<=[.?]) ", re.sub(r"\]\([^)]*\)|[\[`]", "", begin))[0])


def _listed(pages: list[Page]) -> str:
    """Return ``llms.txt``: the pages with a line each."""
    lines = ["# cojoin", "", "> Deterministic event-time joins of two keyed streams on Spark, from Python.", ""]
    lines += ["The reference as one file is [reference.txt](reference.txt).", "", "## Pages", ""]
    lines += [f"- [{each.title}]({each.name}.html): {each.begin}" for each in pages if "reference/" not in each.name]
    lines += ["", "## Reference", ""]
    lines += [f"- [{each.title}]({each.name}.html): {each.begin}" for each in pages if "reference/" in each.name]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]))
    except RuntimeError as error:
        sys.exit(str(error))

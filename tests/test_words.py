"""The words of names, docstrings, comments and messages: those of CONTRIBUTING's table, without exceptions.

A name says which thing it holds, a docstring opens with a verb or a noun, and a message names what is wrong and where.
``python -m tests.test_words FOLDER`` prints each place with its line.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cojoin

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(cojoin.__file__).parent

# A name of one of these words says nothing of what it holds; `each` may stand in a comprehension of one line.
EMPTY_NAMES = frozenset({"each", "told", "tells", "found", "what", "says", "given", "asked", "here", "there", "such"})
# Words of people in names of functions, classes and attributes.
NAME_PARTS = frozenset({"told", "tells", "says", "said", "what", "here", "there", "asked"})

# Of docstrings and comments: the word, and one to write instead.
PROSE = {
    r"such an? one": "name it",
    r"for ever": "forever",
    r"anew": "again",
    r"beside(?!s)": "next to",
    r"(?:is|are|has|have) told": "learns, gets, is passed",
    r"tells?": "returns, names, shows",
    r"nobody|somebody": "name the reader or the writer",
    r"of its own": "its own",
    r"(?:goes|go|went) on": "continues",
    r"comes? out": "is emitted",
    r"(?:is|are) no (?!longer|more|other|later|earlier)": "is not a",
    r"at rest": "stored",
}
# Of messages, besides those of prose.
MESSAGES = {
    r"here": "name the place",
    r"there(?! (?:is|are|was|were|may|can))": "name the place",
    r"says?|said": "has, reports",
    r"knows?|knew": "has, finds",
}
OPENING = re.compile(r"(?:What|How|Who|Whose|Which|Where|Whether|When)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def words_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each word that the rules name, and what the rule is."""
    tree = ast.parse(source)
    documented = {id(node.body[0].value): node for node in ast.walk(tree) if _docstring(node)}  # type: ignore[attr-defined]
    yield from _names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        owner = documented.get(id(node))
        if owner is not None:
            yield from _opening(owner, node)
            yield from _matches(node.lineno, node.value, PROSE)
        elif " " in node.value:
            yield from _matches(node.lineno, node.value, PROSE | MESSAGES)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from _matches(token.start[0], token.string, PROSE)


def _docstring(node: ast.AST) -> bool:
    return isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None


def _opening(owner: ast.AST, node: ast.Constant) -> Iterator[tuple[int, str]]:
    opening = OPENING.match(str(node.value).strip())
    returns = getattr(owner, "returns", None)
    is_boolean = returns is not None and ast.unparse(returns) == "bool"
    if opening is not None and not (opening.group() == "Whether" and is_boolean):
        yield node.lineno, f"docstring opens with {opening.group()!r}"


def _matches(line: int, text: str, rules: dict[str, str]) -> Iterator[tuple[int, str]]:
    for number, part in enumerate(text.split("\n")):
        for rule, instead in rules.items():
            for match in re.finditer(rf"\b(?:{rule})(?:\b|(?<= ))", part):
                yield line + number, f"{match.group().strip()!r}: {instead}"


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    short = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)) and _lines(node) == 1:
            short |= {id(part) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, is_short = node.id, id(node) in short
        elif isinstance(node, ast.arg):
            name, is_short = node.arg, False
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name, is_short = node.name, False
        else:
            continue
        plain = name.strip("_").lower()
        is_empty = plain in EMPTY_NAMES and not (plain == "each" and is_short)
        is_defined = isinstance(node, (ast.FunctionDef, ast.ClassDef))
        if is_empty or (is_defined and NAME_PARTS & set(re.split(r"_|(?<=[a-z])(?=[A-Z])", name.lower()))):
            yield node.lineno, f"name {name!r}"


def _lines(node: ast.expr) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in ROOT.rglob("*.py")}))
def test_words(folder: str) -> None:
    assert _report(ROOT / folder) == []


def _report(folder: Path) -> list[str]:
    paths = [folder] if folder.suffix else sorted(folder.rglob("*.py"))
    return [f"{path}:{line}: {word}" for path in paths for line, word in sorted(set(words_of(path.read_text("utf-8"))))]


if __name__ == "__main__":
    for argument in sys.argv[1:] or [str(ROOT)]:
        sys.stdout.writelines(f"{line}\n" for line in _report(Path(argument)))

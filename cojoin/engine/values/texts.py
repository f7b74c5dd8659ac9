r"""Texts that are not valid UTF-8, which Spark and Delta allow, as Python's strings and back without loss.

In a string each byte that is not part of a character becomes one of U+DC80 to U+DCFF, as in Python's own
``os.fsdecode`` (PEP 383): ``cast(X'ff41' as string)`` is ``"\udcffA"``. Every text has one such string and every such
string one text, so what a function takes and yields keeps its bytes. In JSON such a character is written as ``\udcff``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["back_quoted", "decode_texts", "dump_json", "encode_texts", "show_text", "text_bytes"]

_HALVES = re.compile("[\ud800-\udfff]")


def decode_texts(array: pa.Array) -> list[str | None]:
    r"""Return a column of texts as strings; nulls become None.

    >>> decode_texts(pa.array([b"\xffA", b"gold", None]).view(pa.string()))
    ['\udcffA', 'gold', None]
    """
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        raw = array.view(pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary())
        return [None if each is None else each.decode("utf-8", "surrogateescape") for each in raw.to_pylist()]


def encode_texts(values: Sequence[str | None]) -> pa.Array:
    r"""Return strings as a column of texts; None becomes a null.

    Raises:
        UnicodeEncodeError: A string has half of a surrogate pair that does not stand for a byte.

    >>> encode_texts(["\udcffA", None]).view(pa.binary()).to_pylist()
    [b'\xffA', None]
    """
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        raw = [None if each is None else text_bytes(each) for each in values]
        return pa.array(raw, pa.binary()).view(pa.string())


def text_bytes(text: str) -> bytes:
    r"""Return a text's bytes, by which texts are ordered.

    >>> text_bytes("\udcffA")
    b'\xffA'
    """
    return text.encode("utf-8", "surrogateescape")


def dump_json(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] = str) -> str:
    r"""Return readable JSON: only halves of surrogate pairs, which UTF-8 can't hold, are escaped.

    Args:
        value: A value that JSON can hold.
        indent: How many blanks a level is indented by; None writes one line.
        default: Converts a value that JSON can't hold.

    >>> print(dump_json({"name": "\udcffÅsa"}))
    {"name": "\udcffÅsa"}
    """
    # JSON has no such characters outside of its strings.
    return _HALVES.sub(
        lambda half: f"\\u{ord(half.group()):04x}",
        json.dumps(value, ensure_ascii=False, indent=indent, default=default),
    )


def show_text(text: str) -> str:
    r"""Return a text that any terminal can show: each byte that is not part of a character is written as an escape.

    >>> print(show_text("\udcffA"))
    \xffA
    """
    return _HALVES.sub(lambda half: f"\\x{ord(half.group()) & 0xFF:02x}", text)


def back_quoted(name: str) -> str:
    """Return a column's name as Spark's SQL and ``col`` read it, whatever characters it has.

    >>> back_quoted("a.b"), back_quoted("a`b")
    ('`a.b`', '`a``b`')
    """
    return f"`{name.replace('`', '``')}`"

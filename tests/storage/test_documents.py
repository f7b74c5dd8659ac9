"""A document is what was written, or the error names the file, says what is wrong with it and what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import cojoin as cj
from cojoin.storage.documents import Form, read_document, to_text, write_document
from cojoin.storage.store import Tagged
from tests.spark.refused import refused

NAME = "manifest/000000000007.json"
FORM = Form("an example", 2, "put it back from a backup", {"batch": int, "rows": (int, type(None))}, unsealed=1)
CONTENT: dict[str, Any] = {
    "batch": 7,
    "rows": None,
    "offsets": ['{"reservoirVersion":4}', "-"],
    "named": {10: 1, 9: "ü"},
}
READ = json.loads(json.dumps(CONTENT))


class InMemory:
    """The files of a checkpoint, in memory."""

    named = "checkpoint /lake/checkpoint"

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def read_tagged(self, name: str) -> Tagged | None:
        text = self.texts.get(name)
        return None if text is None else Tagged(text.encode(errors="surrogatepass"), text)

    def write(self, name: str, text: str) -> None:
        self.texts[name] = text


def read(text: str, form: Form = FORM, name: str = NAME) -> Any:
    return read_document(InMemory(**{name: text}), name, form, dict)  # type: ignore[arg-type]


def test_a_document_is_read_as_it_was_written() -> None:
    files: Any = InMemory()
    assert read_document(files, NAME, FORM, dict) is None
    write_document(files, NAME, FORM, CONTENT)
    assert read_document(files, NAME, FORM, dict) == READ
    assert read_document(files, NAME, FORM, lambda content: content["batch"]) == 7
    assert json.loads(files.texts[NAME])["format"] == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("\n", "it is empty"),
        ("nothing", "it is not a JSON document, or was cut off"),
        ('{"format": 2, ', "it is not a JSON document, or was cut off"),
        ("[1]", "expected a JSON object, got [1]: cojoin did not write it"),
        ("null", "expected a JSON object, got null"),
        ('{"format": "2"}', "expected its 'format' to be a number, got \"2\""),
        ('{"format": true}', "expected its 'format' to be a number, got true"),
        ('{"rows": 1}', "it has no 'format': cojoin did not write it"),
        ('{"format": 2, "content": {}}', "a document of the format 2 has its 'sha256', and this one has none"),
        ('{"format": 2, "batch": 1, "rows": 1}', "a document of the format 2 has its 'sha256', and this one has none"),
        ('{"format": 2, "sha256": "x"}', "a document of the format 2 has its 'content', and this one has none"),
        ('{"format": 2, "sha256": "x", "content": {}}', "its checksum is another's, so it is not what cojoin wrote"),
        ('{"format": 1, "batch": 7}', "its 'rows' is missing"),
        ('{"format": 1, "batch": "7", "rows": 1}', "its 'batch' is \"7\""),
        ('{"format": 1, "batch": true, "rows": 1}', "its 'batch' is true"),
    ],
)
def test_what_is_wrong_is_told_with_the_file_and_what_to_do(text: str, why: str) -> None:
    with refused(
        f"checkpoint /lake/checkpoint: {NAME}, an example, is damaged: {why}",
        "; put it back from a backup",
        kind=cj.CheckpointError,
    ):
        read(text)


def test_other_formats_are_told_as_such() -> None:
    with refused("has the format 3, which is newer than 2: upgrade cojoin", kind=cj.CheckpointError):
        read('{"format": 3, "anything": 1}')
    with refused("has the format 1, that of an earlier version of cojoin", kind=cj.CheckpointError):
        read('{"format": 1, "rows": 1}', Form("an example", 3, "", unsealed=2))


def test_release_0_5_0_wrote_no_checksums() -> None:
    assert read('{"format": 1, "batch": 7, "rows": 1, "more": 2}') == {"batch": 7, "rows": 1, "more": 2}
    without = Form("an example", 1, "", unsealed=0)
    assert read('{"starts": [1]}', without) == {"starts": [1]}
    with refused("has its 'sha256', and this one has none", kind=cj.CheckpointError):
        read('{"format": 1, "starts": [1]}', without)


def test_a_document_in_anothers_place_is_refused() -> None:
    with refused(NAME, "its checksum is another's", kind=cj.CheckpointError):
        read(to_text("manifest/000000000006.json", FORM, CONTENT))


def test_a_content_that_cannot_be_taken_is_damage() -> None:
    files: Any = InMemory(**{NAME: to_text(NAME, FORM, CONTENT)})
    with refused(NAME, "not of the shape that was written", "KeyError", kind=cj.CheckpointError):
        read_document(files, NAME, FORM, lambda content: content["report"])


WHOLE = to_text(NAME, FORM, CONTENT)
DAMAGE = st.builds(
    lambda at, length, put: WHOLE[:at] + put + WHOLE[at + length :],
    at=st.integers(0, len(WHOLE)),
    length=st.sampled_from([0, 1, 2, 40, len(WHOLE)]),
    put=st.one_of(st.just(""), st.sampled_from('0123456789{}[],:" \n'), st.characters()),
)


@given(DAMAGE)
@example("")
def test_whatever_is_changed_is_told_or_changes_nothing(text: str) -> None:
    try:
        found = read(text)
    except cj.CheckpointError as error:
        assert NAME in str(error)  # noqa: PT017 - most changes are told, some change nothing
    else:
        assert found == READ

"""The commands in ``--help``, in the guides and in the README: the command line accepts each as it is written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cojoin.__main__ import main
from cojoin.cli.options import Arguments, parse_arguments, read_words, secrets_of

PROJECT = Path(__file__).resolve().parents[2]
HELPS = [
    *(("demo",), ("init",), ("run",), ("diff",), ("checkpoints",)),
    *(
        ("checkpoints", each)
        for each in ("list", "show", "state", "progress", "explain", "savepoint", "clean", "erase")
    ),
]
HAVE_EXAMPLES = {("demo",), ("init",), ("run",), ("diff",), ("checkpoints",)}


def commands(text: str) -> list[list[str]]:
    """Return the commands of a text: each begins a line, and goes on where a line ends with a backslash."""
    found = re.findall(
        r"^(?:.*/)?cojoin ((?:.*\\\n)*.*)$", re.sub(r"^[ #]+", "", text, flags=re.MULTILINE), re.MULTILINE
    )
    return [shlex.split(each.replace("\\\n", " ").partition(" #")[0]) for each in found]


def accept(words: list[str]) -> Arguments:
    words = read_words(words)
    return parse_arguments(words, secrets_of(words))


@pytest.fixture
def help_of(capsys):
    def printed(*command: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*command, "--help"])
        assert ended.value.code == 0
        text: str = capsys.readouterr().out
        return text

    return printed


@pytest.fixture
def argument_file(tmp_path, monkeypatch):
    """The file that an example names."""
    (tmp_path / "enriched.args").write_text(
        "--output delta:/lake/enriched --checkpoint /lake/_cojoin/enriched --conf spark.hadoop.fs.s3a.secret.key='a b'"
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_the_examples_of_a_commands_help_are_accepted(command, help_of, argument_file):
    examples = commands(help_of(*command).partition("examples:")[2])
    assert bool(examples) == (command in HAVE_EXAMPLES)
    for each in examples:
        assert each[: len(command)] == list(command) or command in {("checkpoints",), ("init",)}
        arguments = accept(each)
        if "--restore-from" in each:
            assert (arguments.checkpoint, str(arguments.output)) == (
                "/lake/_cojoin/again",
                "delta:/lake/enriched_again",
            )
            assert arguments.start["restore_from"].at == 12


def test_each_command_is_looked_at(help_of):
    text = help_of()
    assert {name for name, *_ in HELPS} == set(re.findall(r"^    (\w+)\b", text, re.MULTILINE))
    text = help_of("checkpoints")
    assert {name for _, name in HELPS[5:]} == set(re.findall(r"^    (\w+)\b", text, re.MULTILINE))


@pytest.mark.parametrize(
    "file", [*sorted((PROJECT / "notebooks").glob("[0-9]*.py")), PROJECT / "README.md"], ids=lambda file: file.stem
)
def test_the_commands_of_a_text_are_accepted(file):
    found = [
        each
        for block in re.findall(r"^(?:# )?```\w*\n(.*?)^(?:# )?```", file.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        for each in commands(block)
    ]
    for each in found:
        accept(each)
    assert bool(found) == (file.stem in {"04_replay_kafka", "README"})

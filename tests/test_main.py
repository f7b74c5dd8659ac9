"""The door of the command line: what a person reads who types something wrong, and what is never printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cojoin import Snapshot, Trigger, __version__
from cojoin import __main__ as command_line
from cojoin.cli.options import parse_arguments, secrets_of
from cojoin.errors import CheckpointError

RUN = ["run", "job.py:enriched", "--output", "delta:/lake/enriched", "--checkpoint", "/lake/c"]


def typed(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Type words; gives the exit code and what was printed."""
    try:
        code = command_line.main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["init", "--help"], ["run", "--help"]])
def test_help_is_there_and_names_an_example(words, capsys):
    code, out, _ = typed(*words, capsys=capsys)
    assert code == 0
    assert "usage: cojoin" in out
    if len(words) > 1:
        assert f"cojoin {words[0]}" in out[out.index("examples") :]


def test_version(capsys):
    assert typed("--version", capsys=capsys)[:2] == (0, f"cojoin {__version__}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "COMMAND"),
        (["dmo"], "invalid choice: 'dmo'"),
        (["demo", "--rows", "0"], "expected a whole number of 1 or more, got '0'"),
        (["demo", "--rows", "many"], "expected a whole number, got 'many'"),
        (["run"], "the following arguments are required: JOB, --output, --checkpoint"),
        (["run", "job.py", *RUN[2:]], "argument JOB: expected MODULE:NAME or FILE.py:NAME"),
        ([*RUN, "--output", "/lake/enriched"], "argument --output: expected delta:PATH, parquet:FOLDER, or the name"),
        ([*RUN, "--output", "delte:/lake"], "got 'delte'; did you mean 'delta'?"),
        ([*RUN, "--output", "delta:enriched"], "write a path, such as delta:./enriched"),
        ([*RUN, "--rejected", "delta:rejected"], "write a path, such as delta:./rejected"),
        ([*RUN, "--checkpoint", " "], "argument --checkpoint: expected the path of a directory, got none"),
        ([*RUN, "--checkpoint-interval", "soon"], "argument --checkpoint-interval: checkpoint_interval: expected"),
        ([*RUN, "--retained-checkpoints", "0"], "expected a whole number of 1 or more, got '0'"),
        ([*RUN, "--every", "soon"], "argument --every: duration: expected a duration such as '5 seconds'"),
        ([*RUN, "--drain", "--every", "1 minute"], "not allowed with argument"),
        ([*RUN, "--drain", "--then-live", "1 minute"], "not allowed with argument"),
        ([*RUN, "--conf", "x"], "argument --conf: expected NAME=VALUE"),
        ([*RUN, "--set", "since"], "argument --set: expected NAME=VALUE"),
        ([*RUN, "--at", "0"], "--at needs --restore-from, which is missing"),
        ([*RUN, "--cut-back-output"], "--cut-back-output needs --restore-from, which is missing"),
        ([*RUN, "--allow-data-loss"], "--allow-data-loss needs --restore-from, which is missing"),
        ([*RUN, "--restore-from", "/lake/a", "--at", "noon"], "expected a batch's number, or a time with its zone"),
        (["replay"], "invalid choice: 'replay'"),
        (["run", "@no_such.args"], "@no_such.args: the file of arguments can't be read: No such file"),
    ],
)
def test_a_mistake_is_one_message(words, said, capsys):
    code, out, err = typed(*words, capsys=capsys)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 3


def test_an_error_of_cojoins_is_one_message(capsys, monkeypatch):
    def fail(arguments):
        msg = "checkpoint /lake/c: it belongs to another query"
        raise CheckpointError(msg)

    monkeypatch.setattr(command_line, "_run", fail)
    assert typed(*RUN, capsys=capsys) == (2, "", "cojoin: checkpoint /lake/c: it belongs to another query\n")


def test_an_unforeseen_error_tells_its_type_and_how_to_see_more(capsys, monkeypatch):
    def fail(arguments):
        {}["tier"]

    monkeypatch.setattr(command_line, "_run", fail)
    assert typed(*RUN, capsys=capsys) == (3, "", "cojoin: KeyError: 'tier' (--verbose shows where)\n")
    code, _, err = typed(*RUN, "--verbose", capsys=capsys)
    assert code == 3
    assert "Traceback" in err


def test_ctrl_c_ends_with_130(capsys, monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_run", interrupt)
    assert typed(*RUN, capsys=capsys) == (130, "", "Stopped.\n")


@pytest.mark.parametrize(
    "words",
    [
        ["--conf", "spark.hadoop.fs.s3a.secret.key=hunter2"],
        ["--conf=spark.executorEnv.SETTINGS=user=me secret=hunter2"],
        ["--set", "password=hunter2"],
        ["--set=registry=http://me:hunter2@localhost:8081"],
    ],
)
def test_an_options_value_is_never_printed(words, capsys, monkeypatch):
    def fail(arguments):
        msg = f"could not log in with {[*arguments.conf.values(), *arguments.settings.values()]}"
        raise CheckpointError(msg)

    monkeypatch.setattr(command_line, "_run", fail)
    for more in ([], ["--verbose"]):
        code, out, err = typed(*RUN, *words, *more, capsys=capsys)
        assert code == 2
        assert "could not log in" in err
        assert "hunter2" not in out + err


@pytest.mark.parametrize(
    "words",
    [
        ["--cnof", "ssl.key.password=hunter2"],
        ["--cofn=ssl.key.password=hunter2"],
        ["--conf", "hunter2"],
        ["--left-option", "hunter2"],
    ],
)
def test_a_mistyped_option_does_not_print_its_value(words, capsys):
    code, out, err = typed(*RUN, *words, capsys=capsys)
    assert code == 2
    assert "hunter2" not in out + err


def test_arguments_come_from_a_file_too(tmp_path, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(command_line, "_run", lambda arguments: seen.append(arguments) or 0)
    file = tmp_path / "enriched.args"
    file.write_text("--conf ssl.key.password='hunter 2' --set since=2026-01-05\n--then-live '10 seconds' --name 'a b'")
    assert typed(*RUN, f"@{file}", capsys=capsys)[0] == 0
    (arguments,) = seen
    assert (arguments.conf, arguments.settings) == ({"ssl.key.password": "hunter 2"}, {"since": "2026-01-05"})
    assert "hunter" not in repr(arguments)
    assert (arguments.job, arguments.start["name"]) == (("job.py", "enriched"), "a b")
    assert arguments.start["trigger"] == Trigger.available_now(then=Trigger.processing_time("10 seconds"))


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {"trigger": Trigger.available_now(), "name": "enriched", "restore_from": None, "evolve": False}),
        (["--drain"], {"trigger": Trigger.available_now(drain=True)}),
        (["--every=2 seconds", "--evolve"], {"trigger": Trigger.processing_time("2 seconds"), "evolve": True}),
        (["--checkpoint-interval=none"], {"checkpoint_interval": None, "retained_checkpoints": 3}),
        (["--restore-from=/lake/a", "--at=0"], {"restore_from": Snapshot("/lake/a", 0), "cut_back_output": False}),
    ],
)
def test_options_are_arguments_of_start(words, given):
    start = parse_arguments([*RUN, *words], secrets_of(words)).start
    assert {name: start[name] for name in given} == given


def test_missing_java_is_said_in_one_sentence(tmp_path):
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "cojoin", "demo", "--rows", "10"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("cojoin: Spark needs Java 17 or later")
    assert len(ended.stderr.splitlines()) == 1

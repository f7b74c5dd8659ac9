"""The door of the command line: what a person reads who types something wrong, and what is never printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cojoin import __main__ as command_line
from cojoin import __version__
from cojoin.errors import CheckpointError

RUN = [
    *("run", "--left", "parquet:/lake/trades", "--right", "kafka:localhost:9092/customers"),
    *("--right-schema", "customer_id long, event_time timestamp, tier string"),
    *(
        "--key",
        "customer_id",
        "--event-time",
        "event_time",
        "--output",
        "delta:/lake/enriched",
        "--checkpoint",
        "/lake/c",
    ),
]


def typed(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Type words; gives the exit code and what was printed."""
    try:
        code = command_line.main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["run", "--help"], ["replay", "--help"]])
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
        (["run"], "the following arguments are required: --left, --right, --output, --checkpoint"),
        ([*RUN, "--left", "trades"], "expected KIND:PLACE, such as delta:/lake/trades, got 'trades'"),
        ([*RUN, "--left", "parqet:/lake"], "got 'parqet'; did you mean 'parquet'?"),
        ([*RUN, "--left", "kafka:localhost:9092"], "expected kafka:HOST:PORT/TOPIC"),
        ([*RUN, "--output", "json:/lake/out"], "expected one of delta, parquet, kafka before the colon, got 'json'"),
        ([*RUN, "--output", "delta:enriched"], "write a path, such as delta:./enriched"),
        ([*RUN, "--delay", "5"], "--delay: expected a duration such as '5 seconds'"),
        ([*RUN, "--max-ahead", "soon"], "--max-ahead"),
        ([*RUN, "--how", "outer"], "invalid choice: 'outer'"),
        ([*RUN, "--tolerance", "-1 hour"], "expected a duration of zero or more"),
        ([*RUN, "--right-schema", "id lnog"], "did you mean"),
        ([*RUN, "--suffixes", "_x"], "expected two different suffixes"),
        ([*RUN, "--drain", "--every", "1 minute"], "not allowed with argument"),
        ([*RUN[:7], *RUN[9:]], "expected --key, or --left-key"),
        ([*RUN[:5], *RUN[7:]], "expected --right-schema, such as 'customer_id long"),
        ([*RUN, "--to", "latest"], "unrecognized arguments: --to"),
        (
            [*RUN, "--left-from", "5"],
            "--left-from applies only to a Kafka topic, and --left parquet:/lake/trades is not one",
        ),
        (
            [*RUN, "--right", "parquet:/lake/c", "--max-drift", "1 hour"],
            "--max-drift applies only to a Kafka topic, and neither input is one",
        ),
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
        ["--right-option", 'sasl.oauthbearer.config=principal=me secret="hunter2";'],
        ["--right-option=ssl.key.password=hunter2"],
        ["--conf", "spark.hadoop.fs.s3a.secret.key=hunter2"],
    ],
)
def test_an_options_value_is_never_printed(words, capsys, monkeypatch):
    def fail(arguments):
        values = [*arguments.sides[1].options.values(), *arguments.conf.values()]
        msg = f"could not log in with {values}, not with hunter2"
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
        ["--right-optoin", "ssl.key.password=hunter2"],
        ["--right-optoin=ssl.key.password=hunter2"],
        ["--right-option", "hunter2"],
        ["--rigth", "password=hunter2"],
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
    file.write_text("--right-option ssl.key.password='hunter 2'\n--tolerance '1 hour'\n--how inner")
    assert typed(*RUN, f"@{file}", capsys=capsys)[0] == 0
    (arguments,) = seen
    assert (arguments.join.how, arguments.join.tolerance) == ("inner", "1 hour")
    assert arguments.sides[1].options == {"ssl.key.password": "hunter 2"}
    assert "hunter" not in repr(arguments)
    assert (arguments.left.name, arguments.right.name) == ("trades", "customers")


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--key-groups", "0"], "argument --key-groups: expected a whole number of 1 or more, got '0'"),
        (["--key-groups", "40000"], "argument --key-groups: expected a whole number from 1 to 32768, got '40000'"),
        (["--checkpoint", " "], "argument --checkpoint: expected the path of a directory, got none"),
        (["--every", "soon"], "argument --every: duration: expected a duration such as '5 seconds'"),
        (["--tolerance", "-1"], "argument --tolerance: duration: expected a duration such as '5 seconds'"),
        (["--conf", "x"], "argument --conf: expected NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_said_before_spark_is_started(words, said, capsys):
    code, out, err = typed(*RUN, *words, capsys=capsys)
    assert (code, out) == (2, "")
    assert said in err


def test_advice_is_in_the_command_lines_words(capsys, monkeypatch):
    def fail(arguments):
        msg = 'inputs both have \'tier\'; tell them apart with suffixes=("", "_customers")'
        raise CheckpointError(msg)

    monkeypatch.setattr(command_line, "_run", fail)
    assert typed(*RUN, capsys=capsys)[2].endswith("tell them apart with --suffixes ,_customers\n")

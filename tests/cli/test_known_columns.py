"""What is wrong with columns that the arguments name is told before Spark starts, in options."""

from __future__ import annotations

import pytest

from cojoin.cli.arguments import parse_arguments
from cojoin.cli.command_secrets import secrets_of

TRADES = "trade_id long, customer_id long, event_time timestamp, amount double"
CUSTOMERS = "customer_id long, event_time timestamp, tier string"
TOPICS = "kafka:localhost:1/trades", "kafka:localhost:1/customers"
BOTH = (f"--left-schema={TRADES}", f"--right-schema={CUSTOMERS}")
AVRO = ("--format=avro", "--registry=http://localhost:1", "--left-column=customer_id=key:long")
POSITIONS = "inputs 'trades' and 'customers' both have 'topic', 'partition', 'offset'; tell them apart with --suffixes"


def words(*more: str, sides=TOPICS, command="replay") -> list[str]:
    left, right = sides
    return [
        command,
        *(f"--left={left}", f"--right={right}", "--key=customer_id", "--event-time=event_time"),
        *("--output=delta:/lake/enriched", "--checkpoint=/lake/checkpoint"),
        *more,
    ]


@pytest.mark.parametrize("command", ["replay", "run"])
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (BOTH, f"{POSITIONS} ,_customers\n"),
        (AVRO, f"{POSITIONS} ,_customers\n"),
        ((*BOTH, "--right-name=who"), "--suffixes ,_who\n"),
        ((*BOTH, "--left-column=tier=header:tier"), "both have 'tier', 'topic', 'partition', 'offset'"),
        ((*BOTH, "--suffixes=,_c", "--left-key=custmer_id"), "no key column 'custmer_id'; did you mean 'customer_id'?"),
        (
            (*BOTH, "--suffixes=,_c", "--right-schema=customer_id int, event_time timestamp"),
            "'customer_id' of input 'customers' is int; cast one: write 'customer_id bigint' in --right-schema",
        ),
        (
            (*BOTH, "--suffixes=,_c", "--left-schema=customer_id long, event_time string"),
            "expected a timestamp, got string; turn texts into one: write 'event_time timestamp' in --left-schema\n",
        ),
        ((*BOTH, "--suffixes=,_c", "--left-name=a", "--right-name=a"), "give each a --left-name or --right-name of"),
        ((*BOTH, "--suffixes=,_c", "--left-schema=customer_id long, event_time timestamp, topic_c int"), "'topic_c'"),
    ],
)
def test_columns_that_do_not_fit_are_one_message(capsys, command, more, said):
    typed = words(*more, command=command)
    with pytest.raises(SystemExit) as ended:
        parse_arguments(typed, secrets_of(typed))
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_equal_names_of_files_and_of_options_are_told(capsys):
    """Of files the typed columns are known, since Spark adds those of partitioned folders; of a table those named."""
    files = ("json:/lake/trades", "csv:/lake/customers")
    for sides, more, said in (
        (files, (f"--left-schema={TRADES}, Tier string", f"--right-schema={CUSTOMERS}"), "both have 'tier'"),
        (("delta:/lake/trades", files[1]), (BOTH[1], "--left-sequence=TIER"), "both have 'tier'"),
    ):
        typed = words(*more, sides=sides, command="run")
        with pytest.raises(SystemExit):
            parse_arguments(typed, secrets_of(typed))
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sides", "more"),
    [
        (TOPICS, (*BOTH, "--suffixes=,_customers")),
        (TOPICS, (*AVRO, "--suffixes=,_customers")),
        (("delta:/lake/trades", TOPICS[1]), BOTH[1:]),
        (("parquet:/lake/trades", TOPICS[1]), (*BOTH, "--left-key=day,customer_id", "--right-key=topic,customer_id")),
        (("parquet:/lake/trades", "orc:/lake/customers"), ()),
    ],
)
def test_what_the_sources_may_still_have_is_accepted(sides, more):
    typed = words(*more, sides=sides, command="run")
    parse_arguments(typed, secrets_of(typed))

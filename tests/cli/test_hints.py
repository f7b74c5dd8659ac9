"""Advice in the command line's own words."""

from __future__ import annotations

import pytest

from cojoin.cli.hints import in_options


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            'both have \'tier\'; tell them apart with suffixes=("", "_customers"), or rename or drop them',
            "both have 'tier'; tell them apart with --suffixes ,_customers, or rename or drop them",
        ),
        (
            'both have \'tier\'; tell them apart with suffixes=("", "_c"), or rename or drop them in one input',
            "both have 'tier'; tell them apart with --suffixes ,_c",
        ),
        ("give each a name= of its own", "give each a --left-name or --right-name of its own"),
        (
            "choose other suffixes=, another name= for",
            "choose other --suffixes, another --left-name or --right-name for",
        ),
        (
            "start it again with restore_from=cojoin.Checkpoint('file:/lake/c', at=12)",
            "start it again with `cojoin checkpoints restore file:/lake/c --at 12 ...`",
        ),
        ("cut_back_output=True, or name a new table", "--cut-back-output, or name a new table"),
        ("start(..., evolve=True) takes it up: rows", "--evolve takes it up: rows"),
        ('go on without them with data_loss="skip"', "go on without them with --data-loss skip"),
        ("or wait for longer with patience=", "or wait for longer with --patience"),
        ("from_='latest' is after to='earliest'", "--from 'latest' is after --to 'earliest'"),
        (
            "is taken every checkpoint_interval, by query.savepoint(), and by `cojoin checkpoints savepoint`",
            "is taken every --checkpoint-interval, and by `cojoin checkpoints savepoint`",
        ),
        (
            "with_idleness(...) in its watermark strategy lets time. With when_all_idle='max' in connect(...) the",
            "--idleness lets time. With --when-all-idle max the",
        ),
        ("by more than its max_drift, so", "by more than --max-drift, so"),
        ("held by silent partition 3 of trades (max_drift)", "held by silent partition 3 of trades (--max-drift)"),
        ("source kafka trades: max_drift: expected", "source kafka trades: --max-drift: expected"),
        ("or with drain=True, which ends", "or with --drain, which ends"),
        (
            "without drain=True, and call query.savepoint()",
            "without --drain, and take a snapshot with `cojoin checkpoints savepoint`",
        ),
        ("restore another snapshot with at= (", "restore another snapshot with --at ("),
        (
            "give this query a group of its own with group=",
            "give this query a group of its own with --left-group or --right-group",
        ),
        (
            "there is no subject 'a'; name another with subject=, or give the columns as DDL",
            "there is no subject 'a'; give the columns with --left-schema or --right-schema",
        ),
        ("no schema= to decode it by", "no --left-schema or --right-schema to decode it by"),
        (
            'give them new times, or the source options={"maxFileAge": "3650d"}',
            "give them new times, or --left-option or --right-option maxFileAge=3650d",
        ),
        (
            "give one with certificate= and private_key=",
            "give one with --registry-option ssl.certificate.location=... and --registry-option ssl.key.location=...",
        ),
        (
            "set spark.cojoin.parquet=spark in the session and connect the inputs again: Spark then reads",
            "start it again with --conf spark.cojoin.parquet=spark: Spark then reads",
        ),
        ("renew them in the session's settings fs.* or", "renew them in --conf spark.hadoop.fs.* or"),
        ("source kafka trades: patience: expected", "source kafka trades: --patience: expected"),
        ("checkpoint /lake/c: nothing here is an argument", "checkpoint /lake/c: nothing here is an argument"),
    ],
)
def test_an_argument_of_pythons_becomes_an_option(message: str, expected: str) -> None:
    assert in_options(message) == expected

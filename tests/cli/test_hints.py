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
        ('go on without them with data_loss="skip"', "go on without them with --data-loss skip"),
        ("or wait for longer with patience=", "or wait for longer with --patience"),
        ("from_='latest' is after to='earliest'", "--from 'latest' is after --to 'earliest'"),
        (
            "is taken every checkpoint_interval, by query.savepoint(), and by `cojoin checkpoints savepoint`",
            "is taken every --checkpoint-interval, and by `cojoin checkpoints savepoint`",
        ),
        ("checkpoint /lake/c: nothing here is an argument", "checkpoint /lake/c: nothing here is an argument"),
    ],
)
def test_an_argument_of_pythons_becomes_an_option(message: str, expected: str) -> None:
    assert in_options(message) == expected

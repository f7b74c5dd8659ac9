"""Rewords messages for the command line: an argument of the Python API becomes the option that sets it.

Messages are written once, for users of the Python API. A user of the command line can't set ``suffixes=``.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["in_options"]


def _suffixes(found: re.Match[str]) -> str:
    return f"--suffixes {shlex.quote(f'{found[1]},{found[2]}')}"


def _restoring(found: re.Match[str]) -> str:
    moment = f" --at {found[2]}" if found[2] else ""
    return f"`cojoin checkpoints restore {shlex.quote(found[1])}{moment} ...`"


_RULES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r'suffixes=\("([^"]*)", "([^"]*)"\)(?:, or rename or drop them in one input)?', _suffixes),
    (r"(?:start\()?restore_from=cojoin\.Checkpoint\('([^']*)'(?:, at=(\d+))?\)\)?", _restoring),
    (r"\bcut_back_output=True", "--cut-back-output"),
    (r"\ballow_data_loss=True", "--allow-data-loss"),
    (r"\bstart\(\.\.\., evolve=True\)", "--evolve"),
    (r'\bdata_loss="skip"', "--data-loss skip"),
    (r"\bpatience(?:=|(?=:))", "--patience"),
    (r"\bwith_idleness\(\.\.\.\) in its watermark strategy", "--idleness"),
    (r"\bwhen_all_idle='max' in connect\(\.\.\.\)", "--when-all-idle max"),
    (r"\b(?:its )?max_drift\b(=?)", lambda found: f"--max-drift{' ' if found[1] else ''}"),
    (r"\bmax_records\b", "--max-records"),
    (r"\bfrom_ is after to\b", "--from is after --to"),
    (r"\bfrom_ is\b", "--from is"),
    (r"\bfrom_=", "--from "),
    (r"\bfrom_(?=:)", "--from"),
    (r"(?<= )to=(?=')", "--to "),
    (
        r"key=17, or a row, such as input='trades', row=\{'trade_id': 17\}",
        "--key 17, or --input trades --row trade_id=17",
    ),
    (
        r"\bdrain=True, and call query\.savepoint\(\)",
        "--drain, and take a snapshot with `cojoin checkpoints savepoint`",
    ),
    (r"\bdrain=True", "--drain"),
    (r"\brestore_from=", "`cojoin checkpoints restore`"),
    (r"\brestore_from\b", "--restore-from"),
    (r"\bwith at=", "with --at"),
    (r"\bcheckpoint_interval\b", "--checkpoint-interval"),
    (r"\bretained_checkpoints\b", "--retained-checkpoints"),
    (r"\bmax_ahead\b=?", "--max-ahead"),
    (r"\bkey_groups(?==|:)", "--key-groups"),
    (r"\bsuffixes=", "--suffixes"),
    (
        r"\bname another with subject=, or give the columns as DDL",
        "give the columns with --left-schema or --right-schema",
    ),
    (
        r"\bexpected subject=, the subject of the reader's schema, because",
        "expected the columns, with --left-schema or --right-schema, because",
    ),
    (r"\bschema=(?=['\"])", "--left-schema or --right-schema "),
    (r"\bschema=(?! and decode=)", "--left-schema or --right-schema"),
    (r"\bcolumns= makes", "--left-column or --right-column makes"),
    (r"\bthe source options=\{\"([\w.]+)\": \"([^\"]*)\"\}", r"--left-option or --right-option \1=\2"),
    (r"\bwith group=", "with --left-group or --right-group"),
    (r"\bca=", "--registry-option ssl.ca.location=..."),
    (r"\bcertificate=", "--registry-option ssl.certificate.location=..."),
    (r"\bprivate_key=", "--registry-option ssl.key.location=..."),
    (r"\bsee cojoin\.kafka\.registry\(\)", "see --registry-option"),
    (
        r"\bset (spark\.cojoin\.\w+=\w+) in the session(?: and connect the inputs again)?",
        r"start it again with --conf \1",
    ),
    (r"\bthe session's settings fs\.", "--conf spark.hadoop.fs."),
    (r"\bname= for the input", "--left-name or --right-name"),
    (r"\ba name= of its own", "a --left-name or --right-name of its own"),
    (r"\banother name=", "another --left-name or --right-name"),
    (r"\bcheckpoint=", "--checkpoint"),
    (r", by query\.savepoint\(\), and by ", ", and by "),
]


def in_options(message: str) -> str:
    """Return a message with the command line's options in place of Python's arguments.

    Args:
        message: An error's message.

    >>> in_options('tell them apart with suffixes=("", "_customers")')
    'tell them apart with --suffixes ,_customers'
    >>> in_options("allow_data_loss=True continues without them")
    '--allow-data-loss continues without them'
    """
    for pattern, option in _RULES:
        message = re.sub(pattern, option, message)
    return message

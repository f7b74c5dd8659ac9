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
    (r'\bdata_loss="skip"', "--data-loss skip"),
    (r"\bpatience=", "--patience"),
    (r"\bmax_drift=", "--max-drift "),
    (r"\bfrom_ is after to\b", "--from is after --to"),
    (r"\bfrom_ is\b", "--from is"),
    (r"\bfrom_=", "--from "),
    (r"(?<= )to=(?=')", "--to "),
    (
        r"key=17, or a row, such as input='trades', row=\{'trade_id': 17\}",
        "--key 17, or --input trades --row trade_id=17",
    ),
    (r"\bdrain=True", "--drain"),
    (r"\brestore_from=", "`cojoin checkpoints restore`"),
    (r"\brestore_from\b", "--restore-from"),
    (r"\bcheckpoint_interval\b", "--checkpoint-interval"),
    (r"\bretained_checkpoints\b", "--retained-checkpoints"),
    (r"\bmax_ahead\b", "--max-ahead"),
    (r"\bkey_groups(?==|:)", "--key-groups"),
    (r"\bsuffixes=", "--suffixes"),
    (r"\bschema=", "--left-schema or --right-schema "),
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

"""The entry point of the command line: ``cojoin`` or ``python -m cojoin``.

The exit codes are 0 for success, 1 for a result that differs (from pandas', or in ``cojoin diff`` from the other
version's), 2 for an error that the user can correct, 3 for an unexpected error and 130 for Ctrl-C. An error is printed
as one message, in which option values that may be secrets are masked.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import TYPE_CHECKING

from cojoin.cli.interrupts import INTERRUPTED, Interrupts
from cojoin.cli.options import Arguments, parse_arguments, read_words, secrets_of
from cojoin.errors import CojoinError, ConfigurationError
from cojoin.installed_packages import check_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

_TO_PUT_RIGHT, _UNFORESEEN = 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: The arguments without the program's name; None takes those of the process.
    """
    try:
        words = read_words(sys.argv[1:] if argv is None else argv)
    except ConfigurationError as error:
        _say(f"cojoin: {error}")
        return _TO_PUT_RIGHT
    secrets = secrets_of(words)
    arguments = parse_arguments(words, secrets)
    if not sys.warnoptions:
        # Warnings of PySpark and Java are addressed to programmers, not to users of a command.
        warnings.simplefilter("ignore")
    try:
        with Interrupts():
            return _run(arguments)
    except KeyboardInterrupt:
        _say("Stopped.")
        return INTERRUPTED
    except BrokenPipeError:
        # The process that reads the output, such as `head`, has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - every error is printed as a message
        if arguments.verbose:
            _say(secrets.mask(traceback.format_exc()))
        known = isinstance(error, CojoinError) or _is_sparks(error)
        _say(secrets.mask(f"cojoin: {_message(error)}"))
        return _TO_PUT_RIGHT if known else _UNFORESEEN


def _run(arguments: Arguments) -> int:
    # Imported here so that --help and errors in arguments need not wait for Spark's import.
    if arguments.command == "demo" and arguments.local:
        from cojoin.cli.demo import run_local_demo  # noqa: PLC0415

        return run_local_demo(arguments)
    if arguments.command != "diff":
        check_packages(f"cojoin {arguments.command}", "spark")
    if arguments.command == "demo":
        from cojoin.cli.demo import run_demo  # noqa: PLC0415

        return run_demo(arguments)
    if arguments.command == "checkpoints":
        from cojoin.cli.checkpoints import run_checkpoints  # noqa: PLC0415

        return run_checkpoints(arguments)
    if arguments.command == "diff":
        from cojoin.cli.run import run_diff  # noqa: PLC0415

        return run_diff(arguments)
    if arguments.command == "init":
        from cojoin.cli.jobs import write_job  # noqa: PLC0415

        return write_job(arguments)
    from cojoin.cli.run import run_job  # noqa: PLC0415

    return run_job(arguments)


def _message(error: Exception) -> str:
    if isinstance(error, CojoinError):
        return str(error)
    if _is_sparks(error):
        return str(error).split("\n\nJVM stacktrace")[0].split("\nJVM stacktrace")[0].strip()
    return f"{type(error).__name__}: {error} (--verbose shows where)"


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.startswith("pyspark.errors")


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(text.rstrip() + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

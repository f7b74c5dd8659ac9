"""Checks that the tests notice small faults: ``python -m tests.mutants --count 80`` plants one at a time and runs them.

A fault changes one place of a module of ``cojoin``: a comparison, an operator, a condition, a number, a truth value, or
a call whose result nobody uses. Places are drawn by a seed, in proportion to the modules' lines of code. Each fault is
planted into a copy of the project, and the tests that ``tests.changed`` selects for the module run there, nearest
first, until one fails or the time is up. A fault that no test noticed is printed with its line and may be harmless.

``--only NUMBER`` repeats a fault of a seed. A fault costs up to five minutes. Kept tools (mutmut, cosmic-ray) mutate
a module as a whole against one command; they neither draw over a project nor choose the tests of a module.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.changed import selected_tests
from tests.seeds import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).resolve().parents[1]
_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Fault:
    """A fault in one place of a module.

    Attributes:
        path: The module's path in the project.
        line: The line of the place.
        before: The line's code.
        after: The code of the changed node.
        source: The whole module with the fault.
    """

    path: str
    line: int
    before: str
    after: str
    source: str


def _places(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the nodes of a module that can be changed, each with the code to put in its place.

    Types, decorators, texts and ``strict=`` decide little at run time, so they are left out.
    """
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            waiting += node.body
            continue
        if isinstance(node, ast.AnnAssign):
            waiting += [node.value] if node.value is not None else []
            continue
        waiting += ast.iter_child_nodes(node)
        yield from _changes(node)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what can be changed in a node itself."""
    if isinstance(node, ast.If | ast.IfExp):
        yield node.test, f"not ({ast.unparse(node.test)})"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        yield node, str(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Compare):
        swapped = ast.Compare(node.left, [_SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
        yield node, ast.unparse(swapped)
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        yield node, ast.unparse(ast.BinOp(node.left, _SWAPS[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        yield node, ast.unparse(ast.BoolOp(_SWAPS[type(node.op)](), node.values))


def drawn_faults(count: int, seed: int) -> list[Fault]:
    """Return faults of the package's modules, drawn in proportion to their lines."""
    draw = random.Random(seed)
    paths = sorted(path for path in (PROJECT / "cojoin").rglob("*.py") if path.name != "__init__.py")
    sources = [path.read_text("utf-8") for path in paths]
    faults: list[Fault] = []
    while len(faults) < count:
        at = draw.choices(range(len(paths)), [len(source.splitlines()) for source in sources])[0]
        places = list(_places(ast.parse(sources[at])))
        if places:
            faults.append(_planted(paths[at].relative_to(PROJECT).as_posix(), sources[at], *draw.choice(places)))
    return faults


def _planted(path: str, source: str, node: ast.expr | ast.stmt, code: str) -> Fault:
    # The offsets of a node count bytes.
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    last = (node.end_lineno or node.lineno) - 1
    head, tail = lines[node.lineno - 1][: node.col_offset], lines[last][node.end_col_offset :]
    new = code if isinstance(node, ast.stmt) else f"({code})"
    changed = [*lines[: node.lineno - 1], head + new.encode() + tail, *lines[last + 1 :]]
    before = lines[node.lineno - 1].decode().strip()
    return Fault(path, node.lineno, before, code, b"".join(changed).decode())


def first_failure(fault: Fault, seconds: float) -> str | None:
    """Return what noticed a fault; None if no test did.

    The tests of a push come first, and those that ``.ci/run --slow --all`` has alone come last, so that a fault that
    only they notice is seen.

    Raises:
        subprocess.TimeoutExpired: The time was up before all tests had run.
    """
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache"))
        (copy / fault.path).write_text(fault.source, "utf-8")
        for which in ("not slow", "slow and not more", "more"):
            failure = _failure(copy, which, selected_tests([fault.path]), deadline - time.monotonic())
            if failure is not None:
                return f"only with --all: {failure}" if which == "more" else failure
    return None


def _failure(copy: Path, which: str, tests: list[str], seconds: float) -> str | None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", which, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "COJOIN_SEED": str(SEED)}
    with subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as run:
        try:
            text, _ = run.communicate(timeout=max(seconds, 0))
        except subprocess.TimeoutExpired:
            # With its Java processes, which hold the pipe open.
            os.killpg(run.pid, signal.SIGKILL)
            raise
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    # Where no test of the kind is selected, pytest returns 5.
    return failed[0] if failed else (None if run.returncode in {0, 5} else text[-300:])


def main() -> None:
    """Plant faults and print who noticed them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=str(__doc__).splitlines()[0])
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=300, help="the time limit of a fault")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of some faults")
    parser.add_argument("--jobs", type=int, default=2, help="how many faults are tried at a time")
    arguments = parser.parse_args()
    faults = dict(enumerate(drawn_faults(arguments.count, SEED)))
    chosen = arguments.only if arguments.only is not None else list(faults)
    noticed = undecided = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(first_failure, faults[number], arguments.seconds) for number in chosen]
        for number, run in zip(chosen, runs, strict=True):
            fault = faults[number]
            try:
                failure = run.result()
                noticed += failure is not None
                verdict = "SURVIVED" if failure is None else failure[:160]
            except subprocess.TimeoutExpired:
                undecided += 1
                verdict = "UNDECIDED: no test that had time noticed it"
            sys.stdout.write(f"{number} {fault.path}:{fault.line}: {fault.before} -> {fault.after}\n    {verdict}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{noticed} of {len(chosen)} faults were noticed, of {undecided} the time was up (seed {SEED})\n")


if __name__ == "__main__":
    main()

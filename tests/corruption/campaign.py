"""Corruptions by a seed: a kind of file, a kind of damage and a place are drawn, and the reader of that file is asked.

What may come out: it is *refused* with the file's name; or it is *equal*, since what was read is what was written, as
with a file that is not needed now; or it is *silent*, since something else was read; or it is *untold*, since the
reader failed in another way. The last two must not happen.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cojoin.errors import CojoinError
from tests.corruption.payloads import payloads
from tests.corruption.readers import KINDS, World
from tests.corruption.written import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.corruption.readers import Kind

__all__ = ["DAMAGES", "OUTCOMES", "Case", "Result", "run_campaign", "table"]

OUTCOMES = ("refused", "equal", "silent", "untold")


class Case(NamedTuple):
    """One corruption and what came of it."""

    kind: str
    damage: str
    file: str
    outcome: str
    said: str


@dataclass
class Result:
    """What came of a campaign.

    Attributes:
        counts: How often each outcome came, by kind of file and of damage.
        faults: The cases that must not be.
        executed: How many of the payloads were executed.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    faults: list[Case] = field(default_factory=list)
    executed: int = 0


def _flipped(content: bytes, drawn: random.Random, bits: int = 1) -> bytes:
    made = bytearray(content)
    for _ in range(bits):
        at = drawn.randrange(len(made))
        made[at] ^= 1 << drawn.randrange(8)
    return bytes(made)


def _overwritten(content: bytes, drawn: random.Random) -> bytes:
    at, size = drawn.randrange(len(content)), drawn.choice((1, 16, 512))
    return content[:at] + drawn.randbytes(min(size, len(content) - at)) + content[at + size :]


def _zeroed(content: bytes, drawn: random.Random) -> bytes:
    at = drawn.randrange(len(content)) // 64 * 64
    return content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]


def _swapped(content: bytes, drawn: random.Random) -> bytes:
    """Exchange two blocks, as a file system that has lost its order."""
    size = max(1, len(content) // 8)
    one, two = sorted(drawn.sample(range(8), 2))
    blocks = [content[at * size : (at + 1) * size] for at in range(8)]
    blocks[one], blocks[two] = blocks[two], blocks[one]
    return b"".join(blocks) + content[8 * size :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a flipped bit": _flipped,
    "several flipped bits": lambda content, drawn: _flipped(content, drawn, drawn.randrange(2, 30)),
    "overwritten": _overwritten,
    "a block of zeros": _zeroed,
    "blocks exchanged": _swapped,
    "truncated": lambda content, drawn: content[: drawn.randrange(len(content))],
    "appended": lambda content, drawn: content + drawn.choice((b"\0", b"\n{}", content, drawn.randbytes(40))),
}
"""Damages within a file; the others are of files as a whole: exchanged, former and payloads."""

_OTHER, _ANOTHER, _KIND, _FORMER, _PAYLOAD = (
    "exchanged, same checkpoint",
    "exchanged, another checkpoint",
    "exchanged, another kind",
    "a former version",
    "a payload",
)


def run_campaign(folder: Path, count: int, seed: int) -> Result:
    """Damage one file at a time, and ask its reader.

    Args:
        folder: An empty folder.
        count: How many corruptions.
        seed: What is drawn.
    """
    drawn, canary, result = random.Random(seed), folder / "executed", Result()
    ours, another = (write_checkpoint(folder / name, number) for number, name in enumerate(("ours", "another"), 1))
    world = World(ours)
    harmful = payloads(canary)
    expected = {}
    for kind in KINDS:
        expected[kind.name] = kind.read(world)
        world.put_back()
    while sum(result.counts.values()) < count:
        kind = drawn.choice(KINDS)
        name = drawn.choice(kind.files(ours))
        damages = [*DAMAGES] * 2 + [_OTHER, _ANOTHER, _KIND, _FORMER, _PAYLOAD]
        damage = drawn.choice(damages)
        content = _damaged(damage, kind, name, drawn, ours, another, harmful)
        if content is None or content == ours.files[name]:
            continue
        world.damage(name, content)
        outcome, said = _asked(kind, world, name, expected[kind.name])
        world.put_back()
        result.counts[kind.name, damage, outcome] += 1
        if outcome in ("silent", "untold"):
            result.faults.append(Case(kind.name, damage, name, outcome, said))
        if canary.exists():
            result.executed += 1
            canary.unlink()
    for each in (ours, another):
        shutil.rmtree(each.root)
    return result


def _damaged(
    damage: str, kind: Kind, name: str, drawn: random.Random, ours: Any, another: Any, harmful: dict[str, bytes]
) -> bytes | None:
    """Return the content to put in a file's place; None where there is none of the kind."""
    content = ours.files[name]
    if damage in DAMAGES:
        return DAMAGES[damage](content, drawn)
    found: list[bytes] = []
    if damage == _OTHER:
        found = [ours.files[each] for each in kind.files(ours) if each != name]
    elif damage == _ANOTHER:
        # Preferably that of the same name: nothing in the path tells the two apart.
        found = (
            [another.files[name]] if name in another.files else [another.files[each] for each in kind.files(another)]
        )
    elif damage == _KIND:
        other = drawn.choice([each for each in KINDS if each is not kind])
        found = [ours.files[each] for each in other.files(ours)]
    elif damage == _FORMER:
        found = ours.former.get(name, [])
    else:
        found = [*harmful.values()]
    return drawn.choice(found) if found else None


def _asked(kind: Kind, world: World, name: str, expected: Any) -> tuple[str, str]:
    try:
        found = kind.read(world)
    except CojoinError as error:
        is_told = any(each in str(error) for each in kind.told_as or (name,))
        return ("refused" if is_told else "untold"), str(error)
    except Exception as error:  # noqa: BLE001 - whatever else a reader raises
        return "untold", f"{type(error).__name__}: {error}"
    return ("equal", "") if found == expected else ("silent", _difference(expected, found))


def _difference(expected: Any, found: Any) -> str:
    """Return where the texts of two values begin to differ."""
    one, two = repr(expected), repr(found)
    at = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return f"expected ...{one[max(0, at - 60) : at + 60]}..., got ...{two[max(0, at - 60) : at + 60]}..."


def table(result: Result) -> str:
    """Return the outcomes by kind of file and of damage, as a table."""
    lines = [f"{'file':<26}{'damage':<32}" + "".join(f"{each:>9}" for each in OUTCOMES)]
    cells = sorted({(kind, damage) for kind, damage, _ in result.counts})
    for kind, damage in cells:
        counts = "".join(f"{result.counts[kind, damage, each]:>9,}" for each in OUTCOMES)
        lines.append(f"{kind:<26}{damage:<32}{counts}")
    sums = [sum(found for key, found in result.counts.items() if key[2] == each) for each in OUTCOMES]
    lines.append(f"{'all':<58}" + "".join(f"{each:>9,}" for each in sums))
    return "\n".join(lines)

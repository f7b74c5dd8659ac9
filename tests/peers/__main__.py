"""``python -m tests.peers`` prints how the cases compare, by peer and by reason."""

from __future__ import annotations

from collections import Counter

from tests.peers.cases import header, load

VERDICTS = ("holds", "differs", "refused", "absent")


def report() -> str:
    """Return the tables: the cases by peer and verdict, what differs by reason, and what is left out."""
    cases, head = load(), header()
    counts = Counter((each.id.partition("-")[0], each.verdict) for each in cases)
    lines = [f"{'peer':<16}" + "".join(f"{each:>8}" for each in VERDICTS)]
    for peer, version in head.versions.items():
        lines.append(f"{f'{peer} {version}':<16}" + "".join(f"{counts[peer, each]:>8}" for each in VERDICTS))
    every = Counter(each.verdict for each in cases)
    lines.append(f"{'all':<16}" + "".join(f"{every[each]:>8}" for each in VERDICTS))
    reasons = Counter((each.verdict, each.reason) for each in cases if each.reason)
    lines += ["", *(f"{verdict:<8} {count:>6}  {reason}" for (verdict, reason), count in sorted(reasons.items()))]
    lines += ["", "left out"]
    for peer, left_out in head.left_out.items():
        lines += [f"{peer:<8} {count:>6}  {reason}" for reason, count in left_out.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())  # noqa: T201

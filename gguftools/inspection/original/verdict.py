"""What a check found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Word = Literal["ok", "wrong", "not applicable"]
MOST_LINES = 12


@dataclass(frozen=True)
class Verdict:
    """name: of the check. seen: what was found, in one line. lines: what belongs to it. figures: for programs."""

    name: str
    verdict: Word
    seen: str
    lines: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "seen": self.seen,
            "lines": list(self.lines),
            "figures": dict(self.figures),
        }


def judged(name: str, faults: Sequence[str], seen: str, lines: Sequence[str] = (), **figures: Any) -> Verdict:
    """Wrong with the first of the faults as what was seen, all of them behind it; otherwise ok."""
    if not faults:
        return Verdict(name, "ok", seen, tuple(lines)[:MOST_LINES], figures)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Verdict(name, "wrong", faults[0] + more, (*faults[1:], *lines)[:MOST_LINES], figures)


def skipped(name: str, why: str) -> Verdict:
    return Verdict(name, "not applicable", why)

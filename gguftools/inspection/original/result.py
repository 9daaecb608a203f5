"""The result of one check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Word = Literal["ok", "wrong", "not applicable"]
MAX_LINES = 12


@dataclass(frozen=True)
class Check:
    """The result of a check.

    name: of the check. seen: the result in one line. lines: details. figures: for programs.
    """

    name: str
    verdict: Word
    seen: str
    lines: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "seen": self.seen,
            "lines": list(self.lines),
            "figures": dict(self.figures),
        }


def judged(name: str, faults: Sequence[str], seen: str, lines: Sequence[str] = (), **figures: Any) -> Check:
    """Return "wrong" with the first fault as the result and the others as details; "ok" without faults."""
    if not faults:
        return Check(name, "ok", seen, tuple(lines)[:MAX_LINES], figures)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Check(name, "wrong", faults[0] + more, (*faults[1:], *lines)[:MAX_LINES], figures)


def skipped(name: str, why: str) -> Check:
    """Return the result of a check that does not apply."""
    return Check(name, "not applicable", why)

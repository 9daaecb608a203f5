"""A finding of an audit rule, and its severity."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "low", "medium", "high"]
SEVERITIES: tuple[Severity, ...] = ("info", "low", "medium", "high")


@dataclass(frozen=True)
class Finding:
    """One finding of a rule.

    severity: "high" (has no honest use), "medium" (look at it before use), "low" (unusual), "info" (good to know).
    rule: a short name. key: the metadata key or tensor. line: line of a template, from 1; None elsewhere.
    """

    severity: Severity
    rule: str
    key: str
    message: str
    line: int | None = None


def rank(severity: Severity) -> int:
    """Return the severity as a number, to sort by."""
    return SEVERITIES.index(severity)

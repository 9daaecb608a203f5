"""Options of drafting: its length and its verification."""

from dataclasses import dataclass

from quants.errors import OptionError
from quants.spelling import quote

MAX_BY_MODEL = 3
MAX_BY_LOOKUP = 15  # the pass that verifies them is two of eight tokens; one more would run alone (`products.gemv`)


@dataclass(frozen=True)
class Drafting:
    """max_tokens: drafted in a cycle, in depth; None for 3, or 15 with prompt lookup. min_p: a draft ends if the
    likeliest token is less likely than this, before any sampler. children: candidates for each place. typical: typical
    acceptance (Medusa's rule), which changes the output.

    Raises OptionError for invalid values.
    """

    max_tokens: int | None = None
    min_p: float = 0.0
    children: int = 1
    typical: bool = False

    def __post_init__(self) -> None:
        for name, value in (("max_tokens", self.max_tokens), ("children", self.children)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not whole and not (name == "max_tokens" and value is None):
                raise OptionError(f"{name} is {quote(value)}: a whole number, 1 or more, is needed")
        number = isinstance(self.min_p, (int, float)) and not isinstance(self.min_p, bool)
        if not number or not 0 <= self.min_p <= 1:
            raise OptionError(f"min_p is {quote(self.min_p)}: a number from 0 to 1 is needed")

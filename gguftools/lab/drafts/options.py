"""Options of `draft_check`."""

from collections.abc import Sequence
from dataclasses import dataclass

TEMPERATURES = (0.0, 0.5, 0.8, 1.0)
MAX_LENGTH = 16  # tokens of the longest draft
SIMULATED = 256  # tokens of each draft at each temperature


@dataclass(frozen=True)
class DraftCheckOptions:
    """Which drafts `draft_check` tries, and at what costs.

    lookup: also drafts that are found in the text so far; mtp: and those of the file's own layer that predicts a token
    further. temperatures: of both models' distributions, which no other sampler changes; 0 for the likeliest tokens.
    draft_max: the longest draft that is looked at. cost_ratio: what drafting a token costs, one token of the model
    being 1: a number, or "timed" here, or by the "bytes" of weights. verify_cost: what each drafted token adds to the
    pass that checks it, one token's pass being 1; None for what is timed here, or 0 where cost_ratio is not timed.
    simulated: tokens that each draft helps to write at each temperature, 0 for none, by draws of `seed`.
    """

    lookup: bool = False
    mtp: bool = False
    temperatures: Sequence[float] = TEMPERATURES
    draft_max: int = MAX_LENGTH
    cost_ratio: float | str = "timed"
    verify_cost: float | None = None
    simulated: int = SIMULATED
    seed: int = 1

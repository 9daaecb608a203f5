"""Options of `draft_check`."""

from collections.abc import Sequence
from dataclasses import dataclass

TEMPERATURES = (0.0, 0.5, 0.8, 1.0)
MAX_LENGTH = 16  # tokens of the longest draft
SIMULATED = 256  # tokens of each draft at each temperature


@dataclass(frozen=True)
class DraftCheckOptions:
    """Which drafts `draft_check` tries, and at what costs.

    lookup: also try prompt lookup. mtp: also try the file's MTP layer. temperatures: of both models' distributions,
    without other samplers; 0 for the top token. draft_max: maximum draft length. cost_ratio: cost of drafting a token,
    a token of the model being 1: a number, or "timed" here, or by the "bytes" of weights. verify_cost: cost that each
    drafted token adds to the verifying pass, a pass over one token being 1; None for the timed one, or 0 if cost_ratio
    is not timed. simulated: tokens to generate with each draft at each temperature, 0 for none. seed: random seed of
    the simulation.
    """

    lookup: bool = False
    mtp: bool = False
    temperatures: Sequence[float] = TEMPERATURES
    draft_max: int = MAX_LENGTH
    cost_ratio: float | str = "timed"
    verify_cost: float | None = None
    simulated: int = SIMULATED
    seed: int = 1

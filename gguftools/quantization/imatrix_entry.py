"""An entry of an importance matrix: what was summed up of the inputs of one weight."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Entry(NamedTuple):
    """What was measured for one weight.

    sums: float32 (experts, width), of squared inputs; counts: float32 (experts,), inputs there were; inputs: as sums,
    of the inputs themselves; None where the file has none of them, as the legacy form.
    """

    sums: Floats
    counts: Floats
    inputs: Floats | None = None

    def mean(self) -> Floats:
        """float32 (experts, width): the importance of each column; ones for experts that saw no input."""
        seen = self.counts > 0
        mean = np.ones_like(self.sums)
        np.divide(self.sums, self.counts[:, None], out=mean, where=seen[:, None])
        return mean

    @property
    def unseen(self) -> list[int]:
        """Experts without a single input."""
        return [int(i) for i in np.flatnonzero(~(self.counts > 0))]

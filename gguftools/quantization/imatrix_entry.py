"""Define an entry of an importance matrix."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Entry(NamedTuple):
    """Hold the sums over the inputs of one weight.

    sums: float32 (experts, width), of squared inputs. counts: float32 (experts,), number of inputs. inputs: as sums, of
    the inputs themselves; None if the file has none, as the legacy format.
    """

    sums: Floats
    counts: Floats
    inputs: Floats | None = None

    def mean(self) -> Floats:
        """Return the importance of each column, float32 (experts, width); ones for experts that saw no input."""
        seen = self.counts > 0
        mean = np.ones_like(self.sums)
        np.divide(self.sums, self.counts[:, None], out=mean, where=seen[:, None])
        return mean

    @property
    def unseen(self) -> list[int]:
        """Return the experts without inputs."""
        return [int(i) for i in np.flatnonzero(~(self.counts > 0))]

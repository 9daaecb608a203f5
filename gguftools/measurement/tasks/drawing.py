"""Which tasks are drawn for a seed: the same that llama-perplexity draws for its own, which is 1.

Both ways take numbers of the Mersenne twister MT19937, seeded as in C++.
"""

from collections.abc import Iterator

import numpy as np

from quants.arguments import as_count
from quants.errors import OptionError

SEED = 1
BLOCK = 256  # numbers made at a time


def raw_numbers(seed: int) -> Iterator[int]:
    """What std::mt19937 of that seed gives, 0 … 2^32 - 1, without end. Raises OptionError for no seed."""
    if not 0 <= as_count(seed, "seed") < 1 << 32:
        raise OptionError(f"seed is {seed}; 0 to {(1 << 32) - 1} is expected")
    twister = np.random.RandomState(seed)  # which is seeded as C++ does, and whose bytes are the numbers as they are
    while True:
        yield from np.frombuffer(twister.bytes(4 * BLOCK), "<u4").tolist()


def shuffled(count: int, wanted: int, seed: int = SEED) -> list[int]:
    """HellaSwag's way: `wanted` of `count` tasks, in random order even if these are all of them."""
    numbers, left = raw_numbers(seed), list(range(count))
    return [left.pop(_below(numbers, len(left))) for _ in range(min(wanted, count))]


def _below(numbers: Iterator[int], limit: int) -> int:
    """libstdc++'s uniform_int_distribution, after Lemire (2019): what is left of a product below 2^32 is rejected where
    it would make some results likelier.
    """
    threshold = (1 << 32) % limit
    while (product := next(numbers) * limit) % (1 << 32) < threshold:
        pass
    return product >> 32


def picked(count: int, wanted: int | None, seed: int = SEED) -> list[int]:
    """Return the way of Winogrande and multiple choice: all in their order, or `wanted` of more, each replaced by the
    last.
    """
    numbers, left = raw_numbers(seed), list(range(count))
    if wanted is None or wanted >= count:
        return left
    chosen = []
    for _ in range(wanted):
        share = np.float32(2.0**-32) * np.float32(next(numbers))  # float32 has too few digits for the last numbers
        at = min(int(share * np.float32(len(left))), len(left) - 1)
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen

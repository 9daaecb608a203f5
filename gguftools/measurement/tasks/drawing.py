"""Draw tasks by a seed: the same ones as llama-perplexity with its own seed, which is 1.

Both ways use numbers of the Mersenne twister MT19937, seeded as in C++.
"""

from collections.abc import Iterator

import numpy as np

from quants.arguments import as_count
from quants.errors import OptionError

SEED = 1
BLOCK = 256  # numbers made at a time


def raw_numbers(seed: int) -> Iterator[int]:
    """Yield the numbers of std::mt19937 with that seed, 0 … 2^32 - 1. Raises OptionError for an invalid seed."""
    if not 0 <= as_count(seed, "seed") < 1 << 32:
        raise OptionError(f"seed is {seed}; 0 to {(1 << 32) - 1} is expected")
    twister = np.random.RandomState(seed)  # seeded like C++'s; its bytes are the raw numbers
    while True:
        yield from np.frombuffer(twister.bytes(4 * BLOCK), "<u4").tolist()


def shuffled(count: int, wanted: int, seed: int = SEED) -> list[int]:
    """Return `wanted` of `count` tasks in random order, as HellaSwag draws them, even if these are all."""
    numbers, left = raw_numbers(seed), list(range(count))
    return [left.pop(_below(numbers, len(left))) for _ in range(min(wanted, count))]


def _below(numbers: Iterator[int], limit: int) -> int:
    """Return a number below `limit` as libstdc++'s uniform_int_distribution does, after Lemire (2019): a product whose
    remainder below 2^32 would make some results more likely is rejected.
    """
    threshold = (1 << 32) % limit
    while (product := next(numbers) * limit) % (1 << 32) < threshold:
        pass
    return product >> 32


def picked(count: int, wanted: int | None, seed: int = SEED) -> list[int]:
    """Return all tasks in order, or `wanted` of more, each replaced by the last, as Winogrande and multiple
    choice do.
    """
    numbers, left = raw_numbers(seed), list(range(count))
    if wanted is None or wanted >= count:
        return left
    chosen = []
    for _ in range(wanted):
        share = np.float32(2.0**-32) * np.float32(next(numbers))  # float32 rounds the largest numbers up
        at = min(int(share * np.float32(len(left))), len(left) - 1)
        chosen.append(left[at])
        left[at] = left[-1]
        left.pop()
    return chosen

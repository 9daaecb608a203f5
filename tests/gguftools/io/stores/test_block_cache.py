"""Blocks follow tensors, are fetched once, and their number is bounded."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gguftools.io.stores.block_cache import AHEAD, BLOCK, OWN_BLOCKS, BlockCache, cut
from quants.errors import FileError

MB = 1 << 20


class Source:
    """A file whose byte i is i % 251, and who asked for what."""

    def __init__(self, size: int) -> None:
        self.content = np.resize(np.arange(251, dtype=np.uint8), size)
        self.fetched: list[tuple[int, int]] = []
        self.lock = threading.Lock()

    def fetch(self, file: str, begin: int, end: int) -> np.ndarray:
        with self.lock:
            self.fetched.append((begin, end))
        return self.content[begin:end]


@pytest.mark.parametrize(
    ("starts", "edges"),
    [
        ([8, 100, 200], [8, 200]),
        ([8, 8 + BLOCK], [8, 8 + BLOCK]),
        ([8, 8 + 2 * BLOCK + 3], [8, 8 + BLOCK, 8 + 2 * BLOCK, 8 + 2 * BLOCK + 3]),
        ([0, 10, 10 + OWN_BLOCKS, 20 + OWN_BLOCKS, 30 + OWN_BLOCKS], [0, 10, 10 + OWN_BLOCKS, 30 + OWN_BLOCKS]),
        ([n * (OWN_BLOCKS - 1) for n in range(12)], [0, 8 * (OWN_BLOCKS - 1), 11 * (OWN_BLOCKS - 1)]),
        ([64], [64]),
    ],
)
def test_cuts(starts, edges):
    assert cut(starts) == edges


def test_any_range_is_what_the_file_has():
    source = Source(40 * MB)
    starts = [100, 3 * MB, 3 * MB + 50, 30 * MB, 30 * MB + 7, 40 * MB]
    read = BlockCache(source.fetch, kept=3).reader("file", starts)
    rng = np.random.default_rng(0)
    ranges = np.sort(rng.integers(100, 40 * MB, (40, 2)), axis=1).tolist()
    with ThreadPoolExecutor(8) as pool:
        for (begin, end), found in zip(ranges, pool.map(lambda r: read(*r), ranges), strict=True):
            assert np.array_equal(found, source.content[begin:end])
    assert read(500, 500).size == 0


def test_threads_share_what_is_fetched():
    source = Source(20 * MB)
    read = BlockCache(source.fetch).reader("file", [0, 20 * MB])
    begins = range(0, 20 * MB, MB // 2)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda begin: read(begin, begin + MB // 2), begins))
    assert sorted(source.fetched) == [(0, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 20 * MB)]


def test_no_other_large_tensor_is_fetched_ahead():
    source = Source(100 * MB)
    cache = BlockCache(source.fetch)
    cache.reader("file", [0, 2 * MB, 4 * MB, 100 * MB])(0, 10)
    assert source.fetched == [(0, 2 * MB)]
    cache.reader("other", [0, 100 * MB])(0, 10)
    cache._pool.shutdown(wait=True)
    assert len(source.fetched) == 1 + 1 + AHEAD


def test_what_is_kept_is_bounded():
    source = Source(64 * MB)
    cache = BlockCache(source.fetch, kept=AHEAD + 1)
    read = cache.reader("file", [0, 64 * MB])
    for begin in range(0, 64 * MB, MB):
        assert np.array_equal(read(begin, begin + MB), source.content[begin : begin + MB])
        assert len(cache._blocks) <= AHEAD + 1
    assert len(source.fetched) == 8


def test_a_failure_is_not_waited_for_again():
    calls = []

    def fetch(file, begin, end):
        calls.append(begin)
        raise FileError("gone")

    read = BlockCache(fetch).reader("file", [0, 4 * BLOCK])
    for _ in range(3):
        with pytest.raises(FileError, match="gone"):
            read(3 * BLOCK, 3 * BLOCK + 5)
        with pytest.raises(FileError, match="gone"):
            read(0, 5)
    assert calls == [3 * BLOCK]


def test_a_file_that_claims_more_than_there_is_memory_for():
    size = 10**15 + 7
    edges = cut([8, 100, 100 + OWN_BLOCKS, size])
    assert len(edges) == 4 + (size - 100 - OWN_BLOCKS) // BLOCK
    assert edges[-1] == size
    assert edges[-2] == 100 + OWN_BLOCKS + (size - 100 - OWN_BLOCKS) // BLOCK * BLOCK
    with pytest.raises(IndexError):
        edges[len(edges)]
    asked = []

    def fetch(file: str, begin: int, end: int) -> np.ndarray:
        asked.append((begin, end))
        return np.zeros(end - begin, np.uint8)

    assert len(BlockCache(fetch).reader("file", [0, size])(10**14, 10**14 + 5)) == 5
    assert (10**14 // BLOCK * BLOCK, (10**14 // BLOCK + 1) * BLOCK) in asked


@pytest.mark.parametrize("kind", ["BlockCache", "ReadAheadCache", "BackgroundBlockCache"])
def test_fsspecs_caches_do_not_wait_for_a_block_on_its_way(kind: str) -> None:
    """Why there is one of our own: where this fails, fsspec's may serve as well."""
    caching = pytest.importorskip("fsspec.caching")
    both_fetch = threading.Barrier(2)

    def fetch(begin: int, end: int) -> bytes:
        if begin == 0:
            both_fetch.wait(60)  # BrokenBarrierError where only one thread fetches the block
        return bytes(end - begin)

    cache = getattr(caching, kind)(1 << 10, fetch, 1 << 14)
    readers = [threading.Thread(target=cache._fetch, args=(0, 1 << 10)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert not both_fetch.broken

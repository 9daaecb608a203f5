"""Functions inlined into kernels: they are found in every version they are called in, and have no machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.codegen import CPUCodeLibrary
from numpy.typing import NDArray

from quants.kernels.jit import inlined, inlined_once, kernel
from quants.kernels.numba_internals import _index_of_this_version, can_leave_out


@inlined
def add(a: Any, b: Any) -> Any:
    return a + b


@inlined
def first(values: NDArray[Any]) -> Any:
    return add(values[0], 0)


@inlined_once
def thrice(a: int) -> int:
    return 3 * a


@kernel
def combined(values: NDArray[Any], number: int) -> Any:
    return first(values) + thrice(add(number, 1)) + thrice(2)


def test_kernels_find_their_parts_for_each_type() -> None:
    combined._cache = NullCache()  # a kernel from the cache would need no parts
    assert combined(np.array([0.5, 9]), 4) == 0.5 + 15 + 6
    assert combined(np.array([7, 9]), 4) == 7 + 15 + 6
    assert len(thrice.overloads) == 1
    assert len(first.overloads) == 2


def test_parts_are_neither_optimized_nor_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    optimized: list[str] = []
    optimize = CPUCodeLibrary._optimize_final_module
    monkeypatch.setattr(
        CPUCodeLibrary, "_optimize_final_module", lambda library: (optimized.append(library.name), optimize(library))
    )
    part = inlined(lambda a: a + 1)
    whole = kernel(lambda a: part(a) * part(a))
    assert whole(3) == 16
    assert len([name for name in optimized if "<lambda>" in name]) == 1  # the first compilation brings numba's own


def test_where_numba_lacks_what_that_takes_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_leave_out()
    monkeypatch.delattr(CPUCodeLibrary, "_finalize_dynamic_globals")
    assert not can_leave_out()


def test_an_index_of_types_that_are_gone_is_empty() -> None:
    def load() -> dict[object, object]:
        raise AttributeError("Can't get attribute 'Layout' on <module 'quants.kernels.blocks'>")

    assert _index_of_this_version(load) == {}

import platform
import resource

import numpy as np
import pytest

from runtime.kernels import memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's option")
def test_freed_memory_is_not_mapped_again() -> None:
    assert memory.keep_freed()
    ones = [np.ones(2 << 20, np.float32) for _ in range(3)]
    del ones
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        again = [np.ones(2 << 20, np.float32) for _ in range(3)]
        del again
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 6 * 2048  # pages of each round


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_other_libraries(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def refuse(name: object) -> None:
        raise error

    monkeypatch.setattr(memory.ctypes, "CDLL", refuse)
    assert not memory.keep_freed.__wrapped__()

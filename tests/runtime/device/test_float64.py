"""Every family's float32 on a device is as near to float64 as the processor's own float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from .test_families import CLOSE as FAMILY
from .test_families import DESCRIPTIONS, bound, is_plain, model_of, on_torch, states, text_of

pytestmark = pytest.mark.device
CLOSE, AS_NEAR = 2e-6, 4.0  # of the standard deviation, root mean square


@contextmanager
def float64() -> Iterator[None]:
    """Let torch compute in float64: all that comes from the host is widened, and results follow."""
    from runtime.device.context import DeviceContext
    from runtime.device.weights import Weights

    def widened(function: Any) -> Any:
        def wide(*given: Any) -> Any:
            made = function(*given)
            return made.double() if made.is_floating_point() else made

        return wide

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((DeviceContext, "tensor"), (Weights, "matrix"), (Weights, "need_array")):
            patch.setattr(owner, name, widened(getattr(owner, name)))
        yield


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_family_is_as_near_as_the_processor(name: str) -> None:
    processor, ours = model_of(name), on_torch(name)
    if not is_plain(processor):
        return
    ids = text_of(processor)
    with float64():
        truth = states(on_torch(name), ids)
    assert truth.dtype == np.float64
    allowed = away(states(processor, ids), truth)
    if bound(name) > FAMILY:  # by chance the processor may be near
        allowed = max(allowed, away(states(processor, ids, 3), truth), away(states(processor, ids, 4), truth))
    assert away(states(ours, ids), truth) < max(CLOSE, AS_NEAR * allowed)


def away(found: Any, truth: Any) -> float:
    return float(np.sqrt(np.square(found - truth).mean()) / truth.std())

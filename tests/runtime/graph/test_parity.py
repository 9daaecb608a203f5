"""Each recorded model gives the same logits, whether its text is run at once or in pieces by compiled operations."""

from __future__ import annotations

import numpy as np
import pytest

from quants import Tensor, encode, format_named
from runtime.arrays import Floats, Ids
from runtime.model import RunningModel
from tests import absent_keys

from .recorded import LENGTH, in_pieces, models, text_of, written

PIECES = ((1,), (2,), (7,))
CLOSE = 1e-4  # of the logits' standard deviation
# Models whose texts at once are further apart from themselves in float64's place, and why.
APART = {"gemma3n": 5e-4}  # deviations of few gates: what is rounded shows
GROWS = ("phi3-longrope",)  # its text grows past the short factors, where all is computed anew: pieces compared alike


def in_turns(model: RunningModel, ids: Ids) -> Floats:
    """By both executors in turn, which leave caches to one another."""
    cache, found = model.new_cache(), []
    for start, stop in ((0, 6), (6, 8), (8, 11), (11, 12), (12, LENGTH)):
        if start in (0, 8, 12):
            result = model._evaluate(ids[None, start:stop], cache, 0)
            found.append(result if isinstance(result, np.ndarray) else result.float32())
        else:
            found.append(model.forward(ids[start:stop], cache))
    return written(np.concatenate(found))


@pytest.mark.parametrize("name", sorted(absent_keys.descriptions()))
def test_executors_agree(name: str) -> None:
    model, exact = models(name)
    if model._compiled is None:
        block, encodes = model.network.block, model.encoder_decoder or model.encoder or model.codes
        assert encodes or block.hidden_states or not block.causal
        return
    ids, bound = text_of(name, model), APART.get(name, CLOSE)
    whole = written(exact.forward(ids))
    for sizes in PIECES:
        wanted = in_pieces(exact, ids, sizes) if name in GROWS else whole
        assert np.abs(in_pieces(model, ids, sizes) - wanted).max() <= bound * whole.std(), sizes
    if name not in GROWS:
        assert np.abs(in_turns(model, ids) - whole).max() <= bound * whole.std()


def in_blocks(tensor: Tensor) -> Tensor:
    """A matrix in blocks, whose inputs are rounded to integers."""
    routes = any(part in tensor.name for part in ("embd", "gate_inp", "altup", "lora"))
    if routes or len(tensor.shape) not in (2, 3) or tensor.width % 32 or tensor.format.name != "F32":
        return tensor
    raw = encode("Q8_0", tensor.raw().view(np.float32).reshape(-1, tensor.width))
    return Tensor(tensor.name, tensor.shape, format_named("Q8_0"), lambda start, stop: raw[start:stop])


@pytest.mark.parametrize("name", sorted(absent_keys.descriptions()))
def test_inputs_of_quantized_weights_are_rounded_alone(name: str) -> None:
    """A writer that forgets integers of a value lets products read those of another one."""
    if name in GROWS:
        return
    model, exact = models(name, in_blocks)
    if model._compiled is not None:
        ids = text_of(name, model)[:9]
        whole = written(exact.forward(ids))
        assert np.abs(in_pieces(model, ids, [2, 3]) - whole).max() <= 1e-2 * whole.std()

"""Two stacks of layers that alternate over the same tokens (HRM-Text): a low one several times, then a high one,
repeatedly. Each keeps a state; it starts from the sum of both, and its normed output becomes its state.

Source: transformers `models/hrm_text/modeling_hrm_text.py`. Between layers the idle stack's state comes after the
hidden states of each token: float32 (tokens, 2 * width).
"""

import numpy as np

from archs.families.hrm import is_low

from .arrays import Floats
from .layer import ForwardContext, Layer

BEGINNING = "hrm.z_l_init"  # the low stack's first state; models of one stack have no such tensor


def begun(forward: ForwardContext, x: Floats) -> Floats:
    """Return the first low pass's input for embedded tokens x (tokens, width), which are the high stack's first state;
    x itself in other models.
    """
    beginning = forward.global_tensors.array(BEGINNING)
    return x if beginning is None else np.concatenate((x + beginning, x), axis=1)


def passed(forward: ForwardContext, layer: Layer, out: Floats, resting: Floats) -> Floats:
    """Return the next layer's input from this one's output, (tokens, width), and the idle stack's state."""
    stack, low_passes = map(int, map(forward.keys.need, ("hrm.layers_per_stack", "hrm.l_cycles")))
    if layer.index + 1 == len(forward.network.layers):
        return out  # whose norm comes before the head
    if (layer.index + 1) % stack == 0:
        state = forward.norm(forward.global_tensors, "output_norm", out)
        number, out = layer.index // stack, state + resting
        turns = is_low(number, low_passes) != is_low(number + 1, low_passes)
        resting = state if turns else resting
    return np.concatenate((out, resting), axis=1)

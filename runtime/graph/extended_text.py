"""The executor for texts: operations on hidden states with more rows of the model's width for each token.

HRM-Text: two stacks of layers alternate over the same tokens, a low one several times, then a high one, repeatedly. A
stack starts from the sum of both states, and its normed output becomes its state. The idle stack's state comes after
the hidden states: float32 (tokens, 2 * width). Source: transformers `models/hrm_text/modeling_hrm_text.py`.

Kimi K3: each part of a layer reads a weighted mean of the hidden states and of residuals stored by earlier layers,
which come after them: float32 (tokens, (1 + residuals) * width). Source: llama.cpp's graph of Kimi K3.
"""

import numpy as np

from archs.families.hrm import is_low

from .. import ops
from ..arrays import Floats
from ..layer import ForwardContext
from . import operations as op
from .read import Read, computes

FIRST_STATE = "hrm.z_l_init"  # the low stack's; models of one stack have no such tensor


@computes(op.BeginHrmCycles)
def _begin_cycles(forward: ForwardContext, o: op.BeginHrmCycles, read: Read) -> Floats:
    x: Floats = read(o.x)  # the high stack's first state
    return np.concatenate((x + forward.global_tensors.need_array(FIRST_STATE), x), axis=1)


@computes(op.ReadState)
def _read_state(forward: ForwardContext, o: op.ReadState, read: Read) -> Floats:
    state: Floats = read(o.x)[:, : o.size].copy()
    return state


@computes(op.NextState)
def _next_state(forward: ForwardContext, o: op.NextState, read: Read) -> Floats:
    assert o.given is not None
    out, idle, layer = read(o.given), read(o.x)[:, forward.hparams.width :], o.layer
    stack, low_passes = map(int, map(forward.keys.need, ("hrm.layers_per_stack", "hrm.l_cycles")))
    if layer.index + 1 == len(forward.network.layers):
        return np.asarray(out)  # its norm comes before the head
    if (layer.index + 1) % stack == 0:
        state = forward.norm(forward.global_tensors, "output_norm", out)
        number, out = layer.index // stack, state + idle
        idle = state if is_low(number, low_passes) != is_low(number + 1, low_passes) else idle
    return np.concatenate((out, idle), axis=1)


@computes(op.ReadResiduals)
def _read_residuals(forward: ForwardContext, o: op.ReadResiduals, read: Read) -> Floats:
    x: Floats = read(o.x)
    if x.shape[1] == forward.hparams.width:
        return x
    each = x.reshape(len(x), -1, forward.hparams.width)
    scores = ops.rms_norm(each, None, forward.hparams.eps, forward.threads) @ o.layer.need_array(f"{o.role}.weight")
    return np.asarray((ops.softmax(scores)[:, None] @ each)[:, 0], np.float32)


@computes(op.LeaveResidual)
def _leave_residual(forward: ForwardContext, o: op.LeaveResidual, read: Read) -> Floats:
    x: Floats = read(o.x)
    if o.layer.index % int(forward.keys.need("attn_res.block_size")):
        return x
    return np.concatenate((np.zeros((len(x), forward.hparams.width), np.float32), x), axis=1)


@computes(op.AddHidden)
def _add_hidden(forward: ForwardContext, o: op.AddHidden, read: Read) -> Floats:
    assert o.given is not None
    x, width = read(o.x), forward.hparams.width
    return np.concatenate((x[:, :width] + read(o.given), x[:, width:]), axis=1)

"""The additions of DFlash 2 to DFlash: convolutions around attention and feed-forward net, and a selector of
candidates.

A convolution reads a token and those before it in the block, nothing of the text. Its weights are a fixed part by
channel, and a part that is computed from the token itself and shared by a group of channels; the input and the output
of attention (or the net) are convolved with separate weights, computed together from the input.

The selector keeps the likeliest few tokens of each place, and adds to the logit of each its affinity to the token
before: a product of vectors of both, weighted by the layers' output for the place. Facts: llama.cpp's graph of
`dflash`, and its `speculative.cpp`.
"""

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..arrays import Floats
from ..layer import DAMAGED, ForwardContext, Layer
from ..products.matmul import gather

BEFORE, AFTER = 0, 1  # which side of a part is convolved: its input, or its output


class Convolution:
    """The convolution of one part of a layer, over a block of tokens."""

    def __init__(self, forward: ForwardContext, layer: Layer, part: str, x: Floats) -> None:
        """Compute the weights. part: "attn" or "ffn". x: its input, float32 (tokens, width)."""
        fixed = layer.need_array(f"{part}_conv_base")  # (before and after, kernel, width)
        made = forward.project(layer, f"{part}_conv_proj", x)
        grouped = fixed.reshape(*fixed.shape[:2], made.shape[1] // (fixed.shape[0] * fixed.shape[1]), -1)
        self._weights = (made.reshape(len(x), *grouped.shape[:3], 1) + grouped).reshape(len(x), *fixed.shape)

    def over(self, x: Floats, side: int) -> Floats:
        """Return x (tokens, width) convolved; side: BEFORE or AFTER."""
        weights = self._weights[:, side]
        out: Floats = weights[:, 0] * x
        for back in range(1, min(weights.shape[1], len(x))):
            out[back:] += weights[back:, back] * x[:-back]
        return out


class Selector:
    """Keeps the likeliest few tokens of each place, scored by the token before."""

    def __init__(self, outside: Layer, max_tokens: int) -> None:
        """Set up the selector. outside: the tensors outside of layers. max_tokens: how many tokens it keeps."""
        self.hidden: Tensor = outside.need("selector_hidden.weight")
        self.before = outside.need("selector_predecessor.weight")
        self.after = outside.need("selector_successor.weight")
        self.max_tokens = max_tokens

    def scores(self, logits: Floats, gate: Floats, before: int) -> Floats:
        """Return scores of the tokens of one place, (vocabulary,): -inf for those not selected.

        logits: float32 (vocabulary,). gate: output of `hidden` for the place, (rank,). before: the token before it.
        Raises ModelError for scores that are no numbers.
        """
        count = min(self.max_tokens, len(logits))
        ids = np.argpartition(-logits, count - 1)[:count]
        known = gather(self.before, np.array([before if before < self.before.rows else 0]))[0] * gate
        scores = logits[ids] + gather(self.after, ids) @ known
        if np.isnan(scores).any() or scores.max() == np.inf:
            raise ModelError("the draft's selector does not give finite scores: its weights are damaged", DAMAGED)
        out = np.full_like(logits, -np.inf)
        out[ids] = scores
        return out

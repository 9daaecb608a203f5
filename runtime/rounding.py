"""Which products may be rounded to 16-bit integers where that is faster: what a weight's product is for decides it.

Rounding moves a product by 5e-5 of its size (see `kernels.int16`). A sum of many such products hardly notices. What
hangs on a single number does: a router's or an indexer's scores, of which the best are chosen, and the gates and decays
of a recurrence, whose state carries an error through the whole text. Nor do the products help that are exact
themselves: their inputs decide, too. So all that stands before the last choice and the last recurrence is exact, and
after it what is not named here.
"""

import fnmatch
from collections.abc import Iterable, Mapping

# Names of weights, without ".weight", whose products are summands of the residual stream, or the scores and values of
# attention. Weights that are not among them are exact, as is what a family brings that nobody has thought of.
ROUNDED = frozenset({
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "attn_output",
    "attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_kv_b", "attn_k_b", "attn_v_b",
    "attn_o", "cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_o",
    "ffn_gate", "ffn_up", "ffn_down", "shortconv.in_proj", "shortconv.out_proj",
})  # fmt: skip

# Globs of tensors by which a layer chooses (experts, keys, neurons) or carries a state from token to token.
CHOOSING = ("ffn_gate_inp.weight", "indexer.*", "indexer_*")
CHOOSING_NEURONS = ("fc1.weight", "fc2.weight")  # where a predictor is used
CARRYING = ("ssm_*", "time_mix_*")


def exact_layers(layers: Iterable[tuple[str, Mapping[str, object]]], predicted: bool = False) -> frozenset[str]:
    """Prefixes of the layers up to the last one that chooses or carries a state.

    layers: prefix and tensors of each in the order in which they run. predicted: a predictor chooses neurons.
    """
    patterns = (*CHOOSING, *CARRYING, *(CHOOSING_NEURONS if predicted else ()))
    so_far: list[str] = []
    exact: list[str] = []
    for prefix, names in layers:
        so_far.append(prefix)
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns):
            exact = so_far.copy()
    return frozenset(exact)

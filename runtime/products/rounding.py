"""Which products may be rounded to 16-bit integers where that is faster, decided by the weight's role."""

import fnmatch
import math
from collections.abc import Iterable, Sequence

# Names of weights, without ".weight", whose products are summands of the residual stream, or the scores and values of
# attention. What a family brings that nobody has named is exact.
ROUNDED = frozenset(
    {
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_qkv",
        "attn_gate",
        "attn_output",
        "attn_q_a",
        "attn_q_b",
        "attn_kv_a_mqa",
        "attn_kv_b",
        "attn_k_b",
        "attn_v_b",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "shortconv.in_proj",
        "shortconv.out_proj",
    }
)

# Globs of tensors by which a layer chooses (experts, keys, neurons) or carries a state from token to token.
CHOOSING = ("ffn_gate_inp.weight", "indexer.*", "indexer_*")
CHOOSING_NEURONS = ("fc1.weight", "fc2.weight")  # where a predictor is used
CARRYING = ("ssm_*", "time_mix_*")
SHARP = 1.5  # from this times the usual factor of scores on, attention chooses


def is_sensitive(names: Iterable[str], attention_scale: float, key_width: int, predicted: bool) -> bool:
    """Return whether a layer makes a discrete choice or carries a state.

    names: of its tensors. attention_scale: the factor of its scores, key_width: of a head. predicted: a predictor
    selects neurons.
    """
    patterns = (*CHOOSING, *CARRYING, *(CHOOSING_NEURONS if predicted else ()))
    sharp = attention_scale * math.sqrt(key_width) > SHARP
    return sharp or any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def up_to_last(sensitive: Sequence[bool]) -> int:
    """Return the number of layers up to the last sensitive one."""
    return max((i + 1 for i, each in enumerate(sensitive) if each), default=0)

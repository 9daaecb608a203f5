"""Chameleon: Llama's layers with layer norms of each head's q and k; the larger model's norms come after its parts.

Images are tokens of the vocabulary, which text models do not generate. The image tokenizer (VQGAN) is left out. Weights
of norms differ by head if the model was trained on several devices; llama.cpp uses the first head's for all. Reference:
transformers `models/chameleon/`.
"""

import numpy as np

from archs.families.llama import LLAMA
from archs.spec import Config, Index, TensorMap
from archs.transforms import Invertible, take, transposed
from quants import Tensor


def pairs(width: int) -> Index:
    """Return the positions of a head's values that rotate together, one pair after the other."""
    index: Index = np.arange(width).reshape(2, -1).T.reshape(-1)
    return index


def adjacent(tensor: Tensor, config: Config) -> Tensor:
    return transposed(take(transposed(tensor), pairs(tensor.shape[1])))


def apart(tensor: Tensor, config: Config) -> Tensor:
    return transposed(take(transposed(tensor), np.argsort(pairs(tensor.shape[1]))))


OF_HEADS = Invertible(adjacent, apart)

CHAMELEON = LLAMA.derive(
    name="chameleon",
    hf_classes=("ChameleonForConditionalGeneration", "ChameleonForCausalLM"),
    vocab=("bpe",),
    metadata={
        "swin_norm": lambda config: bool(config.get("swin_norm")),
        "vocab_size": None,
        "rope.dimension_count": None,
    },
    defaults={
        "model_type": "chameleon",
        "head_dim": None,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "vocab_size": 65_536,
    },
    tensors={
        ".self_attn.q_norm": TensorMap("attn_q_norm", OF_HEADS),
        ".self_attn.k_norm": TensorMap("attn_k_norm", OF_HEADS),
    },
    config_from_gguf=lambda keys, tensors: {"swin_norm": keys.get("swin_norm")},
    token_ids="vocabulary_map",
    block={"head_norm_epsilon": 1e-5, "suppressed_ids": (4, 8196)},
)

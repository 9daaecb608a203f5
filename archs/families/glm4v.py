"""GLM 4.1V and 4.5V (text): GLM 4's and GLM 4.5's layers; of pictures' positions, parts rotate pairs apart.

Reference: transformers `models/glm4v/modeling_glm4v.py`, `models/glm4v_moe/`. ggml rotates halves wherever there are
such parts, so the rows of GLM 4's q and k, of which adjacent ones rotate in HF, are brought to that order.
"""

import numpy as np
from numpy.typing import NDArray

from archs.config import head_dim
from archs.families.glm4 import GLM4
from archs.families.glm4moe import GLM4_MOE
from archs.families.qwen2vl import sections
from archs.rope import rotated_width
from archs.spec import Config, TensorMap
from archs.transforms import reordered


def order(rows: int, config: Config) -> NDArray[np.intp]:
    """Of each head the first of each pair that rotates, then the second ones, then what does not rotate."""
    width, rotated = head_dim(config), rotated_width(config)
    one = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, width)])
    found: NDArray[np.intp] = (np.arange(0, rows, width)[:, None] + one).reshape(-1)
    return found


halves = reordered(order)

GLM4V = GLM4.derive(
    hf_classes=("Glm4vForConditionalGeneration",),
    metadata={"rope.dimension_sections": sections},
    defaults={"head_dim": None, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0},
    tensors={
        "layers.{i}.self_attn.q_proj": TensorMap("blk.{i}.attn_q", halves),
        "layers.{i}.self_attn.k_proj": TensorMap("blk.{i}.attn_k", halves),
    },
)

GLM4V_MOE = GLM4_MOE.derive(
    hf_classes=("Glm4vMoeForConditionalGeneration",),
    metadata={
        "rope.dimension_sections": sections,
    },
    defaults={"max_position_embeddings": 65_536},
)

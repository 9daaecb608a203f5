"""Kimi-VL: MoonViT, with fused q/k/v and positions that are stretched to the picture, squares of patches put side by
side, a net of two matrices.
"""

from quants import Tensor

from ..spec import Config, Target, TensorMap
from ..tower import VISION, Tower, always, at, maybe
from ..transforms import part, reshape

LAYER: dict[str, Target] = {
    "norm0": "ln1", "norm1": "ln2", "wo": "attn_out", "mlp.fc0": "ffn_up", "mlp.fc1": "ffn_down",
    "wqkv": tuple(TensorMap(f"attn_{name}", part(i, 3)) for i, name in enumerate("qkv")),
}  # fmt: skip


def _one_after_the_other(tensor: Tensor, config: Config) -> Tensor:
    """Positions of a grid, (rows, columns, width), as a matrix."""
    return reshape(tensor, (tensor.rows, tensor.width))


KIMI_VL = Tower(
    hf_classes=("KimiVLForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": always(64 * 14),  # of any size; programs want one
        "projector_type": always("kimivl"),
        "use_gelu": always(True),
        "vision.projector.scale_factor": always(2),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-5),
    },
    tensors={
        **at("vision_tower.encoder.blocks.{i}.", "v.blk.{i}.", LAYER),
        "vision_tower.patch_embed.proj": "v.patch_embd", "vision_tower.encoder.final_layernorm": "v.post_ln",
        "vision_tower.patch_embed.pos_emb.weight": TensorMap("v.position_embd.weight", _one_after_the_other),
        "multi_modal_projector.pre_norm": "mm.input_norm", "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
    },
)  # fmt: skip

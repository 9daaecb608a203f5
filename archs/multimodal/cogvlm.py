"""CogVLM: EVA 2's ViT with norms after attention and nets, and a gated net. The text model's file has separate layers
for images.
"""

from ..encoder import VISION, Encoder, always, at, maybe
from ..spec import Target

LAYER: dict[str, Target] = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}

COGVLM = Encoder(
    hf_classes=("CogVLMForCausalLM",),
    metadata={
        **VISION,
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "projector_type": always("cogvlm"),
    },
    tensors=at(
        "vision.",
        "",
        {
            **at("transformer.layers.{i}.", "v.blk.{i}.", LAYER),
            "patch_embedding.proj": "v.patch_embd",
            "patch_embedding.cls_embedding": "v.class_embd",
            "patch_embedding.position_embedding": "v.position_embd",
            "boi": "v.boi",
            "eoi": "v.eoi",
            **at(
                "linear_proj.",
                "mm.",
                {
                    "linear_proj": "model.fc",
                    "norm1": "post_fc_norm",
                    "gate_proj": "gate",
                    "dense_h_to_4h": "up",
                    "dense_4h_to_h": "down",
                },
            ),
        },
    ),
)

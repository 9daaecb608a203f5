"""Arctic: Llama's layers, with experts next to each, which read the layer's input.

Their router's weights are rescaled to sum to one. The nets are as wide as the model. Reference: the published model's
own code; llama.cpp's graph.
"""

from archs.config import other_than
from archs.families.llama import MIXTRAL
from archs.tensor_maps import gated_net

ARCTIC = MIXTRAL.derive(
    name="arctic",
    hf_classes=("ArcticForCausalLM",),
    metadata={"attention.sliding_window": None},
    defaults={"model_type": "arctic", "num_key_value_heads": lambda config: config["num_attention_heads"]},
    refused={"parallel_attn_mlp_res": False, "use_residual": False, "moe_layer_frequency": other_than(1)},
    tensors={
        **{name: None for name in MIXTRAL.tensors if ".mlp." in name},
        ".post_attention_layernorm": "ffn_norm_exps",
        ".residual_layernorm": "ffn_norm",
        **gated_net("residual_mlp", matrices=("w1", "w3", "w2")),
    },
    block={"router_reads": "layer_input", "net": "experts+dense"},
)

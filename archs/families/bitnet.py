"""BitNet b1.58: weights of -1, 0 and 1, norms before both output projections.

As first published (`BitnetForCausalLM`) weights are rounded when they are used, and so they are here; later ones
declare it in their `quantization_config`, or are packed. The originals round activations to 8 bits, which is left out
here, as in llama.cpp. llama.cpp assumes SiLU gates and a tied head: files of models with another activation, or a head
of their own, run correctly only in this runtime. Reference: transformers `models/bitnet/`, `integrations/bitnet.py`;
llama.cpp's converter and graph.
"""

from archs.config import head_dim
from archs.families.llama import HALVES
from archs.spec import TensorMap, in_layers
from archs.tensor_maps import NotExportable
from archs.transforms import ternary

KEYS = {"rope.scaling.type": lambda config: "linear", "rope.scaling.factor": lambda config: 1.0}

BITNET = HALVES.derive(
    name="bitnet",
    hf_classes=("BitNetForCausalLM", "BitNetModel"),
    vocab=("sentencepiece", "bpe"),
    defaults={
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 30,
        "num_attention_heads": 20,
        "num_key_value_heads": 5,
        "hidden_act": "relu2",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "vocab_size": 128_256,
    },
    tensors={".self_attn.attn_sub_norm": "attn_sub_norm", ".mlp.ffn_sub_norm": "ffn_sub_norm"},
)

MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
ROUNDED = {name: TensorMap(str(BITNET.tensors[name]), ternary) for name in in_layers(dict.fromkeys(MATRICES))}

BITNET_FIRST = BITNET.derive(
    hf_classes=("BitnetForCausalLM",),
    metadata=KEYS,
    config_from_gguf=NotExportable("the file has its weights as they were rounded; it becomes BitNetForCausalLM"),
    defaults={**HALVES.defaults, "head_dim": head_dim, "hidden_act": None, "vocab_size": 32_002},
    tensors={
        **ROUNDED,
        ".self_attn.attn_sub_norm": None,
        ".mlp.ffn_sub_norm": None,
        ".self_attn.inner_attn_ln": "attn_sub_norm",
        ".mlp.ffn_layernorm": "ffn_sub_norm",
    },
)

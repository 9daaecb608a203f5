"""Small checkpoints of drafts, and the targets that they belong to.

Configs follow published ones: SpecForge's (`eagle3`; `shared` has neither embedding nor output), speculators'
(`speculator`), and NVIDIA's 3.1 (`normed`).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import gguftools
from gguftools.conversion.options import ConvertOptions

from .checkpoints import DATA, values, write_tensors
from .checkpoints import build as build_target

DRAFTS = DATA / "drafts"
LAYER = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "vocab_size": 288,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle3": {"architectures": ["LlamaForCausalLMEagle3"], **LAYER, "draft_vocab_size": 96},
    "speculator": {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 96,
        "norm_before_residual": True,
        "target_hidden_size": 64,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "transformer_layer_config": {**LAYER, "rope_scaling": SCALED},
    },
    "shared": {
        "architectures": ["LlamaForCausalLMEagle3"],
        **LAYER,
        "hidden_size": 64,
        "head_dim": 16,
        "draft_vocab_size": 288,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [0, 3, 4],
    },
    "normed": {"architectures": ["LlamaForCausalLM"], **LAYER, "draft_vocab_size": 288, "norm_before_fc": True},
}

BLOCK = {
    **LAYER,
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 16,
}
BLOCKS: dict[str, dict[str, Any]] = {  # drafts that write several tokens at once
    "dflash": {
        "architectures": ["DFlashDraftModel"],
        **BLOCK,
        "block_size": 8,
        "layer_types": ["full_attention"] * 2,
        "dflash_config": {"mask_token_id": 280, "target_layer_ids": [0, 2]},
        "rope_scaling": None,
    },
    "dflash2": {
        "architectures": ["DFlash2DraftModel"],
        **BLOCK,
        "is_causal": False,
        "has_embed_tokens": False,
        "rope_is_neox_style": False,
        "sliding_window": 6,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention"],
        "dflash_config": {
            "mask_token_id": 281,
            "target_layer_ids": [0, 1, 3],
            "block_size": 4,
            "conv_kernel_size": 3,
            "conv_group_size": 4,
            "selector_rank": 8,
            "selector_top_k": 5,
            "attention_value_scale": 0.5,
            "output_multiplier": 0.25,
            "final_logit_softcapping": 30.0,
            "input_embedding_scale": 2.0,
        },
    },
    "dspark": {
        "architectures": ["Qwen3DSparkModel"],
        **BLOCK,
        "block_size": 6,
        "mask_token_id": 282,
        "target_layer_ids": [1, 2],
        "markov_head_type": "vanilla",
    },
    "dspark-speculator": {
        "architectures": ["DSparkSpeculator"],
        "draft_vocab_size": 96,
        "aux_hidden_state_layer_ids": [1, 2, 4],
        "mask_token_id": 282,
        "block_size": 5,
        "transformer_layer_config": BLOCK,
    },
    "muse-assistant": {
        "architectures": ["MuseGlimmerAssistantModel"],
        **BLOCK,
        "model_type": "muse_glimmer_draft",
        "block_size": 4,
        "mask_token_id": 279,
        "target_layer_ids": [0, 3],
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
ASSISTANT = {
    "model_type": "gemma4_text",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "vocab_size": 320,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 2,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
FULL = ASSISTANT["rope_parameters"]["full_attention"]
CONFIGS |= BLOCKS
CONFIGS["gemma4-dspark"] = {
    "architectures": ["Gemma4DSparkModel"],
    **{key: value for key, value in ASSISTANT.items() if "vocab" not in key},
    "model_type": "gemma4_dspark",
    "hidden_size": 64,
    "vocab_size": 320,
    "layer_types": ["full_attention"] * 2,
    "rope_parameters": {"full_attention": FULL},
    "target_layer_ids": [0, 2],
    "mask_token_id": 5,
    "block_size": 4,
    "num_kv_shared_layers": 0,
}
CONFIGS["deepseek4-dspark"] = {
    **json.loads((DATA / "families" / "deepseek-v4" / "config.json").read_text(encoding="utf-8")),
    "architectures": ["DeepseekV4DSparkModel"],
    "dspark_block_size": 4,
    "dspark_target_layer_ids": [0, 1, 2],
    "dspark_noise_token_id": 282,
}
CONFIGS["gemma4-assistant"] = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": 64,
    "text_config": ASSISTANT,
    "tie_word_embeddings": True,
    "use_ordered_embeddings": False,
}
TARGETS = {  # of others qwen3-next
    "gemma4-assistant": "gemma4-moe",
    "gemma4-dspark": "gemma4-moe",
    "deepseek4-dspark": "deepseek-v4",
}
OWN_WORDS = ("gemma4-assistant",)


def assistant_arrays(name: str) -> dict[str, Any]:
    """The arrays of an assistant of Gemma 4's."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (320, 32),
        "model.norm.weight": (32,),
        "pre_projection.weight": (32, 128),
        "post_projection.weight": (64, 32),
    }
    for i, width in enumerate((16, 32)):
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {
            f"model.layers.{i}.{key}": shape
            for key, shape in {
                "self_attn.q_proj.weight": (4 * width, 32),
                "self_attn.o_proj.weight": (32, 4 * width),
                "self_attn.q_norm.weight": (width,),
                "mlp.gate_proj.weight": (48, 32),
                "mlp.up_proj.weight": (48, 32),
                "mlp.down_proj.weight": (32, 48),
                "layer_scalar": (1,),
                **{f"{norm}_layernorm.weight": (32,) for norm in norms},
            }.items()
        }
    ones = ("norm", "scalar")
    return {
        key: values(name, key, list(shape), float(any(each in key for each in ones)), 0.2).astype(np.float16)
        for key, shape in shapes.items()
    }


def block_arrays(name: str) -> dict[str, Any]:
    """The arrays of a draft that writes several tokens at once."""
    config = CONFIGS[name]
    read = config.get("dflash_config", config).get("target_layer_ids") or config["aux_hidden_state_layer_ids"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (64, 64 * len(read)),
        "hidden_norm.weight": (64,),
        "norm.weight": (64,),
    }
    for i in range(2):
        layer = {
            "self_attn.q_proj.weight": (64, 64),
            "self_attn.k_proj.weight": (32, 64),
            "self_attn.v_proj.weight": (32, 64),
            "self_attn.o_proj.weight": (64, 64),
            "self_attn.q_norm.weight": (16,),
            "self_attn.k_norm.weight": (16,),
            "mlp.gate_proj.weight": (96, 64),
            "mlp.up_proj.weight": (96, 64),
            "mlp.down_proj.weight": (64, 96),
            "input_layernorm.weight": (64,),
            "post_attention_layernorm.weight": (64,),
        }
        if name == "dflash2":
            layer |= {
                "self_attn.sinks": (4,),
                "attention_conv.base_kernel": (2, 3, 64),
                "attention_conv.kernel_projection.weight": (96, 64),
                "mlp_conv.base_kernel": (2, 3, 64),
                "mlp_conv.kernel_projection.weight": (96, 64),
            }
        shapes |= {f"layers.{i}.{key}": shape for key, shape in layer.items()}
    if name == "dflash2":
        shapes |= {
            "embed_tokens.weight": (288, 64),
            "candidate_selector.predecessor_codebook": (288, 8),
            "candidate_selector.successor_codebook": (288, 8),
            "candidate_selector.hidden_projection.weight": (8, 64),
        }
    if name.startswith("dspark"):
        words = config.get("draft_vocab_size", 288)
        shapes |= {
            "markov_head.markov_w1.weight": (288, 8),
            "markov_head.markov_w2.weight": (words, 8),
            "lm_head.weight": (words, 64),
            "confidence_head.proj.weight": (1, 64),
            "confidence_head.proj.bias": (1,),
        }
    made: dict[str, Any] = {
        key: values(name, key, list(shape), float("norm" in key), 0.2).astype(np.float16)
        for key, shape in shapes.items()
    }
    if name == "muse-assistant":
        made = {f"model.{key}": each for key, each in made.items()}
    if "draft_vocab_size" in config:
        made |= {"d2t": 2 * np.arange(96), "t2d": np.arange(288) % 3 == 0}
    return made


def gemma4_block_arrays(name: str) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (64, 128),
        "hidden_norm.weight": (64,),
        "norm.weight": (64,),
        "confidence_proj.weight": (1, 64),
        "markov_head.markov_w1.weight": (320, 8),
        "markov_head.markov_w2.weight": (320, 8),
    }
    for i in range(2):
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {
            f"layers.{i}.{key}": shape
            for key, shape in {
                "self_attn.q_proj.weight": (128, 64),
                "self_attn.k_proj.weight": (32, 64),
                "layer_scalar": (1,),
                "self_attn.o_proj.weight": (64, 128),
                "self_attn.q_norm.weight": (32,),
                "self_attn.k_norm.weight": (32,),
                "mlp.gate_proj.weight": (48, 64),
                "mlp.up_proj.weight": (48, 64),
                "mlp.down_proj.weight": (64, 48),
                **{f"{norm}_layernorm.weight": (64,) for norm in norms},
            }.items()
        }
    return {
        key: values(name, key, list(shape), float("norm" in key or "scalar" in key), 0.2).astype(np.float16)
        for key, shape in shapes.items()
    }


def arrays(name: str) -> dict[str, Any]:
    if name in BLOCKS:
        return block_arrays(name)
    if name in OWN_WORDS:
        return assistant_arrays(name)
    if name == "gemma4-dspark":
        return gemma4_block_arrays(name)
    layer = "layers.0" if name == "speculator" else "midlayer"
    words, wide = CONFIGS[name]["draft_vocab_size"], 64 if name == "shared" else 32
    shapes = {
        "fc.weight": (wide, 192),
        "norm.weight": (wide,),
        "lm_head.weight": (words, wide),
        f"{layer}.self_attn.q_proj.weight": (wide, 2 * wide),
        f"{layer}.self_attn.k_proj.weight": (wide // 2, 2 * wide),
        f"{layer}.self_attn.v_proj.weight": (wide // 2, 2 * wide),
        f"{layer}.self_attn.o_proj.weight": (wide, wide),
        f"{layer}.mlp.gate_proj.weight": (48, wide),
        f"{layer}.mlp.up_proj.weight": (48, wide),
        f"{layer}.mlp.down_proj.weight": (wide, 48),
        f"{layer}.input_layernorm.weight": (wide,),
        f"{layer}.hidden_norm.weight": (wide,),
        f"{layer}.post_attention_layernorm.weight": (wide,),
    }
    shapes |= {"embed_tokens.weight": (288, 32)} if name == "speculator" else {}
    shapes |= {"input_norm.weight": (192,)} if name in ("normed", "shared") else {}
    if name == "shared":
        del shapes["lm_head.weight"]
    made: dict[str, Any] = {
        key: values(name, key, list(shape), float("norm" in key), 0.2).astype(np.float16)
        for key, shape in shapes.items()
    }
    if words == 96:
        made |= {"d2t": 2 * np.arange(96), "t2d": np.arange(288) % 3 == 0}
    return made


def deepseek4_rows() -> list[Any]:
    """The tensors of a layer of the model's, twice, and what stands outside; beside them a few of the model's own."""
    spec = json.loads((DATA / "families" / "deepseek-v4" / "spec.json").read_text(encoding="utf-8"))["tensors"]
    rows = [row for row in spec if row[0] == "embed.weight"]
    for name, *row in spec:
        if name.startswith("layers.0.") and "tid2eid" not in name:
            rows += [[f"mtp.{i}.{name.removeprefix('layers.0.')}", *row] for i in range(2)]
        if name in ("norm.weight", "hc_head_base", "hc_head_fn", "hc_head_scale"):
            rows.append([f"mtp.1.{name}", *row])
    outside = {
        "0.main_proj.weight": [64, 192],
        "1.markov_head.markov_w1.weight": [288, 8],
        "0.main_norm.weight": [64],
        "1.markov_head.markov_w2.weight": [288, 8],
        "1.confidence_head.proj.weight": [1, 72],
    }
    return rows + [[f"mtp.{name}", "BF16", shape, float(len(shape) < 2), 0.1] for name, shape in outside.items()]


def build(name: str, folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A draft and its target. changes: other arrays, or config keys."""
    from safetensors.numpy import save_file

    (folder / name).mkdir()
    if name == "deepseek4-dspark":
        write_tensors(folder / name / "model.safetensors", name, deepseek4_rows())
        (folder / name / "config.json").write_text(json.dumps(CONFIGS[name] | changes), encoding="utf-8")
        build_target("deepseek-v4", folder / "deepseek-v4")
        return folder / name, folder / "deepseek-v4"
    config = CONFIGS[name] | {key: value for key, value in changes.items() if not isinstance(value, np.ndarray)}
    (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = arrays(name) | {key: value for key, value in changes.items() if isinstance(value, np.ndarray)}
    save_file(tensors, folder / name / "model.safetensors")
    target = folder / TARGETS.get(name, "qwen3-next")
    build_target(target.name, target)
    if name in OWN_WORDS:  # which have tokenizers of their own
        for file in target.glob("tokenizer*"):
            shutil.copyfile(file, folder / name / file.name)
    return folder / name, target


def build_files(name: str, folder: Path) -> tuple[str, Path, Path]:
    """The name, and the files of a draft's target and of the draft."""
    draft, target = build(name, folder)
    gguftools.convert(target, folder / "target.gguf", "f32")
    gguftools.convert(draft, folder / "draft.gguf", "f32", options=ConvertOptions(target_model_dir=target, pre="qwen2"))
    return name, folder / "target.gguf", folder / "draft.gguf"

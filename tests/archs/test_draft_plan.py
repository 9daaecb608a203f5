"""EAGLE-3 drafts: keys and tensors as llama.cpp's converter writes them, and what does not belong together refused.

tests/data/drafts: what `convert_hf_to_gguf.py --outtype f32 --target-model-dir` (b11434) writes for checkpoints that
`build` makes: keys without the vocabulary's (type, value), tensors (shape, fastest first, type, sha256). Configs follow
published ones: SpecForge's (`eagle3`), speculators' (`speculator`), and NVIDIA's 3.1 (`normed`).
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.draft_plan import is_draft
from quants.errors import GgufToolsError

from .checkpoints import DATA, values
from .checkpoints import build as build_target

DRAFTS = DATA / "drafts"
LAYER = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "vocab_size": 288,
    "hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": False,
}  # fmt: skip
SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle3": {"architectures": ["LlamaForCausalLMEagle3"], **LAYER, "draft_vocab_size": 96},
    "speculator": {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": 96,
        "norm_before_residual": True, "target_hidden_size": 64, "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "transformer_layer_config": {**LAYER, "rope_scaling": SCALED},
    },
    "normed": {"architectures": ["LlamaForCausalLM"], **LAYER, "draft_vocab_size": 288, "norm_before_fc": True},
}  # fmt: skip


def arrays(name: str) -> dict[str, Any]:
    layer = "layers.0" if name == "speculator" else "midlayer"
    words = CONFIGS[name]["draft_vocab_size"]
    shapes = {
        "fc.weight": (32, 192), "norm.weight": (32,), "lm_head.weight": (words, 32),
        f"{layer}.self_attn.q_proj.weight": (32, 64), f"{layer}.self_attn.k_proj.weight": (16, 64),
        f"{layer}.self_attn.v_proj.weight": (16, 64), f"{layer}.self_attn.o_proj.weight": (32, 32),
        f"{layer}.mlp.gate_proj.weight": (48, 32), f"{layer}.mlp.up_proj.weight": (48, 32),
        f"{layer}.mlp.down_proj.weight": (32, 48), f"{layer}.input_layernorm.weight": (32,),
        f"{layer}.hidden_norm.weight": (32,), f"{layer}.post_attention_layernorm.weight": (32,),
    }  # fmt: skip
    shapes |= {"embed_tokens.weight": (288, 32)} if name == "speculator" else {}
    shapes |= {"input_norm.weight": (192,)} if name == "normed" else {}
    made: dict[str, Any] = {
        key: values(name, key, list(shape), float("norm" in key), 0.2).astype(np.float16)
        for key, shape in shapes.items()
    }
    if name != "normed":
        made |= {"d2t": 2 * np.arange(96), "t2d": np.arange(288) % 3 == 0}
    return made


def build(name: str, folder: Path, **changes: Any) -> tuple[Path, Path]:
    """A draft and its target. changes: other arrays, or config keys."""
    from safetensors.numpy import save_file

    (folder / name).mkdir()
    config = CONFIGS[name] | {key: value for key, value in changes.items() if not isinstance(value, np.ndarray)}
    (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = arrays(name) | {key: value for key, value in changes.items() if isinstance(value, np.ndarray)}
    save_file(tensors, folder / name / "model.safetensors")
    build_target("qwen3-next", folder / "qwen3-next")
    return folder / name, folder / "qwen3-next"


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_files_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    reference = json.loads((DRAFTS / f"{name}.json").read_text(encoding="utf-8"))
    draft, target = build(name, tmp_path)
    gguftools.convert(draft, tmp_path / "x.gguf", "f32", target_model_dir=target, pre="qwen2")
    with gguftools.open(tmp_path / "x.gguf") as model:
        assert len(model.metadata["tokenizer.ggml.tokens"]) == 288
        assert model.metadata["tokenizer.ggml.bos_token_id"] == 283  # of the target's config.json
        own = {key: model.metadata.value(key) for key in model.metadata if not key.startswith("tokenizer.")}
        assert {
            key: [f"ARRAY/{value.element.name}" if value.element else value.type.name, np.asarray(value.data).tolist()]
            for key, value in own.items()
        } == reference["keys"]
        assert {
            each.name: [list(each.shape[::-1]), each.format.name, sha256(each.raw().tobytes()).hexdigest()]
            for each in model.tensors.values()
        } == reference["tensors"]


def test_ids_stay_whole_numbers_in_every_type(tmp_path: Path) -> None:
    draft, target = build("speculator", tmp_path)
    for outtype in ("bf16", "q8_0"):
        gguftools.convert(draft, tmp_path / f"{outtype}.gguf", outtype, target_model_dir=target, pre="qwen2")
        with gguftools.open(tmp_path / f"{outtype}.gguf") as model:
            assert model.tensors["d2t"].elements().reshape(-1).tolist() == list(range(0, 288, 3))
            assert model.tensors["fc.weight"].format.name == outtype.upper()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"d2t": np.full(96, 250)}, "names tokens that the target"),
        ({"d2t": -np.arange(96)}, "names a token twice"),
        ({"fc.weight": np.zeros((32, 160), np.float16)}, "fc.weight"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 30]}, "reads layers 1, 2, 30 of its target"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"norm_before_fc": True}, "enc.output_norm.weight"),
        ({"target_hidden_size": "x"}, "target_hidden_size"),
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    draft, target = build("eagle3", tmp_path, **changes)
    with pytest.raises(GgufToolsError, match=said):
        gguftools.convert(draft, tmp_path / "x.gguf", "f32", target_model_dir=target, pre="qwen2")
    assert not (tmp_path / "x.gguf").exists()


def test_a_draft_needs_its_target_and_a_model_none(tmp_path: Path) -> None:
    draft, target = build("eagle3", tmp_path)
    with pytest.raises(GgufToolsError, match="is a draft") as refused:
        gguftools.convert(draft, tmp_path / "x.gguf", "f32")
    assert "--target-model-dir" in str(refused.value.hint)
    with pytest.raises(GgufToolsError, match="is no EAGLE-3 draft"):
        gguftools.convert(target, tmp_path / "x.gguf", "f32", target_model_dir=target)
    with pytest.raises(GgufToolsError, match="there is no folder"):
        gguftools.convert(draft, tmp_path / "x.gguf", "f32", target_model_dir=tmp_path / "absent")
    assert not is_draft({"architectures": ["LlamaForCausalLM"], **LAYER})

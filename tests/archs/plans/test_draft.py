"""EAGLE-3 drafts: keys and tensors as llama.cpp's converter writes them, and what does not belong together refused.

tests/data/drafts: what `convert_hf_to_gguf.py --outtype f32 --target-model-dir` (b11434) writes for checkpoints that
`build` makes: keys without the vocabulary's (type, value), tensors (shape, fastest first, type, sha256).
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.plans.draft import is_draft
from gguftools.conversion.options import ConvertOptions
from quants.errors import GgufToolsError

from ..drafts import CONFIGS, DRAFTS, LAYER, OWN_WORDS, TARGETS, build


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_files_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    reference = json.loads((DRAFTS / f"{name}.json").read_text(encoding="utf-8"))
    draft, target = build(name, tmp_path)
    given = {} if name in OWN_WORDS else {"target_model_dir": target}
    gemma = TARGETS.get(name) == "gemma4-moe"
    kind = "bf16" if "deepseek" in name else "f32"  # the converter leaves these as they are
    options = ConvertOptions(pre=None if gemma else "qwen2", **given)
    gguftools.convert(draft, tmp_path / "x.gguf", kind, options=options)
    with gguftools.open(tmp_path / "x.gguf") as model:
        assert len(model.metadata["tokenizer.ggml.tokens"]) == (320 if gemma else 288)
        if name not in TARGETS:
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
        gguftools.convert(
            draft, tmp_path / f"{outtype}.gguf", outtype, options=ConvertOptions(target_model_dir=target, pre="qwen2")
        )
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
        ({"num_hidden_layers": 2}, "an EAGLE-3 draft has one"),
        ({"norm_before_fc": True}, "enc.output_norm.weight"),
        ({"target_hidden_size": "x"}, "target_hidden_size"),
    ],
)
def test_what_does_not_belong_together_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    draft, target = build("eagle3", tmp_path, **changes)
    with pytest.raises(GgufToolsError, match=said):
        gguftools.convert(
            draft, tmp_path / "x.gguf", "f32", options=ConvertOptions(target_model_dir=target, pre="qwen2")
        )
    assert not (tmp_path / "x.gguf").exists()


def test_a_draft_needs_its_target_and_a_model_none(tmp_path: Path) -> None:
    draft, target = build("eagle3", tmp_path)
    with pytest.raises(GgufToolsError, match="is a draft") as refused:
        gguftools.convert(draft, tmp_path / "x.gguf", "f32")
    assert "`target_model_dir`" in str(refused.value.hint)
    with pytest.raises(GgufToolsError, match="is no draft"):
        gguftools.convert(target, tmp_path / "x.gguf", "f32", options=ConvertOptions(target_model_dir=target))
    with pytest.raises(GgufToolsError, match="there is no folder"):
        gguftools.convert(
            draft, tmp_path / "x.gguf", "f32", options=ConvertOptions(target_model_dir=tmp_path / "absent")
        )
    assert not is_draft({"architectures": ["LlamaForCausalLM"], **LAYER})


def test_a_target_makes_a_draft_of_a_model_that_has_one(tmp_path: Path) -> None:
    draft, target = build("deepseek4-dspark", tmp_path, architectures=["DeepseekV4ForCausalLM"])
    gguftools.convert(draft, tmp_path / "x.gguf", "bf16", options=ConvertOptions(target_model_dir=target, pre="qwen2"))
    with gguftools.open(tmp_path / "x.gguf") as model:
        assert (model.architecture, model.metadata["dflash.block_count"]) == ("dflash", 2)
        assert "token_embd.weight" not in model.tensors
    assert gguftools.validate(tmp_path / "x.gguf").ok


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("dspark", {"markov_head_type": "rnn"}, "Markov head of type 'rnn'"),
        ("gemma4-dspark", {"attention_k_eq_v": False}, "attention_k_eq_v = False"),
        ("dspark-speculator", {"d2t": np.full(96, 250)}, "names tokens that the target"),
        ("dflash", {"dflash_config": {"mask_token_id": 280}}, "target_layer_ids"),
        ("dflash", {"dflash_config": {"target_layer_ids": [0, 9]}}, "reads layers 1, 10 of its target"),
        ("dflash", {"dflash_config": {"target_layer_ids": "x"}}, "target_layer_ids"),
        ("dflash", {"fc.weight": np.zeros((32, 128), np.float16)}, "fc.weight"),
        ("dflash2", {"layers.1.mlp_conv.base_kernel": np.zeros((3, 64), np.float16)}, "ffn_conv_base"),
        ("dflash2", {"candidate_selector.successor_codebook": np.zeros((8, 8), np.float16)}, "selector_successor"),
        ("dflash", {"candidate_selector.successor_codebook": np.zeros((8, 8), np.float16)}, "conv_kernel_size"),
    ],
)
def test_blocks_that_do_not_belong_together_are_refused(
    name: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    draft, target = build(name, tmp_path, **changes)
    with pytest.raises(GgufToolsError, match=said):
        gguftools.convert(
            draft, tmp_path / "x.gguf", "f32", options=ConvertOptions(target_model_dir=target, pre="qwen2")
        )
    assert not (tmp_path / "x.gguf").exists()

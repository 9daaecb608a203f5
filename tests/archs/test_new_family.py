"""What "Add an architecture" in CONTRIBUTING.md says: one file of another package brings a family; all else follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.archs.checkpoints import FAMILIES, write_tensors
from tests.conftest import ROOT

FAMILY = '''
"""Sharpish: Llama under other names, with scores twice as large; q, k and v are one matrix."""

from archs.families.llama import LLAMA
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams
from archs.spec import TensorMap
from archs.transforms import chain, interleave_rope, part


def numbers(keys: Keys, usual: HParams) -> HParams:
    return usual.with_layers(lambda index, own: {"attention_scale": 2 * own.attention_scale})


ROTATING = interleave_rope("num_attention_heads")

SHARPISH = LLAMA.derive(
    name="sharpish",
    hf_classes=("SharpishForCausalLM",),
    vocab=("bpe",),
    tensors={
        **{f"layers.{{i}}.self_attn.{each}_proj": None for each in "qkv"},
        "layers.{i}.attention.fused": (
            TensorMap("blk.{i}.attn_q", chain(part(0, 3), ROTATING)),
            TensorMap("blk.{i}.attn_k", chain(part(1, 3), ROTATING)),
            TensorMap("blk.{i}.attn_v", part(2, 3)),
        ),
    },
    flags_from_tensors={"attention_bias": None, "mlp_bias": None},
    block={"hparams_hook": numbers},
)
'''
CONFIG = {
    "architectures": ["SharpishForCausalLM"],
    "model_type": "sharpish",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": 288,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LAYER = {
    "attention.fused": [192, 64],
    "self_attn.o_proj": [64, 64],
    "mlp.gate_proj": [96, 64],
    "mlp.up_proj": [96, 64],
    "mlp.down_proj": [64, 96],
    "input_layernorm": [64],
    "post_attention_layernorm": [64],
}
SHAPES = {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in LAYER.items()} | {
    "model.embed_tokens.weight": [288, 64],
    "model.norm.weight": [64],
    "lm_head.weight": [288, 64],
}

# Converted, checked, run beside a Llama of the same weights (with the scores' factor and without), and exported.
SCRIPT = """
import runpy
import sys
import numpy as np
import gguftools
from runtime.model import RunningModel

def command(*arguments):
    sys.argv = ["gguftools", *arguments]
    try:
        runpy.run_module("gguftools", run_name="__main__")
    except SystemExit as end:
        assert not end.code, arguments

command("convert", "one/model", "-o", "first.gguf", "--outtype", "f32")
command("validate", "first.gguf")
model = gguftools.load("first.gguf")
keys = {key.replace("sharpish.", "llama."): value for key, value in model.metadata.items()}
keys["general.architecture"] = "llama"
tokens = [3, 1, 4, 1, 5, 9, 2, 6]
logits, usual = model.logits(tokens), RunningModel(keys, model.tensors).logits(tokens)
twice = RunningModel(keys | {"llama.attention.scale": 2 * 16**-0.5}, model.tensors).logits(tokens)
assert np.array_equal(logits, twice)
assert not np.allclose(logits, usual, atol=1e-2)
command("export", "first.gguf", "-o", "two/model")
command("convert", "two/model", "-o", "again.gguf", "--outtype", "f32")
command("diff", "first.gguf", "again.gguf")
"""


def test_a_package_brings_a_family(tmp_path: Path) -> None:
    write_distribution(tmp_path / "site")
    write_checkpoint(tmp_path / "one" / "model")
    (tmp_path / "two").mkdir()
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "first.gguf").read_bytes()


def write_distribution(folder: Path) -> None:
    """An installed distribution: a module, and metadata with an entry point that names it."""
    metadata = folder / "sharpish-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "sharpish.py").write_text(FAMILY)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sharpish\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gguftools.architectures]\nsharpish = sharpish\n")


def write_checkpoint(folder: Path) -> None:
    shutil.copytree(FAMILIES / "tokenizers" / "bpe", folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    rows = [(name, "F32", shape, float(len(shape) == 1), 0.2) for name, shape in SHAPES.items()]
    write_tensors(folder / "model.safetensors", "sharpish", rows)

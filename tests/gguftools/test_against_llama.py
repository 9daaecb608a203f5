"""Random models, real and odd tensor names, against what llama.cpp's own library makes of them, where there is one."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.metadata import Metadata
from gguftools.conversion.quantize import quantize
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.quantization.options import QuantizeOptions
from gguftools.quantization.recipes import RECIPES
from quants import Tensor, format_named

from .tiny_models import create_gguf

ROLES = """attn_q attn_k attn_v attn_output attn_qkv attn_kv_b ffn_up ffn_gate ffn_down ffn_up_exps ffn_gate_exps
    ffn_down_exps ffn_down_shexp ffn_gate_inp attn_norm ssm_conv1d ssm_in attn_q_norm time_mix_w1 time_mix_key
    shortconv.conv shortconv.in_proj altup_proj laurel_l per_layer_proj attn_rel_b indexer.k_proj indexer.proj
    nextn.eh_proj ffn_gate_tid2eid cross_attn_v inp_gate attn_k_b attn_v_b ffn_gate_inp_shexp""".split()  # noqa: SIM905 (a list would take a page)
OUTSIDE = """output token_embd per_layer_token_embd position_embd token_types output_norm per_layer_model_proj
    altup_proj rope_freqs token_embd_norm cls v.position_embd visual.patch_embd enc.blk.0.attn_v mm.0""".split()  # noqa: SIM905 (a list would take a page)
OTHERS = ("IQ1", "IQ2", "IQ3_X", "Q2_K_S", "Q1", "Q2_0", "COPY", "STOCK")
UNWEIGHTED = [name for name in RECIPES if not name.startswith(OTHERS)]


pytestmark = pytest.mark.verify


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    import llama_cpp as library

    library.llama_backend_init()
    silent = library.llama_log_callback(lambda *_: None)
    library.llama_log_set(silent, ctypes.c_void_p(0))
    yield library.llama_cpp
    library.llama_log_set(library.llama_log_callback(0), ctypes.c_void_p(0))


def random_model(chance: random.Random, path: Path) -> None:
    layers, heads = chance.choice([1, 4, 8, 9, 17]), chance.choice([4, 8, 32])
    arch, experts = chance.choice(["llama", "qwen2", "falcon", "gemma3"]), chance.choice([0, 0, 2, 4, 8, 16])
    metadata = Metadata()
    metadata["general.architecture"] = arch
    numbers = {
        "block_count": layers,
        "context_length": 128,
        "embedding_length": 256,
        "feed_forward_length": 256,
        "attention.head_count": heads,
        "attention.head_count_kv": chance.choice([1, heads // 4, heads]),
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.sliding_window": 64,
    }
    for key, number in numbers.items() | ({("expert_count", experts), ("expert_used_count", 1)} if experts else set()):
        metadata[f"{arch}.{key}"] = number
    roles = {"attn_v", "ffn_down", "attn_output", "attn_k", *chance.sample(ROLES, 8)}
    names = ["token_embd"] + [name for name in OUTSIDE if chance.random() < 0.5]
    names += [f"blk.{i}.{role}" for i in range(layers) for role in sorted(roles) if chance.random() < 0.9]
    tensors = []
    for name in dict.fromkeys(names):
        widths = [256, 256, 512, 64, 96, 36]
        width = chance.choice(widths[:5] if name == "output" else widths)  # the reference fails where Q8_0 doesn't fit
        experts_of = (chance.choice([1, 2, 3]),) if "exps" in name else ()
        shape = (*experts_of, chance.choice([1, 2, 3]), width)
        raw = np.random.default_rng(width).standard_normal(shape).astype("<f2").reshape(-1, width).view(np.uint8)
        suffix = "bias" if chance.random() < 0.03 else "weight"
        tensors.append(Tensor(f"{name}.{suffix}", shape, format_named("F16"), lambda a, b, raw=raw: raw[a:b]))
    chance.shuffle(tensors)
    with create_gguf(path, plan_file(metadata, [TensorInfo(t.name, t.shape, t.format) for t in tensors])) as file:
        for index, tensor in enumerate(tensors):
            file.write(index, 0, tensor.raw())


@pytest.mark.parametrize("seed", range(8))
def test_the_same_file(seed: int, library: Any, tmp_path: Path) -> None:
    chance = random.Random(seed)
    source, theirs, ours = (tmp_path / f"{name}.gguf" for name in ("source", "theirs", "ours"))
    random_model(chance, source)
    for name in chance.sample(UNWEIGHTED, 4):
        given: dict[str, Any] = {}
        parameters = library.llama_model_quantize_default_params()
        parameters.ftype, parameters.nthread = RECIPES[name].file_type, 1
        if chance.random() < 0.2:
            parameters.pure = given["pure"] = True
        if chance.random() < 0.15:
            parameters.output_tensor_type, given["output_type"] = 8, "Q8_0"
        if chance.random() < 0.15:
            parameters.token_embedding_type, given["token_embedding_type"] = 1, "F16"
        if chance.random() < 0.1:
            parameters.quantize_output_tensor, given["leave_output"] = False, True
        arguments = (str(source).encode(), str(theirs).encode(), ctypes.byref(parameters))
        assert not library.llama_model_quantize(*arguments)
        quantize(source, name, ours, options=QuantizeOptions(**given))
        assert contents(ours) == contents(theirs), (name, given)


def contents(path: Path) -> tuple[dict[str, Any], list[tuple[str, str, bytes]]]:
    """Metadata and tensors. Shapes may differ by dimensions of 1, which ggml drops; the order of keys may, too."""
    file = open_gguf(path)
    return dict(file.metadata), [(n, t.format.name, t.raw().tobytes()) for n, t in file.tensors.items()]

"""Adapters from PEFT folders: the file of their own that the reference writes, and merging while converting."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

import gguftools
from archs.metadata import ValueType
from gguftools.conversion.adapters import open_adapter
from gguftools.conversion.options import ConvertOptions
from gguftools.writing.options import WriteOptions
from quants.errors import GgufToolsError

from ...conftest import ROOT, SHARED
from ..command_line import typed
from ..io.torch_files import write_torch

MODEL = ROOT / "examples" / "austen-4m"
CARD = """---
base_model: someone/Austen-4M
tags:
- lora
---
"""
SHAPES = {"self_attn.q_proj": (256, 256), "self_attn.v_proj": (128, 256), "mlp.down_proj": (256, 768)}


def peft_tensors(rank: int = 8) -> dict[str, NDArray[np.float32]]:
    chance = np.random.default_rng(5)
    found = {}
    for i in range(4):
        for module, (outputs, inputs) in SHAPES.items():
            prefix = f"base_model.model.model.layers.{i}.{module}"
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                found[f"{prefix}.lora_{half}.weight"] = chance.standard_normal(shape).astype(np.float32) / 20
    return found


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder as PEFT saves it."""
    folder = tmp_path / "letters-lora"
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 12, "base_model_name_or_path": "someone/Austen-4M"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    (folder / "README.md").write_text(CARD)
    save_file(peft_tensors(), folder / "adapter_model.safetensors")
    return folder


def test_file_of_its_own(adapter: Path, tmp_path: Path) -> None:
    """Keys, their order and types as the reference's converter writes them; the base model's config is enough."""
    base = tmp_path / "base"
    base.mkdir()
    shutil.copy(MODEL / "config.json", base)
    report = gguftools.convert(base, tmp_path, part="lora", options=ConvertOptions(lora=adapter))
    assert report.outputs[0].file == tmp_path / "letters-lora-F32.gguf"
    opened = gguftools.open(report.outputs[0].file)
    found = {key: (opened.metadata.value(key).type.name, opened.metadata[key]) for key in opened.metadata}
    assert list(found.pop("general.tags")[1]) == ["lora"]
    assert list(found.items()) == [
        ("general.architecture", ("STRING", "llama")),
        ("general.type", ("STRING", "adapter")),
        ("adapter.type", ("STRING", "lora")),
        ("general.name", ("STRING", "Letters Lora")),
        ("general.base_model.count", ("UINT32", 1)),
        ("general.base_model.0.name", ("STRING", "Austen 4M")),
        ("general.base_model.0.organization", ("STRING", "Someone")),
        ("general.base_model.0.repo_url", ("STRING", "https://huggingface.co/someone/Austen-4M")),
        ("adapter.lora.alpha", ("FLOAT32", 12.0)),
        ("general.quantization_version", ("UINT32", 2)),
    ]
    names = [
        f"blk.{i}.{name}.weight.lora_{half}"
        for i in range(4)
        for name in ("ffn_down", "attn_q", "attn_v")
        for half in "ab"
    ]
    assert list(opened.tensors) == names
    assert {tensor.format.name for tensor in opened.tensors.values()} == {"F32"}
    assert opened.tensors["blk.3.attn_v.weight.lora_b"].shape == (128, 8)


def test_types(adapter: Path, tmp_path: Path) -> None:
    gguftools.convert(MODEL, tmp_path / "a.gguf", "q8_0", part="lora", options=ConvertOptions(lora=adapter))
    formats = {name: t.format.name for name, t in gguftools.open(tmp_path / "a.gguf").tensors.items()}
    assert formats["blk.0.attn_q.weight.lora_a"] == "Q8_0"
    assert formats["blk.0.attn_q.weight.lora_b"] == "F16"  # rows of 8
    with pytest.raises(GgufToolsError, match="Q4_K_M"):
        gguftools.convert(MODEL, tmp_path / "b.gguf", "Q4_K_M", part="lora", options=ConvertOptions(lora=adapter))


def test_invocation_tokens(adapter: Path, tmp_path: Path) -> None:
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"alora_invocation_tokens": [7, 9]}))
    gguftools.convert(MODEL, tmp_path / "a.gguf", part="lora", options=ConvertOptions(lora=adapter))
    value = gguftools.open(tmp_path / "a.gguf").metadata.value("adapter.alora.invocation_tokens")
    assert list(value.data) == [7, 9]
    assert (value.type, value.element) == (ValueType.ARRAY, ValueType.UINT32)


def test_merged_model_is_the_base_with_the_adapters_file_applied(adapter: Path, tmp_path: Path) -> None:
    gguftools.convert(MODEL, tmp_path / "base.gguf", "f32")
    gguftools.convert(MODEL, tmp_path / "merged.gguf", "f32", options=ConvertOptions(merge_lora=[(adapter, 0.5)]))
    gguftools.convert(MODEL, tmp_path / "adapter.gguf", part="lora", options=ConvertOptions(lora=adapter))
    base, merged, alone = (gguftools.open(tmp_path / f"{n}.gguf") for n in ("base", "merged", "adapter"))
    assert merged.metadata.keys() == base.metadata.keys()
    for name, tensor in base.tensors.items():
        expected = tensor.float32()
        if f"{name}.lora_a" in alone.tensors:
            a, b = (alone.tensors[f"{name}.lora_{half}"].float32() for half in "ab")
            expected = expected + 0.5 * 12 / 8 * (b @ a)
            assert np.abs(expected - tensor.float32()).max() > 0.01
        np.testing.assert_allclose(merged.tensors[name].float32(), expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_merging_follows_the_checkpoints_type_and_any_recipe(adapter: Path, tmp_path: Path) -> None:
    report = gguftools.convert(MODEL, tmp_path / "auto.gguf", options=ConvertOptions(merge_lora=[adapter]))
    assert report.outputs[0].recipe == "BF16"
    gguftools.convert(
        MODEL,
        tmp_path / "direct.gguf",
        "Q8_0",
        options=ConvertOptions(merge_lora=[adapter]),
        write=WriteOptions(threads=1),
    )
    gguftools.convert(
        MODEL,
        tmp_path / "f32.gguf",
        "f32",
        options=ConvertOptions(merge_lora=[adapter]),
        write=WriteOptions(threads=2, memory=1 << 20),
    )
    gguftools.quantize(tmp_path / "f32.gguf", "Q8_0", tmp_path / "steps.gguf")
    direct, steps = gguftools.open(tmp_path / "direct.gguf"), gguftools.open(tmp_path / "steps.gguf")
    for name, tensor in direct.tensors.items():
        assert np.array_equal(tensor.raw(), steps.tensors[name].raw()), name


def test_pickled_adapter_is_the_same(adapter: Path, tmp_path: Path) -> None:
    before = open_adapter(adapter)
    (adapter / "adapter_model.safetensors").unlink()
    write_torch(adapter / "adapter_model.bin", peft_tensors())
    after = {pair.module: pair for pair in open_adapter(adapter).pairs}
    for pair in before.pairs:
        assert pair.scale == after[pair.module].scale
        assert pair.b.raw().tobytes() == after[pair.module].b.raw().tobytes()


def run(*arguments: Any) -> tuple[int, str]:
    result = typed(*arguments)
    return result.returncode, result.stdout + result.stderr


def test_commands(adapter: Path, tmp_path: Path) -> None:
    merged, twice = tmp_path / "merged.gguf", tmp_path / "twice.gguf"
    assert run("convert", MODEL, "-o", merged, "--merge-lora", f"{adapter}=2")[0] == 0
    assert run("convert", MODEL, "-o", twice, "--merge-lora", adapter, "--merge-lora", adapter)[0] == 0
    for name, tensor in gguftools.open(merged).tensors.items():
        np.testing.assert_allclose(gguftools.open(twice).tensors[name].float32(), tensor.float32(), rtol=1e-2)
    assert run("convert", MODEL, "-o", tmp_path / "a.gguf", "--lora", adapter)[0] == 0
    assert gguftools.open(tmp_path / "a.gguf").metadata["adapter.type"] == "lora"
    assert "lora_a" in run("show", tmp_path / "a.gguf")[1]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no folder"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no weights"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "IA3"}'), "IA3"),
        (lambda folder: save_file({}, folder / "adapter_model.safetensors"), "holds no tensors"),
    ],
)
def test_broken_adapters_are_refused(adapter: Path, tmp_path: Path, spoil: Any, message: str) -> None:
    spoil(adapter)
    for part, options in (("lora", ConvertOptions(lora=adapter)), ("model", ConvertOptions(merge_lora=[adapter]))):
        with pytest.raises(GgufToolsError, match=re.escape(message)) as caught:
            gguftools.convert(MODEL, tmp_path / "out.gguf", part=part, options=options)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.gguf").exists()


def test_options_that_contradict_each_other(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(GgufToolsError, match="cannot be combined with `merge_lora`"):
        gguftools.convert(
            MODEL, tmp_path / "out.gguf", part="lora", options=ConvertOptions(lora=adapter, merge_lora=[adapter])
        )
    with pytest.raises(GgufToolsError, match="`resume` cannot be combined with `merge_lora`"):
        gguftools.convert(
            MODEL,
            tmp_path / "out.gguf",
            "Q8_0",
            options=ConvertOptions(merge_lora=[adapter]),
            write=WriteOptions(resume=True),
        )


PEFT: dict[str, dict[str, Any]] = {  # entry of the zoo: PEFT's settings
    "llama2-spm": {
        "target_modules": ["q_proj", "k_proj", "v_proj", "down_proj"],
        "modules_to_save": ["lm_head"],
        "alpha_pattern": {"q_proj": 3, "layers.1.mlp.down_proj": 9},
        "rank_pattern": {"k_proj": 2},
    },
    "llama3-gqa-rope-tied": {"target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "gpt2": {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "falcon-40b-style": {"target_modules": ["query_key_value", "dense_h_to_4h"]},
    "gemma2": {"target_modules": ["q_proj", "o_proj"]},
    "phi3": {"target_modules": ["qkv_proj", "gate_up_proj"]},
}


@pytest.mark.verify
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", PEFT)
def test_against_peft_and_llama(entry: str, shared: Path, tmp_path: Path) -> None:
    """Logits of the merged file are those of PEFT's model; llama.cpp applies the adapter's own file to the same end."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    from tests import zoo_build

    base, folder = tmp_path / entry, tmp_path / "adapter"
    zoo_build.build(SHARED / "zoo", entry, base)
    ids = np.load(shared / "zoo" / entry / "logits.npz")["ids0"]
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=6, **PEFT[entry])).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
        truth = model(torch.tensor(ids)[None]).logits[0].numpy()
    model.save_pretrained(folder)
    gguftools.convert(base, tmp_path / "merged.gguf", "f32", options=ConvertOptions(merge_lora=[folder]))
    logits = gguftools.load(tmp_path / "merged.gguf").logits(ids)
    assert np.abs(logits - truth).max() < 1e-4 * truth.std()
    if "modules_to_save" not in PEFT[entry]:
        gguftools.convert(base, tmp_path / "base.gguf", "f32")
        gguftools.convert(base, tmp_path / "adapter.gguf", part="lora", options=ConvertOptions(lora=folder))
        applied = logits_of_llama(tmp_path / "base.gguf", tmp_path / "adapter.gguf", ids)
        assert np.abs(applied - truth).max() < 0.01 * truth.std()  # its cache holds float16


def logits_of_llama(model: Path, adapter: Path, ids: Any) -> Any:
    import llama_cpp

    whole = llama_cpp.Llama(str(model), lora_path=str(adapter), logits_all=True, n_ctx=128, verbose=False)
    whole.eval([int(token) for token in ids])
    return np.array(whole.scores[: len(ids)])

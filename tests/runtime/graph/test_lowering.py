"""Both executors give the same logits, whatever a file or a family sets."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.hparams.model_hparams import HParams, LayerHParams
from archs.spec import LayerSpec
from quants.errors import ModelError
from runtime.layer import Network
from runtime.model import RunningModel
from tests.archs import checkpoints

from .recorded import written
from .test_compiled import FAMILIES, TOKENS, in_steps, model_of

FIELDS = [(kind, each.name) for kind in (LayerSpec, HParams, LayerHParams) for each in fields(kind)]
ALWAYS_GATED = ("swiglu_oai", "situ")  # activations
CLOSE = 5e-5  # of the logits' standard deviation

# Sizes of tensors and what is made of them: another value is another file.
SIZES = {"width", "layers", "heads", "kv_heads", "key_width", "value_width"}
# Values of fields whose annotation does not say any.
OTHERS: dict[str, tuple[Any, ...]] = {
    "mixer": (lambda keys, layer: "none" if layer else "attention",),
    "net": ("none",),
    "arrangement": ("normed",),
    "ffn_norm": ("post_attention_norm",),
    "attn_post_norm": ("attn_output_norm",),
    "ffn_post_norm": ("layer_output_norm",),
    "output_norm": ("token_embd_norm",),
    "suppressed_ids": ((3, 9),),
    "alibi": (True,),
    "parallel": (True, False),
    "qkv_steps": (
        ("clamp", "rope", "norm"),
        ("gates", "norm", "rope"),
        ("norm", "rope", "norm_values"),
        ("norm",),
        ("norm_without_weights", "rope"),
    ),
    "parallel_without": ("ffn_norm",),
    "is_global_layer": (lambda period, layer: True,),
    "hparams_hook": (lambda keys, numbers: numbers,),
    "query_scale": (lambda numbers, positions, rotates: np.full(len(positions), 1.5, np.float32),),
    "alibi_terms": (lambda slopes, keys, scale: np.zeros((len(slopes), keys), np.float32),),
    "weigh_expert": (lambda net, x, weights: net(x),),
    "add_shared_expert": (lambda routed, shared: routed - shared,),
    "rope_sections": ((2, 3, 3),),
    "xielu": (((1.0, 1.0, 0.5, 1e-6),) * 2,),
    "situ": ((2.0, 3.0),),
    "window": (None, 5),
    "rope_width": (8,),
    "clamp": (0.1,),
    "attention_softcap": (None, 1.5),
    "logit_softcap": (None, 1.5),
    "kv_source_layer": (0,),
    "chunk": (4,),
    "sparsity": (0.5,),
    "stored": (0,),
    "router_softcap": (1.5,),
    "rope": ("adjacent", "halves"),  # a model without has layers that don't rotate
}


def others(kind: type, name: str, value: Any) -> Iterator[Any]:
    """Values that a field might have instead."""
    said = typing.get_type_hints(kind)[name]
    if name in OTHERS and not (kind is HParams and name in ("alibi", "parallel")):
        yield from (each for each in OTHERS[name] if each != value)
    elif typing.get_origin(said) is typing.Literal:
        yield from (each for each in typing.get_args(said) if each != value)
    elif said is bool:
        yield not value
    elif said is int:
        yield value + 1
    elif said is float:
        yield 1.7 * value + 0.3
    else:
        pytest.fail(f"{kind.__name__}.{name} is new: give OTHERS a value")


def changed(network: Network, kind: type, name: str, value: Any) -> Network:
    if kind is LayerSpec:
        return replace(network, block=replace(network.block, **{name: value}))
    if kind is HParams:
        return replace(network, hparams=replace(network.hparams, **{name: value}))
    return replace(network, hparams=network.hparams.with_layers(lambda i, own: {name: value} if i else {}))


def value_of(network: Network, kind: type, name: str) -> Any:
    return getattr(
        {LayerSpec: network.block, HParams: network.hparams, LayerHParams: network.hparams.layers[-1]}[kind], name
    )


def check_parity(model: RunningModel, exact: RunningModel, tokens: Any, sizes: tuple[int, ...] = (1, 2, 7)) -> None:
    """Handed over so many tokens at a time as all at once."""
    whole = written(exact.forward(tokens))
    for size in sizes:
        found = written(in_steps(model, tokens, [size]))
        assert np.abs(found - whole).max() <= CLOSE * whole.std(), size


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
@pytest.mark.parametrize("family", ["llama", "norms of heads", "windows and caps", "scales", "layer norms", "parallel"])
def test_executors_agree_about_each_field(family: str, kind: type, name: str) -> None:
    model, exact = model_of(family), model_of(family, precision="exact")
    before = value_of(model.network, kind, name)
    for value in () if name in SIZES else others(kind, name, before):
        network = changed(model.network, kind, name, value)
        if value in ALWAYS_GATED and not network.block.gated:
            continue
        if value == "xielu":
            network = changed(network, HParams, "xielu", ((1.0, 1.0, 0.5, 1e-6),) * 2)
        for each in (model, exact):
            each.network = network
            each.__dict__.pop("_compiled", None)
        try:
            exact.forward(TOKENS[:2], exact.new_cache())
        except ModelError:  # of weights that would have to have another shape, and texts that are read as a whole
            with pytest.raises(ModelError):
                model.forward(TOKENS[:2], model.new_cache())
        else:
            check_parity(model, exact, TOKENS[:14], (1,))


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_behind_parts(family: str) -> None:
    """As Chameleon of 34B has them, in any family's file."""
    keys = {"swin_norm": True}
    check_parity(model_of(family, keys=keys), model_of(family, keys=keys, precision="exact"), TOKENS[:14])


DECODERS = (
    "xverse",
    "orion",
    "codeshell",
    "minicpm",
    "qwen1",
    "exaone",
    "chatglm",
    "chameleon",
    "chameleon-swin",
    "deci",
    "granite-swa",
    "internlm3",
    "kormo",
    "maincoder",
    "nanbeige",
    "olmo-first",
    "openelm",
    "plamo",
    "plamo3",
    "refact",
    "rugpt3xl",
    "solar-open",
    "talkie",
    "bitnet",
    "gemma3n",
    "gemma4-e",
    "muse-glimmer",
    "hrm-text",
    "minicpm3",
    "lfm2-vl",
    "qwen3-vl",
    "qwen2-vl",
    "smolvlm",
    "mellum",
    "llama4",
    "hunyuan-moe",
    "cohere2-moe",
    "spark2-5",
)


@pytest.mark.parametrize("entry", DECODERS)
def test_both_ways_of_families(entry: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "f32.gguf", "f32")
    model, exact = gguftools.load(tmp_path / "f32.gguf"), gguftools.load(tmp_path / "f32.gguf")
    exact.precision = "exact"
    check_parity(model, exact, np.random.default_rng(3).integers(10, 250, 31))

"""The default precision beside exact products: logits, and what is chosen on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gguftools
from quants import from_array
from runtime.layer import ForwardContext, Network
from runtime.model import RunningModel
from runtime.products import integer_product
from runtime.products.rounding import is_sensitive, up_to_last
from tests.archs import checkpoints
from tests.archs.checkpoints import values
from tests.choices import flipped, recorded

TOKENS = 96
CLOSE = 1e-3  # of the logits' standard deviation, which the largest difference stays below
CLOSE_BEHIND_CHOICES = 5e-4  # where nothing but the head is rounded
LEAST_KL = 1e-6  # nats

# Kinds of layers → entries of tests/data/families that have them.
CHOOSING = {
    "experts by softmax": "mellum",
    "experts by softmax of the best": "granitemoe-swa",
    "experts by sigmoid": "hy-v3",
    "experts by groups": "bailing-moe-v2",
    "experts beside a net": "arctic",
    "experts of groups": "grove-moe",
    "experts of token ids, keys by pools": "deepseek-v4",
    "experts that read a layer's input": "smallthinker",
    "experts of a latent": "nemotron-h-moe",
    "latents and experts": "deepseek-v3-mtp",
    "keys by an indexer": "deepseek-v32",
    "keys by a later indexer": "glm-moe-dsa",
    "keys by blocks": "minimax-m3",
    "keys by pooled blocks": "glm5-next",
    "keys by a shared indexer": "hy-v4",
    "note": "dots3-note",
}
CARRYING = {
    "mamba of heads": "plamo2",
    "mamba 2": "bamba",
    "gated delta": "qwen3-5",
    "gated delta and experts": "qwen3-next",
    "kimi delta": "kimi-linear",
    "kimi delta over residuals": "kimi-k3",
    "rwkv 6": "rwkv6",
    "rwkv 7": "rwkv7",
    "rwkv 6 and nets": "qrwkv6",
    "rwkv 7 and nets": "arwkv7",
    "lightning": "minimax-text-01",
    "several streams": "qwen4-exp",
    "delta and latents": "bailing-moe-v3",
}
LARGE_SCORES = {
    "scores of normed heads": "gemma3n",
    "scores of normed heads, per-layer inputs": "gemma4-e",
    "two sides": "umt5",
    "the encoder of two sides": "umt5-encoder",
}
PLAIN = {
    "dense": "xverse",
    "layer norms": "orion",
    "parallel": "codeshell",
    "scales": "minicpm",
    "biases": "qwen1",
    "norms of heads": "exaone",
    "fused": "chatglm",
    "norms behind": "chameleon-swin",
    "windows": "granite-swa",
    "latents": "minicpm3",
    "latents of one head": "plm",
    "short convolution": "lfm2-vl",
    "cycles": "hrm-text",
    "encoder": "nomic-bert",
    "sub-norms": "bitnet",
}
SENSITIVE = CHOOSING | CARRYING | LARGE_SCORES
KINDS = SENSITIVE | PLAIN


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Files that were made so far."""
    return {"folder": tmp_path_factory.mktemp("kinds")}


def model_of(entry: str, files: dict[str, Any]) -> Any:
    if entry not in files:
        checkpoints.build(entry, files["folder"] / entry)
        files[entry] = files["folder"] / f"{entry}.gguf"
        gguftools.convert(files["folder"] / entry, files[entry], "f32")
    return gguftools.load(files[entry])


def run(model: RunningModel, ids: np.ndarray) -> np.ndarray:
    if model.encoder_decoder is not None:
        return model.logits(ids.tolist(), [0, *ids[:60].tolist()]).astype(np.float64)
    if model.architecture.block.hidden_states or not model.architecture.block.causal:
        return model.hidden_states([ids.tolist()])[0].astype(np.float64)
    return model.forward(ids).astype(np.float64)


def divergence(wanted: np.ndarray, found: np.ndarray) -> float:
    """The mean KL divergence in nats."""
    p, q = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (wanted, found))
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def check(model: RunningModel, exact: RunningModel, close: float) -> int:
    """How many choices there were, and that they are the same."""
    ids = np.random.default_rng(5).integers(10, 250, TOKENS)
    exact.precision = "exact"
    with recorded() as theirs:
        wanted = run(exact, ids)
    with recorded() as mine:
        found = run(model, ids)
    assert flipped(mine, theirs) == 0
    assert np.abs(found - wanted).max() < close * wanted.std()
    assert divergence(wanted, found) < LEAST_KL
    return len(mine)


@pytest.mark.parametrize("kind", KINDS)
def test_close_to_exact(kind: str, files: dict[str, Any]) -> None:
    check(model_of(KINDS[kind], files), model_of(KINDS[kind], files), CLOSE)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that may be rounded is, as in models whose products are large enough for it."""
    for name in ("MIN_WIDTH", "MIN_WEIGHTS", "MIN_WORK"):
        monkeypatch.setattr(integer_product, name, 0)


@pytest.mark.parametrize("kind", SENSITIVE)
def test_close_to_exact_in_larger_models(kind: str, files: dict[str, Any], large: None) -> None:
    model, exact = model_of(SENSITIVE[kind], files), model_of(SENSITIVE[kind], files)
    made = check(model, exact, CLOSE_BEHIND_CHOICES)
    assert kind not in CHOOSING or made


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_layers_are_rounded(kind: str, files: dict[str, Any]) -> None:
    network = model_of(PLAIN[kind], files).network
    assert network.rounded_layers == {layer.prefix for layer in network.layers} != set()


MAMBA = {
    "embedding_length": 128,
    "block_count": 3,
    "ssm.inner_size": 256,
    "ssm.state_size": 16,
    "ssm.conv_kernel": 4,
    "ssm.time_step_rank": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
OF_MAMBA = {
    "attn_norm.weight": (128,),
    "ssm_in.weight": (512, 128),
    "ssm_conv1d.weight": (256, 4),
    "ssm_conv1d.bias": (256,),
    "ssm_x.weight": (48, 256),
    "ssm_dt.weight": (256, 16),
    "ssm_dt.bias": (256,),
    "ssm_a": (256, 16),
    "ssm_d": (256,),
    "ssm_out.weight": (128, 256),
}


def mamba() -> RunningModel:
    """The first Mamba: no such entry is among the families."""
    shapes = {"token_embd.weight": (512, 128), "output_norm.weight": (128,)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(3) for name, shape in OF_MAMBA.items()}
    tensors = {}
    for name, shape in shapes.items():
        about = 1.0 if "norm" in name else 0.0
        made = values("mamba", name, list(shape), about, 0.1 if about else shape[-1] ** -0.5).astype(np.float32)
        tensors[name] = from_array(name, -np.exp(made) if name.endswith("ssm_a") else made)
    return RunningModel(
        {"general.architecture": "mamba"} | {f"mamba.{key}": value for key, value in MAMBA.items()}, tensors
    )


def test_mamba(large: None) -> None:
    model = mamba()
    assert model.network.rounded_layers == set()
    check(model, mamba(), CLOSE_BEHIND_CHOICES)


def without_last_router(model: RunningModel) -> Network:
    """The same network, whose last layer has dense tensors alone."""
    layers = model.network.layers
    names: Mapping[str, Any] = {name: t for name, t in layers[-1].tensors.items() if "exp" not in name}
    dense = {name: tensor for name, tensor in names.items() if name != "ffn_gate_inp.weight"}
    last = type(layers[-1])(layers[-1].prefix, dense)
    return replace(model.network, layers=(*layers[:-1], last))


def test_layers_behind_the_last_choice_may_be_rounded(files: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_product, "MIN_WIDTH", 0)
    model = model_of("mellum", files)
    prefixes = [layer.prefix for layer in model.network.layers]
    assert model.network.rounded_layers == set()
    network = without_last_router(model)
    assert network.rounded_layers == {prefixes[-1]}
    forward = ForwardContext(network, 1, 1 << 20)
    assert not forward.may_round(network.layers[0], "attn_q")
    assert forward.may_round(network.layers[-1], "attn_q")
    assert not forward.may_round(network.layers[-1], "attn_norm")
    assert not ForwardContext(network, 1, 9).may_round(network.layers[-1], "attn_q")


@pytest.mark.parametrize(
    ("names", "scale", "predicted", "sensitive"),
    [
        (("attn_q.weight", "ffn_up.weight"), 0.125, False, False),
        (("attn_q.weight",), 0.25, False, True),
        (("attn_q.weight", "ffn_gate_inp.weight"), 0.125, False, True),
        (("ffn_gate_inp_shexp.weight",), 0.125, False, False),
        (("indexer.k_proj.weight",), 0.125, False, True),
        (("ssm_in.weight",), 0.125, False, True),
        (("time_mix_w1.weight",), 0.125, False, True),
        (("fc1.weight", "fc2.weight"), 0.125, False, False),
        (("fc1.weight", "fc2.weight"), 0.125, True, True),
    ],
)
def test_which_layers_are_sensitive(names: tuple[str, ...], scale: float, predicted: bool, sensitive: bool) -> None:
    assert is_sensitive(names, scale, 64, predicted) is sensitive


@pytest.mark.parametrize(("sensitive", "count"), [((), 0), ((False, False), 0), ((True, False), 1), ((False, True), 2)])
def test_up_to_last(sensitive: tuple[bool, ...], count: int) -> None:
    assert up_to_last(sensitive) == count

"""RWKV's checkpoints: other names for the same tensors, what is refused, its vocabulary's file, its recurrences."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gguftools
from archs.families.rwkv import RWKV7, head_size, prepare
from archs.plans.text import map_tensors
from archs.vocab import vocabulary
from archs.vocab.rwkv import FILE, TEMPLATE, spelled_bytes
from quants import Tensor, from_array
from quants.errors import ModelError, VocabularyError
from runtime.kernels.scan import wkv7_heads, wkv_heads
from runtime.model import RunningModel
from tests.archs import checkpoints

WORDS = {"r": "receptance", "k": "key", "v": "value", "o": "output"}
OTHER_NAMES: tuple[tuple[str, Any], ...] = (
    (r"model\.layers\.", "model.blocks."),
    (r"\.attn\.", ".attention."),
    (r"\.ffn\.", ".feed_forward."),
    (r"attn_norm", "ln1"),
    (r"ffn_norm", "ln2"),
    (r"g_norm", "ln_x"),
    (r"pre_norm", "pre_ln"),
    (r"model\.norm", "model.ln_out"),
    (r"([rkvo])_proj", lambda match: WORDS[match[1]]),
)
NARROW = re.compile(r"(.*)\.([wavg])_lora\.lora\.([02])\.(weight|bias)")


def otherwise(name: str, values: NDArray[np.float32]) -> tuple[str, NDArray[np.float32]]:
    """A tensor as RWKV's own code has it: narrow matrices are parameters, the other way round."""
    if match := NARROW.fullmatch(name):
        number = {"0weight": "1", "2weight": "2", "2bias": "0"}[match[3] + match[4]]
        name, values = f"{match[1]}.{match[2]}{number}", values.T if values.ndim > 1 else values[None, None]
    for pattern, instead in OTHER_NAMES:
        name = re.sub(pattern, instead, name)
    return name, np.ascontiguousarray(values)


def mapped(arrays: dict[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    config = json.loads((checkpoints.FAMILIES / "rwkv7" / "config.json").read_text(encoding="utf-8"))
    full, tensors = prepare(config, {name: from_array(name, values) for name, values in arrays.items()})
    return map_tensors(RWKV7, full, tensors).tensors


def test_other_names_mean_the_same() -> None:
    rows = json.loads((checkpoints.FAMILIES / "rwkv7" / "spec.json").read_text(encoding="utf-8"))["tensors"]
    own = {name: checkpoints.values("rwkv7", name, *row).astype(np.float32) for name, _, *row in rows}
    one, other = mapped(own), mapped(dict(otherwise(*item) for item in own.items()))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert (tensor.shape, tensor.raw().tobytes()) == (other[name].shape, other[name].raw().tobytes()), name


def test_ranks_are_what_tensors_say() -> None:
    shapes = {"x_x": (6, 4), "g2": (16, 4), "w_lora.lora.2.weight": (4, 8), "a2": ()}
    names = {f"model.layers.1.attn.{name}": shape for name, shape in shapes.items()}
    config, _ = prepare({}, {name: from_array(name, np.ones(shape, np.float32)) for name, shape in names.items()})
    assert (config["gate_low_rank_dim"], config["decay_low_rank_dim"], config.get("a_low_rank_dim")) == (16, 8, None)


def test_layers_with_attention_are_refused() -> None:
    name = "model.layers.3.self_attn.q_proj.weight"
    with pytest.raises(ModelError, match=r"layers\.3\.attention\.\* has no mixtures of tokens"):
        prepare({}, {name: from_array(name, np.ones((4, 4), np.float32))})


def test_a_norm_of_heads_that_files_cannot_express_is_refused() -> None:
    assert head_size({"head_dim": 64, "norm_eps": 1e-5}) == 64
    with pytest.raises(ModelError, match=r"0\.00032 for the norm of heads"):
        head_size({"head_dim": 32, "norm_eps": 1e-5})


@pytest.mark.parametrize("line", ["1 '\\x00' 2", "2 '\\x00' 1", "1 '\\x00'", "1 x 1", "1 'a' 1 1"])
def test_other_lines_in_a_vocabulary_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(VocabularyError, match="line 1: "):
        vocabulary(tmp_path, ("rwkv",), {}, 300)


def test_a_vocabulary_without_a_template_gets_one(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("1 '\\n' 1\r\n2 b'\\xff' 1\n3 \"'\\\"\\\\\" 3\n", encoding="utf-8")
    found = vocabulary(tmp_path, ("rwkv",), {"bos_token_id": 2, "eos_token_id": 2}, 300)
    assert (found["tokenizer.chat_template"], found["tokenizer.ggml.bos_token_id"]) == (TEMPLATE, 0)
    assert [spelled_bytes(text) for text in found["tokenizer.ggml.tokens"][1:4]] == [b"\n", b"\xff", b"'\"\\"]
    with pytest.raises(VocabularyError, match="has a token 2, but the embedding only 2 rows"):
        vocabulary(tmp_path, ("rwkv",), {}, 2)


@pytest.mark.parametrize("seven", [False, True])
def test_recurrences_are_those_of_the_papers(seven: bool) -> None:
    g, (tokens, heads, size, width) = np.random.default_rng(0), (5, 2, 6, 16)
    v, y = g.standard_normal((tokens, heads, width), np.float32), np.empty((tokens, heads, width), np.float32)
    r, k, a, b = g.standard_normal((4, tokens, heads, size), np.float32)
    w, state = g.random((tokens, heads, size), np.float32), g.standard_normal((heads, size, width), np.float32)
    known, wanted = state.astype(np.float64), np.empty(y.shape)
    for t in range(tokens):
        if seven:
            answer = np.einsum("hs,hsw->hw", a[t], known)
            known = known * w[t, :, :, None] + k[t, :, :, None] * v[t, :, None] + b[t, :, :, None] * answer[:, None]
        wanted[t] = np.einsum("hs,hsw->hw", r[t], known)
        if not seven:
            known = known * w[t, :, :, None] + k[t, :, :, None] * v[t, :, None]
    if seven:
        wkv7_heads(v, r, k, w, a, b, state, y, 0, heads)
    else:
        wkv_heads(v, r, k, w, state, y, 0, heads)
    assert np.allclose(y, wanted, atol=1e-4)
    assert np.allclose(state, known, atol=1e-4)


def test_keys_that_do_not_fit_are_named(tmp_path: Path) -> None:
    checkpoints.build("rwkv7", tmp_path / "rwkv7")
    gguftools.convert(tmp_path / "rwkv7", tmp_path / "f32.gguf", "f32")
    with gguftools.open(tmp_path / "f32.gguf") as file:
        metadata = {name: file.metadata[name] for name in file.metadata}
        for key, value, problem in (
            ("wkv.head_size", None, "'rwkv7.wkv.head_size' is missing"),
            ("wkv.head_size", 96, "'rwkv7.wkv.head_size' is 96, which does not divide 128"),
            ("attention.gate_lora_rank", 8, r"time_mix_g1.weight' has shape \[16, 128\]"),
        ):
            changed = {**metadata, f"rwkv7.{key}": value}
            with pytest.raises(ModelError, match=problem):
                RunningModel({name: data for name, data in changed.items() if data is not None}, file.tensors)

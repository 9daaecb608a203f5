"""Models that run beside each other in one process keep their own threads and precision."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from quants.errors import OptionError
from runtime.kernels import blas, threads
from runtime.model import RunningModel
from tests.one_perplexity import perplexity

RNG = np.random.default_rng(5)
WIDTH, INNER, VOCABULARY = 128, 384, 700
KEYS = {
    "embedding_length": WIDTH,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
}
METADATA = {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in KEYS.items()}
LAYER = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // 2, WIDTH),
    "attn_v": (WIDTH // 2, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_gate": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
SETTINGS = [
    {"threads": 1, "precision": "float32"},
    {"threads": 2, "precision": "llama.cpp"},
    {"threads": 3, "precision": "float32"},
]


def stored(name: str, rows: int, width: int) -> Tensor:
    raw = encode("Q8_0", RNG.standard_normal((rows, width)).astype(np.float32) / np.sqrt(width, dtype=np.float32))
    return Tensor(name, (rows, width), format_named("Q8_0"), lambda start, stop: raw[start:stop])


TENSORS = {"token_embd.weight": stored("token_embd.weight", VOCABULARY, WIDTH)} | {
    name: from_array(name, np.ones(WIDTH, np.float32))
    for name in ("output_norm.weight", *(f"blk.{i}.{part}_norm.weight" for i in range(2) for part in ("attn", "ffn")))
}
TENSORS |= {
    name: stored(name, *shape) for i in range(2) for part, shape in LAYER.items() for name in [f"blk.{i}.{part}.weight"]
}
TOKENS = RNG.integers(0, VOCABULARY, 4 * 300).tolist()


def measured(settings) -> list[float]:
    model = RunningModel(METADATA, TENSORS, **settings)
    return perplexity(TOKENS, model.lazy_logits, 300, bos=None, batch=2).chunks


def test_measurements_beside_each_other_do_not_interfere():
    """Each as when it is alone, to the last bit; and each asks for threads of its own number."""
    alone = [measured(settings) for settings in SETTINGS]
    assert len({chunks[-1] for chunks in alone}) > 1  # rounding shows
    before = [library.num_threads for library in blas.libraries()]
    with ThreadPoolExecutor(len(SETTINGS)) as pool:
        beside = list(pool.map(measured, SETTINGS * 4))
    assert beside == alone * 4
    assert [library.num_threads for library in blas.libraries()] == before


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_part_of_a_pass_uses_other_threads_than_its_own(monkeypatch, count):
    asked = []
    monkeypatch.setattr(threads, "_pool", lambda size: asked.append(size) or ThreadPoolExecutor(size))
    assert np.isfinite(RunningModel(METADATA, TENSORS, threads=count).logits(TOKENS[:600])).all()
    assert set(asked) == ({count - 1} if count > 1 else set())


def test_fewer_threads_than_one():
    with pytest.raises(OptionError, match="0 threads cannot work"):
        RunningModel(METADATA, TENSORS, threads=0)

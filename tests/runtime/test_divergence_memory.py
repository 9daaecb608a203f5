"""Memory of comparing two models over a large vocabulary: it does not grow with the window's logits."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import sys
import numpy as np
from quants import from_array
from runtime.evaluation.divergence import RunningLogits, divergence
from runtime.model import RunningModel
from runtime.evaluation.windows import Window

n_ctx, vocabulary, width = int(sys.argv[1]), 248_320, 64
rng = np.random.default_rng(0)

def made(noise):
    half = np.random.default_rng(1)
    def weight(name, *shape):
        values = half.standard_normal(shape) / 8 + noise * rng.standard_normal(shape) / 8
        return from_array(name, values.astype(np.float16))
    tensors = [weight("token_embd.weight", vocabulary, width)]
    for i in range(2):
        shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
                  "ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}
        tensors += [weight(f"blk.{i}.{name}.weight", *shape) for name, shape in shapes.items()]
        tensors += [from_array(f"blk.{i}.{name}.weight", np.ones(64, np.float32)) for name in ("attn_norm", "ffn_norm")]
    tensors.append(from_array("output_norm.weight", np.ones(64, np.float32)))
    metadata = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
                "llama.feed_forward_length": 128, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
                "llama.context_length": n_ctx, "llama.rope.dimension_count": 32, "llama.vocab_size": vocabulary,
                "llama.attention.layer_norm_rms_epsilon": 1e-5}
    return RunningModel(metadata, {tensor.name: tensor for tensor in tensors}, threads=2)

inputs, scored = rng.integers(0, vocabulary, n_ctx), np.arange(n_ctx // 2, n_ctx - 1)
windows = [Window(inputs, scored, inputs[scored + 1])]
base, other = (RunningLogits(made(noise).lazy_logits, windows) for noise in (0, 0.05))
found = divergence(windows, base, {"other": other}, threads=2)
# of this program alone: ru_maxrss also knows the process that it was forked from
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak, len(found.base), found.apart["other"][:, 0].mean())
"""


def peak(n_ctx: int) -> int:
    """Bytes that a process held at most, which compared so long a window."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(n_ctx)], capture_output=True, text=True, check=True)
    kilobytes, predictions, kl = done.stdout.split()
    assert int(predictions) == n_ctx - n_ctx // 2 - 1
    assert float(kl) > 0
    return 1024 * int(kilobytes)


def test_logits_of_a_window_are_never_there_at_once():
    assert peak(1024) < 0.9e9  # its logits alone are 1 GB of float32, of each model


@pytest.mark.slow
def test_ninety_thousand_tokens_take_less_than_two_gigabytes():
    assert peak(90_112) < 2e9  # its logits would be 89 GB

from __future__ import annotations

import math

import numpy as np
import pytest

from runtime.rope import RopeScaling, apply_rope, attention_factor, inverse_frequencies, rope_table, yarn_frequencies


@pytest.mark.parametrize("kind", ["adjacent", "halves"])
@pytest.mark.parametrize("dim", [8, 6])
def test_rotation_is_a_complex_product(kind, dim):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 3, 8)).astype(np.float32)
    cos, sin = rope_table(dim, 100.0, None, None, np.arange(5, 45))
    pairs = (
        x[..., :dim].reshape(40, 3, dim // 2, 2)
        if kind == "adjacent"
        else (x[..., :dim].reshape(40, 3, 2, dim // 2).swapaxes(-1, -2))
    )
    angle = np.outer(np.arange(5, 45), 100.0 ** (-np.arange(0, dim, 2) / dim))
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)[:, None]
    got = apply_rope(x.copy(), cos, sin, kind)
    again = np.stack([turned.real, turned.imag], -1)
    want = again.reshape(40, 3, dim) if kind == "adjacent" else again.swapaxes(-1, -2).reshape(40, 3, dim)
    np.testing.assert_allclose(got[..., :dim], want, atol=1e-5)
    np.testing.assert_array_equal(got[..., dim:], x[..., dim:])


def test_rotation_of_a_view():
    fused = np.random.default_rng(0).standard_normal((6, 4, 16)).astype(np.float32)
    cos, sin = rope_table(8, 1e4, None, None, np.arange(6))
    want = apply_rope(fused[:, 1:3, 4:12].copy(), cos, sin, "halves")
    np.testing.assert_array_equal(apply_rope(fused[:, 1:3, 4:12], cos, sin, "halves"), want)


def test_linear_and_factors():
    positions = np.arange(100)
    cos, sin = rope_table(16, 1e4, RopeScaling("linear", 4.0), None, positions * 4)
    plain_cos, plain_sin = rope_table(16, 1e4, None, None, positions)
    np.testing.assert_allclose(cos, plain_cos, atol=1e-5)
    np.testing.assert_allclose(sin, plain_sin, atol=1e-5)
    cos, _ = rope_table(16, 1e4, None, np.full(8, 4, np.float32), positions * 4)
    np.testing.assert_allclose(cos, plain_cos, atol=1e-5)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    scaling = RopeScaling("yarn", 8.0, 4096)
    plain, mixed = inverse_frequencies(128, 1e4), yarn_frequencies(128, 1e4, scaling)
    np.testing.assert_allclose(mixed[:20], plain[:20])
    np.testing.assert_allclose(mixed[-18:], plain[-18:] / 8, rtol=1e-6)
    assert (np.diff(mixed / plain) <= 0).all()


def test_attention_factors():
    assert attention_factor(None) == 1
    assert attention_factor(RopeScaling("linear", 4)) == 1
    assert attention_factor(RopeScaling("yarn", 32)) == pytest.approx(0.1 * math.log(32) + 1)
    assert attention_factor(RopeScaling("yarn", 40, mscale=1.0, mscale_all_dim=1.0)) == 1
    assert attention_factor(RopeScaling("longrope", 4, attn_factor=1.19)) == 1.19
    cos, sin = rope_table(8, 1e4, RopeScaling("longrope", attn_factor=2.0), None, [3])
    np.testing.assert_allclose(cos**2 + sin**2, 4, rtol=1e-6)


def test_dynamic_changes_only_long_texts():
    scaling = RopeScaling("dynamic", 2.0, 64)
    plain = rope_table(16, 1e4, None, None, np.arange(64))
    np.testing.assert_array_equal(rope_table(16, 1e4, scaling, None, np.arange(64))[0], plain[0])
    base = 1e4 * (2 * 128 / 64 - 1) ** (16 / 14)
    want = rope_table(16, base, None, None, np.arange(128))
    np.testing.assert_array_equal(rope_table(16, 1e4, scaling, None, np.arange(128))[0], want[0])


@pytest.mark.verify
@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        ({"rope_type": "linear", "factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"rope_type": "dynamic", "factor": 4.0}, RopeScaling("dynamic", 4.0, 2048)),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, RopeScaling("yarn", 4.0, 512)),
        (
            {
                "rope_type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 0.9,
            },
            RopeScaling("yarn", 32.0, 512, 1.0, 16.0, 2.0, False, 0.7, 0.9),
        ),
    ],
)
def test_transformers_agrees(parameters, scaling):
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 1e4, **parameters},
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), seq_len=3000)
    cos, sin = rope_table(64, 1e4, scaling, None, np.arange(3000))
    angle = np.outer(np.arange(3000, dtype=np.float32), theirs.numpy()).astype(np.float64)
    np.testing.assert_allclose(cos, np.cos(angle) * factor, atol=2e-3)
    np.testing.assert_allclose(sin[:64], (np.sin(angle) * factor)[:64], atol=2e-5)

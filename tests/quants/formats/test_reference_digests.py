"""Bytes on far more, and nastier, input than the golden blocks: digests of what ggml's library wrote (ggml 0.25.3).

Zero weights, zero groups and ties are where a search that leaves something out would first go wrong.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import quants

KINDS = ["gauss", "heavy", "sparse", "ties", "gaps", "scales", "powers"]
# By format and importance: the first 8 hex digits of the sha256 of the encoded rows of each kind.
DIGESTS = {
    ("IQ1_S", "chi2"): "349b3087 ad3944fd 3e06dbb9 3d789b5e def8c546 e5fa66ba 02e3390f",
    ("IQ1_S", "zeros"): "de579070 c9c3a2c6 78969f64 710d3e07 df129a46 0103e907 e0c08d24",
    ("IQ1_M", "none"): "7de198ef 6d428ba0 c8ef0fcf c34f2036 342c79bf e3058bcc 7a61111e",
    ("IQ1_M", "chi2"): "e2562890 4fc5e614 72243d1e 8d0ba005 7765dce7 fd6279d3 00bbc663",
    ("IQ1_M", "zeros"): "cc612b52 50409f46 9d30e06e 7137fc65 264b20b5 ade6be8d bd5ad14c",
    ("IQ2_XXS", "chi2"): "44722454 ad41ca19 51269b31 f503eff9 712b950e f485f7d8 c430c491",
    ("IQ2_XXS", "zeros"): "a526f535 f23d0e52 8907a7d2 2ae87cda d8c1f0aa ed1c30b4 5ff505aa",
    ("IQ2_XS", "chi2"): "9682c791 951b3c38 379cedac 50d495f7 7de9b059 35d9acd9 3154be87",
    ("IQ2_XS", "zeros"): "2140eda2 7a7c2099 28dea709 84e0b4fa 98429e0d 6cc4e77c 794dca04",
    ("IQ2_S", "none"): "b474e6eb b6dd8de3 4b2ca99b f171cf09 137f6114 eb3499ff 07ad4cc7",
    ("IQ2_S", "chi2"): "18199286 c789053b b64896eb 6c3cf0a1 42409613 7adc8a6a fcfc42ee",
    ("IQ2_S", "zeros"): "b3bbb254 73369450 9ee16d57 de6c461b a5649d79 1fcfe162 b5792b6b",
    ("IQ3_XXS", "none"): "e19a6ef9 e3e6cdd0 9901f25d e7d2313d ee99396e a6ad3900 57cc6784",
    ("IQ3_XXS", "chi2"): "ded1914a 93563b4a be484ed4 8743367f 1036de2a 5bfba0c8 596d627f",
    ("IQ3_XXS", "zeros"): "0f216c66 2d4362d0 18013f0f fe77594c 4610a759 7044a895 cea94a2c",
    ("IQ3_S", "none"): "64b05b12 5f3e02c3 32886ff3 37d99165 062b5eaa d9ecde55 10765f18",
    ("IQ3_S", "chi2"): "62b3e5bb ac5935ae bba370c2 f93ff4ac 54498afe 7b7c61bf c7f89c7b",
    ("IQ3_S", "zeros"): "3357342d 87d285a9 9d945898 f01b6c3b fd669c94 1dd20844 77a8745e",
    ("IQ4_NL", "none"): "f893bef2 b7c5b8c0 501a26e9 ee4e93f7 bcaffd93 f53f0f6f 8647a111",
    ("IQ4_NL", "chi2"): "f9c717ed 60033acb 6a0953d6 69161d36 4cf15089 a438e8ac 9f5e00b0",
    ("IQ4_NL", "zeros"): "ea81521f e2b0d091 5cdc0e93 12d57ab2 a92690cd 3f2de14a c9917640",
    ("IQ4_XS", "none"): "ee844165 435d536b fe381359 b613daa1 216b9887 2c21b2fe 400f900d",
    ("IQ4_XS", "chi2"): "9fa0de3b 1407281d 330c6c17 400b5344 794f3f9c 32df24be 88c1ecf7",
    ("IQ4_XS", "zeros"): "1c5071d0 dc7b8e98 14df2a5c 37a07b15 e56039ad 1543e682 fee0a176",
    ("Q1_0", "none"): "03cf6412 29d860d9 ff19b880 12f439d2 a66209d7 0b5343e3 ee632e71",
    ("TQ1_0", "none"): "ef6c91ec ac9956b2 ef4a0847 6041f897 620b6435 b93a2b7f 5852171e",
    ("TQ2_0", "none"): "e21a3840 b28f65d9 60092a9c 3a307936 baf801d9 5f050d13 af6d8029",
    ("MXFP4", "none"): "1ca1d01a ba7a16f7 a6732096 d8ee65ab e53548f2 a658532f bbf82c3d",
    ("NVFP4", "none"): "119a254f 8161adf5 52597e77 a3ff8ee2 d9a75c8a 369df724 7c8aefd1",
}


def drawn(kind: str) -> np.ndarray:
    """96 x 512 values; RandomState's streams are frozen, so that digests hold for every numpy."""
    random = np.random.RandomState(sum(kind.encode()))
    shape = (96, 512)
    normal = random.standard_normal(shape)
    return {
        "gauss": lambda: normal * 0.02,
        "heavy": lambda: normal * normal * normal * 0.05,
        "sparse": lambda: normal * (random.uniform(size=shape) < 0.1),
        "ties": lambda: random.randint(-8, 9, shape),
        "gaps": lambda: normal * np.repeat(random.randint(0, 2, (96, 32)), 16, 1),
        "scales": lambda: normal * 2.0 ** np.repeat(random.randint(-30, 13, (96, 16)), 32, 1),
        "powers": lambda: 2.0 ** random.randint(-12, 3, shape) * (1 - 2.0**-24 * random.randint(0, 2, shape)),
    }[kind]().astype(np.float32)


def importance(kind: str) -> np.ndarray | None:
    random = np.random.RandomState(7)
    square, alive = random.standard_normal(512) ** 2, random.uniform(size=512) < 0.7
    weights = {"chi2": square + 1e-3, "zeros": square * square * square * alive}
    return weights[kind].astype(np.float32) if kind in weights else None


@pytest.mark.parametrize(("name", "weights"), DIGESTS)
def test_encode_gives_the_bytes_of_the_library(name: str, weights: str):
    encoded = {kind: quants.encode(name, drawn(kind), importance(weights)) for kind in KINDS}
    digests = {kind: hashlib.sha256(raw.tobytes()).hexdigest()[:8] for kind, raw in encoded.items()}
    assert digests == dict(zip(KINDS, DIGESTS[name, weights].split(), strict=True))


@pytest.mark.parametrize("name", sorted({name for name, _ in DIGESTS}))
def test_rows_are_independent_of_their_neighbours(name: str):
    weights = importance("chi2") if quants.format_named(name).uses_importance else None
    rows = drawn("gauss")[:19]
    together = quants.encode(name, rows, weights)
    for r in (0, 7, 18):
        assert np.array_equal(quants.encode(name, rows[r : r + 1], weights), together[r : r + 1])

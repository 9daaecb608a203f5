"""Files that lack a key mean what llama.cpp takes them to mean: each key of each family, left out in turn.

llama.cpp's logits are recorded (see `tests.absent_keys`); where the runtime computes something else, its own table of
deliberate differences has to say so.
"""

from __future__ import annotations

import pytest

from archs.registry import architectures
from tests import absent_keys
from tests.absent_keys import Compared, compare

# Files that llama.cpp loads and the runtime refuses, by what is left out, and why that is right.
REFUSED = {
    "attention.layer_norm_rms_epsilon": "llama.cpp goes on with 0; no file lacks it",
    "attention.layer_norm_epsilon": "llama.cpp goes on with 0; no file lacks it",
    "attention.compress_ratios": "what is left does not say which layers compress",
}

# Architectures without a model here, and why.
NOT_COMPARED = {
    "chameleon": "llama.cpp hides 8,192 logits, and vocabularies here are small",
    "clef": "llama.cpp gives what its head decides",
    "opt": "llama.cpp has no such models",
    "plamo2": "llama.cpp does not come to an end where no head rotates",
    "qwen3tts": "a codebook's numbers are not finite in llama.cpp",
}


@pytest.mark.parametrize("name", sorted(absent_keys.descriptions()))
def test_model_without_each_key(name: str) -> None:
    found = list(compare(absent_keys.descriptions()[name], absent_keys.cases()[name]))
    assert found[0].verdict in ("equal", "on purpose"), described(found[0])
    assert not [described(each) for each in found if each.verdict in ("differs", "crashed")]
    assert not [described(each) for each in found if each.verdict == "refused here" and not may_be_refused(each)]


def described(found: Compared) -> str:
    return f"{found.case.name}: {found.verdict}, {found.difference:.1e} {found.problem}"


def may_be_refused(found: Compared) -> bool:
    return any(key.endswith(f".{allowed}") for key in found.case.drop for allowed in REFUSED)


def test_every_architecture_is_compared() -> None:
    compared = {each.architecture for each in absent_keys.descriptions().values()}
    assert {each.name for each in architectures()} - compared == set(NOT_COMPARED)

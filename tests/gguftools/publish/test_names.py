"""Names of published files: what the hub and llama-server make of them."""

import pytest

from gguftools.publish.names import PublishedName, hub_label, problems, role_of, safe_name


@pytest.mark.parametrize(
    ("file", "label"),
    [  # made by the hub's own rule
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("Q8_0/Qwen3-8B-Q8_0-00001-of-00003.gguf", "Q8_0"),
        ("model-BF16.gguf", "BF16"),
        ("model.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("Llama-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-Q4_K_L.gguf", None),
        ("model-Q5_K_L.gguf", None),
        ("model-Q6_K_L.gguf", "Q6_K_L"),
        ("model-Q2_K_L.gguf", "Q2_K_L"),
        ("model-IQ2_KS.gguf", "Q2_K"),
        ("model-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("f16-tuned-Q4_0.gguf", "Q4_0"),
        ("model-f16.gguf", "F16"),
        ("model.gguf", None),
    ],
)
def test_the_hubs_label(file: str, label: str | None) -> None:
    assert hub_label(file) == label


def test_names_by_role() -> None:
    assert PublishedName("Qwen3-8B", "Q4_K_M").file == "Qwen3-8B-Q4_K_M.gguf"
    assert PublishedName("Qwen3-8B", "F16", "mmproj").file == "mmproj-Qwen3-8B-F16.gguf"
    assert PublishedName("Qwen3-8B", "Q8_0", "mtp").file == "mtp-Qwen3-8B-Q8_0.gguf"
    assert PublishedName("Qwen3-8B", "", "imatrix").file == "Qwen3-8B-imatrix.gguf"
    assert [role_of(PublishedName("a", "F16", role).file) for role in ("model", "mmproj", "mtp", "imatrix")] == [
        "model",
        "mmproj",
        "mtp",
        "imatrix",
    ]
    assert role_of("eagle3-model-F16.gguf") is None


def test_problems_are_named() -> None:
    assert not problems("m-Q4_K_M.gguf", "Q4_K_M")
    assert "no label" in problems("m-Q4_K_L.gguf", "Q4_K_L")[0]
    assert "as Q4_K_S, not mine" in problems("m-Q4_K_S.gguf", "mine")[0]
    assert "does not take" in problems("imatrix-Q8_0.gguf", "Q8_0")[0]


def test_names_are_safe_in_a_shell() -> None:
    assert safe_name(" My model (v2)/x ") == "My-model-v2-x"
    assert safe_name("../..") == "model"

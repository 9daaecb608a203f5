"""The lists of formats and architectures as Python results."""

from __future__ import annotations

import gguftools


def test_formats():
    known = {each.name: each for each in gguftools.formats()}
    assert known["Q8_0"].as_dict() == {
        "name": "Q8_0",
        "ggml_type": 8,
        "bits_per_weight": 8.5,
        "block": 32,
        "block_bytes": 34,
        "importance": "ignored",
    }
    assert (known["IQ2_XXS"].importance, known["Q4_K"].importance) == ("needed", "used")
    assert {"F32", "F16", "BF16"} <= set(known)
    assert not {"F64", "I32", "Q8_K"} & set(known)


def test_architectures():
    by_class = {hf_class: each for each in gguftools.architectures() for hf_class in each.hf_classes}
    found = by_class["LlamaForCausalLM"]
    assert found.name == "llama"
    assert found.as_dict() == {
        "name": "llama",
        "hf_classes": found.hf_classes,
        "vocabularies": found.vocabularies,
        "encoders": (),
        "refused": (),
        "exports": True,
        "export_obstacle": None,
        "draft": False,
        "running_encoders": (),
        "exporting_encoders": (),
        "wrapper": False,
        "image": False,
        "title": "",
        "readers": (),
    }
    assert by_class["Gemma3ForConditionalGeneration"].encoders == ("Gemma3ForConditionalGeneration",)
    assert "sentencepiece" in found.vocabularies
    assert by_class["Eagle3Speculator"].draft

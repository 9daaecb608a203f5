"""E10: Phi-3's tokenizer is exported as tokenizer.model alone, which transformers reads without the space in front."""

from __future__ import annotations

import pytest

from .exports import exported

TEXTS = ("It is a truth universally acknowledged, 12345!", "a", "don't <s> wörld", "<|assistant|>\nHi<|end|>")


@pytest.mark.parametrize("entry", ["phi3", "phimoe"])
def test_texts_are_cut_alike(entry, tmp_path):
    from transformers import AutoTokenizer

    exported(entry, tmp_path)
    assert (tmp_path / "back" / "tokenizer.model").is_file()
    ours, theirs = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("back", entry))
    for text in TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text

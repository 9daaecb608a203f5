"""Exported tokenizers cut texts, in transformers, as the original does."""

from __future__ import annotations

import json

import pytest

from .exports import exported

FALCON_TEXTS = ("It is a truth universally acknowledged, 12345!", "  wörld\n\n def f(x): return x**2")
PHI3_TEXTS = ("It is a truth universally acknowledged, 12345!", "a", "don't <s> wörld", "<|assistant|>\nHi<|end|>")


@pytest.mark.parametrize("entry", ["falcon-7b-style", "falcon-40b-style", "falcon-rw-style"])
def test_bytes_become_characters_once(entry, tmp_path):
    exported(entry, tmp_path)
    steps = json.loads((tmp_path / "back" / "tokenizer.json").read_text(encoding="utf-8"))["pre_tokenizer"]
    assert [step["type"] for step in steps["pretokenizers"]].count("ByteLevel") == 1


def test_texts_of_falcon_are_cut_alike(tmp_path):
    from transformers import AutoTokenizer

    exported("falcon-7b-style", tmp_path)
    ours, theirs = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("back", "falcon-7b-style"))
    for text in FALCON_TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]


@pytest.mark.parametrize("entry", ["phi3", "phimoe"])
def test_texts_of_phi3_are_cut_alike(entry, tmp_path):
    from transformers import AutoTokenizer

    exported(entry, tmp_path)
    assert (tmp_path / "back" / "tokenizer.model").is_file()
    ours, theirs = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("back", entry))
    for text in PHI3_TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text

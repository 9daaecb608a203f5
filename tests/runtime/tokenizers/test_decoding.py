"""Decode tokens that are listed outside the vocabulary; refuse text that is not Unicode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quants.errors import VocabularyError

from ...archs.vocab.small_tokenizers import tokenizer


def with_extra_ids(content: dict[str, Any]) -> None:
    tokens = {str(300 + i): {"content": f"<extra_id_{i}>", "special": True} for i in range(9)}
    content["added_tokens_decoder"] = tokens


def test_extra_ids_of_t5(tmp_path: Path) -> None:
    found = tokenizer("t5", tmp_path, {"tokenizer_config.json": with_extra_ids})
    assert found.decode([308]) == "<extra_id_8>"
    ids = found.encode("one <extra_id_8> two", add_special=False, parse_special=True)
    assert 308 in ids
    assert "<extra_id_8>" in found.decode(ids)


def test_the_mask_of_xlm_roberta(tmp_path: Path) -> None:
    found = tokenizer("xlm-roberta", tmp_path)
    (number,) = found.encode("<mask>", add_special=False, parse_special=True)
    assert found.decode([number]) == "<mask>"


@pytest.mark.parametrize("name", ["bpe", "wordpiece", "t5", "spm"])
def test_half_a_pair_of_utf16(name: str, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"U\+D800, at character 3"):
        tokenizer(name, tmp_path, rows=400).encode("abc\ud800def")

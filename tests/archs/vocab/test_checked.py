"""Tokenizer files read by type: what is taken as it is, and what is no vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from archs.vocab.checked import check_ids, read_tokenizer, read_tokenizer_config
from archs.vocab.tokens import missing_bytes
from quants.errors import VocabularyError

MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}


def test_what_is_read_stays_as_it_is() -> None:
    tokenizer = {"model": MODEL, "added_tokens": [{"id": 3, "content": "<x>", "special": True}], "version": "1.0"}
    assert read_tokenizer(tokenizer, "tokenizer.json") == tokenizer
    unigram = {"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1]], "unk_id": 0}}
    assert read_tokenizer(unigram, "tokenizer.json") == unigram
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "add_bos_token": True,
        "added_tokens_decoder": {"0": {"content": "<s>"}},
        "extra_special_tokens": {"image_token": "<i>"},
        "chat_template": [{"name": "default", "template": "{{ x }}"}],
        "model_max_length": 1e30,
    }
    assert read_tokenizer_config(config, "tokenizer_config.json") == config
    assert read_tokenizer({}, "tokenizer.json") == {}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({**MODEL, "merges": ["a c"]}, r'merge 0 is "a c", but "c" is no token'),
        ({**MODEL, "merges": [["b", "a"]]}, '"ba" is no token'),
        ({**MODEL, "merges": None}, "a list of pairs was expected"),
        ({**MODEL, "merges": [["a", 1]]}, "two tokens were expected"),
        ({**MODEL, "vocab": {"": 0}}, "an empty vocabulary"),
        ({"type": "Unigram", "vocab": []}, "an empty vocabulary"),
        ({"type": "Unigram", "vocab": [["a", float("nan")]]}, "a text with its score was expected"),
        ({"type": "Unigram", "vocab": [["a"]]}, "a text with its score was expected"),
        ({"type": "WordPiece", "vocab": "words"}, "tokens with their ids were expected"),
        ({"type": "WordPiece"}, "tokens with their ids were expected"),
        ({"type": 3}, '"model.type" is 3'),
    ],
)
def test_models_that_are_none(model: dict[str, Any], message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        read_tokenizer({"model": model}, "tokenizer.json")


def test_ids() -> None:
    assert check_ids({"a": 0, "b": 0}, "added_tokens.json") == {"a": 0, "b": 0}
    with pytest.raises(VocabularyError, match='tokens "a" and "b" have one id, 0'):
        check_ids({"a": 0, "b": 0}, "vocab.json", unique=True)
    for wrong in (-1, 2**31, 1.0, True, "0", None):
        with pytest.raises(VocabularyError, match='token "b" has the id'):
            check_ids({"a": 0, "b": wrong}, "vocab.json")


def test_bytes_without_a_token() -> None:
    every = [f"<0x{byte:02X}>" for byte in range(256)]
    assert missing_bytes(every) == []
    assert missing_bytes([*every[:9], "\t", *every[10:]]) == []
    assert missing_bytes([*every[:65], "A", *every[66:]]) == [65]
    assert missing_bytes(["a", "b"]) == []

from __future__ import annotations

import base64
import json
import string
from pathlib import Path
from typing import Any

import pytest

from archs.vocab import vocabulary
from archs.vocab.pretokenizer import byte_characters, pre_tokenizer
from quants.errors import VocabularyError
from runtime.tokenizer import tokenizer_from_metadata


def ranked(shared: Path) -> dict[bytes, int]:
    """A real vocabulary as byte strings: that of the zoo's gpt4o."""
    content = json.loads((shared / "zoo/tokenizers/gpt4o/tokenizer.json").read_text(encoding="utf-8"))
    values = {character: byte for byte, character in byte_characters().items()}
    return {bytes(values[c] for c in text): rank for text, rank in content["model"]["vocab"].items()}


def cases(shared: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared / "zoo/tokenizers/gpt4o/encodings.json").read_text("utf-8"))
    return [case for case in found if "<|" not in case["text"]]


def test_tiktoken_file(shared: Path, tmp_path: Path) -> None:
    lines = [f"{base64.b64encode(word).decode()} {rank}" for word, rank in ranked(shared).items()]
    (tmp_path / "tokenizer.model").write_text("\n".join(lines) + "\n")
    added = {"595": {"content": "<|im_end|>", "special": True}}
    configured = {"tokenizer_class": "TikTokenTokenizer", "eos_token": "<|im_end|>", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(configured))
    found = vocabulary(tmp_path, ("sentencepiece", "bpe"), {}, 600)
    assert found["tokenizer.ggml.pre"] == "kimi-k2"
    assert found["tokenizer.ggml.eos_token_id"] == 595
    found = vocabulary(tmp_path, ("bpe",), {}, 600, pre="gpt-4o")
    tokenizer = tokenizer_from_metadata(found)
    for case in cases(shared):
        assert tokenizer.encode(case["text"], add_special=False) == case["hf"], case["text"]


def test_tekken(shared: Path, tmp_path: Path) -> None:
    words = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for word, rank in ranked(shared).items()
    ]
    settings = {
        "pattern": pre_tokenizer("tekken").steps[0],
        "default_vocab_size": 20 + len(words) - 1,
        "default_num_special_tokens": 20,
    }
    (tmp_path / "tekken.json").write_text(json.dumps({"config": settings, "vocab": words}))
    found = vocabulary(tmp_path, ("bpe",), {"bos_token_id": 1, "eos_token_id": 2}, 620)
    assert found["tokenizer.ggml.pre"] == "tekken"
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.tokens"][:4] == ["<unk>", "<s>", "</s>", "[INST]"]
    assert found["tokenizer.ggml.tokens"][19:22] == ["<SPECIAL_19>", "!", '"']
    assert found["tokenizer.ggml.tokens"][20 + len(words) - 1].startswith("[PAD")
    tokenizer = tokenizer_from_metadata(found)
    for case in cases(shared):
        if "'" in case["text"] or any(digit in case["text"] for digit in string.digits):
            continue  # tekken cuts those in its own way
        assert tokenizer.encode(case["text"]) == [1, *(number + 20 for number in case["hf"])], case["text"]


def test_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_text("IQ== 0\nI?== 1\n")
    with pytest.raises(VocabularyError, match=r"qwen\.tiktoken is damaged: line 2"):
        vocabulary(tmp_path, ("bpe",), {}, 600)


def test_a_word_that_no_merges_make_has_none(tmp_path: Path) -> None:
    words = [b"a", b"b", b"c", b"abc", b"bc"]  # "bc" comes too late to make "abc"
    lines = [f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words)]
    (tmp_path / "x.tiktoken").write_text("\n".join(lines))
    found = vocabulary(tmp_path, ("bpe",), {}, 8, pre="gpt-4o")
    assert found["tokenizer.ggml.merges"] == ["b c"]
    assert tokenizer_from_metadata(found).encode("abc") == [3]

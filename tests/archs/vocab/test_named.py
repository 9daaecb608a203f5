"""Tokens whose names say what they are; llama.cpp b11434 gave the same types and ends for these lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from archs.vocab.listed import TokenList
from runtime.tokenizer import end_ids, tokenizer_from_metadata
from tests.archs.vocab.lists import metadata_of

NORMAL, CONTROL, USER = 1, 3, 4


def typed(tokens: list[str], types: list[int], **keys: Any) -> TokenList:
    return TokenList(metadata_of("gpt2", tokens, merges=[], token_type=np.array(types, np.int32), **keys))


@pytest.mark.parametrize("name", ["<|im_end|>", "<end_of_turn>", "<|eot_id|>", "[EOT]", "<fim_prefix>", "<|file_sep|>"])
def test_chats_of_tunes_with_ordinary_tokens_are_not_cut(name: str) -> None:
    tokens = ["a", "b", *sorted(set(name)), name]
    found = tokenizer_from_metadata(
        metadata_of("gpt2", tokens, merges=[], pre="gpt-2", token_type=[NORMAL] * len(tokens))
    )
    row = len(tokens) - 1
    assert found.encode(f"a{name}b", parse_special=True) == [0, row, 1]
    assert row not in found.encode(f"a{name}b")
    assert found.decode([0, row], skip_special=True) == "a"
    assert row in found.control_ids


def test_a_token_that_merges_make_is_ordinary_text() -> None:
    metadata = metadata_of(
        "gpt2", ["</", "s>", "</s>", "<", "/", "s", ">"], merges=["< /", "s >", "</ s>"], pre="gpt-2"
    )
    assert TokenList(metadata).types[2] == NORMAL
    assert TokenList(metadata | {"tokenizer.ggml.merges": ["< /"]}).types[2] == CONTROL


def test_the_names_of_gpt_oss_are_always_shown() -> None:
    names = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"]
    tokens = typed(names, [CONTROL] * 7)
    assert tokens.types.tolist() == [USER] * 5 + [CONTROL] * 2
    assert end_ids(tokens) == (5, 6)
    assert end_ids(typed(["<|end|>", "<|flush|>", "<|calls|>"], [CONTROL] * 3)) == (1, 2)
    assert end_ids(typed(["<|end|>", "<|return|>"], [CONTROL] * 2)) == (0, 1)


def test_an_html_tag_is_one_beside_gemma_4s_tokens() -> None:
    tokens = typed(["</s>", "<|tool_response>"], [CONTROL] * 2)
    assert (tokens.types.tolist(), end_ids(tokens)) == ([NORMAL, CONTROL], (1,))


def test_types_stay_as_they_are_stored() -> None:
    tokens = typed(["<|im_end|>", "a"], [NORMAL] * 2)
    assert (tokens.types.tolist(), tokens.stored_types.tolist()) == ([CONTROL, NORMAL], [NORMAL] * 2)


@pytest.mark.parametrize(
    ("keys", "text", "ids"),
    [
        ({"general.name": "Phi-3 mini"}, "<x> a<|endoftext|> a", [2, 0, 4, 1, 0]),
        ({"general.name": "phi 3"}, "<x> a<|endoftext|> a", [2, 1, 0, 4, 1, 0]),
        ({"tokenizer.ggml.pre": "jina-v2-de"}, "a <mask> a", [0, 3, 1, 0]),
        ({"general.architecture": "jina-bert-v3"}, "a <mask> a", [0, 3, 1, 0]),
        ({"general.name": "Modern-BERT"}, "a [MASK] a", [0, 5, 1, 0]),
        ({"general.name": "Modern-BERT", "tokenizer.huggingface.added_tokens": "[]"}, "a [MASK] a", [0, 1, 5, 1, 0]),
    ],
)
def test_white_space_that_special_tokens_take_along_by_a_models_name(
    keys: dict[str, Any], text: str, ids: list[int]
) -> None:
    tokens = ["a", "Ġ", "<x>", "<mask>", "<|endoftext|>", "[MASK]"]
    types = np.array([1, 1, 3, 3, 3, 3], np.int32)
    metadata = metadata_of("gpt2", tokens, merges=[], pre="gpt-2", token_type=types) | keys
    assert tokenizer_from_metadata(metadata).encode(text, add_special=False, parse_special=True) == ids

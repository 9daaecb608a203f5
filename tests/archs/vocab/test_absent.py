"""Vocabularies that lack keys, as files of 2023 and 2024 do; the ids are those that llama.cpp b11434 gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from archs.metadata import Metadata
from archs.vocab.absent import IDS, assumed
from archs.vocab.listed import TokenList
from gguftools.inspection.vocabulary_check import check_vocabulary
from gguftools.metadata.chat_templates import special_texts
from runtime.tokenizer import Tokenizer, tokenizer_from_metadata
from tests.archs.vocab.lists import metadata_of

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "▁a", "ab", "▁ab"]
WORDS = [*(f"[unused{i}]" for i in range(100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a", "b"]


def key(name: str) -> str:
    return f"tokenizer.ggml.{name}"


def llama(**keys: Any) -> Tokenizer:
    scores = np.array([0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], np.float32)
    types = np.array([2, 3, 3] + [6] * 256 + [1] * 6, np.int32)
    return tokenizer_from_metadata(metadata_of("llama", PIECES, scores=scores, token_type=types, **keys))


def bert(**keys: Any) -> Tokenizer:
    types = np.array([1] * 100 + [3] * 4 + [1, 1], np.int32)
    return tokenizer_from_metadata(metadata_of("bert", WORDS, token_type=types, **keys))


def test_ids_of_llama_without_keys() -> None:
    found = llama()
    assert (found.bos, found.eos, found.add_bos, found.add_eos, found.end_ids) == (1, 2, True, False, (2,))
    assert found.encode("ab") == [1, PIECES.index("▁ab")]
    assert llama(bos_token_id=99999).encode("a") == [1, PIECES.index("▁a")]  # past the vocabulary: as if it were absent
    assert llama(add_bos_token=False).encode("a") == [PIECES.index("▁a")]


def test_lists_without_scores_and_types() -> None:
    bare = tokenizer_from_metadata(metadata_of("llama", PIECES))
    assert bare.encode("\n") == [1, PIECES.index("▁"), PIECES.index("<0x0A>")]
    assert bare.decode([PIECES.index("<0x0A>")]) == "\n"
    longer = metadata_of("llama", PIECES, scores=np.zeros(300, np.float32), token_type=np.ones(300, np.int32))
    assert tokenizer_from_metadata(longer).encode("a") == [1, PIECES.index("▁a")]


def test_ids_of_bert_without_keys() -> None:
    found = bert()
    assert found.encode("ab") == [101, 104, 105, 102]
    assert found.encode("z") == [101, 100, 102]
    assert (found.around.between, found.around.after_pair) == ((102,), (102,))


def test_bert_begins_and_ends_texts_whatever_flags_say() -> None:
    flags = {"add_bos_token": False, "add_eos_token": False, "add_sep_token": True, "eos_token_id": 103}
    found = bert(**flags)
    assert found.encode("a") == [101, 104, 102]
    assert found.around.between == (102,)  # one separator, as the models were trained
    assert bert(cls_token_id=5).encode("a") == [5, 104, 102]  # which llama.cpp does not read
    assert bert(seperator_token_id=7, eos_token_id=8).encode("a") == [101, 104, 7]


def test_a_separator_that_would_be_a_word_is_not_assumed() -> None:
    types = np.array([1] * 100 + [3, 3, 1, 3] + [1, 1], np.int32)
    found = tokenizer_from_metadata(metadata_of("bert", WORDS, token_type=types, eos_token_id=103))
    assert found.encode("a") == [101, 104, 103]


def test_unigram_without_keys() -> None:
    tokens = ["<pad>", "</s>", "<unk>", "▁a", "a", "▁"]
    types = np.array([3, 3, 2, 1, 1, 1], np.int32)
    given = {"scores": np.array([0, 0, 0, -1, -2, -3], np.float32), "token_type": types}
    found = tokenizer_from_metadata(metadata_of("t5", tokens, **given))
    assert (found.eos, found.add_eos, found.bos) == (1, True, None)
    assert found.encode("a") == [4, 1]  # no space in front, unless words are set apart
    assert tokenizer_from_metadata(metadata_of("t5", tokens, remove_extra_whitespaces=True, **given)).encode("a") == [
        3,
        1,
    ]
    assert tokenizer_from_metadata(metadata_of("t5", tokens, add_space_prefix=True, **given)).encode("a") == [3, 1]


def test_gpt2_without_keys() -> None:
    tokens = [*"abcdefghijk", "<|endoftext|>", "l", ","]
    found = tokenizer_from_metadata(metadata_of("gpt2", tokens, merges=[], pre="gpt-2"))
    assert (found.bos, found.eos, found.end_ids, found.encode("a")) == (11, 11, (11,), [0])
    assert tokenizer_from_metadata(metadata_of("gpt2", tokens, merges=[], pre="glm4")).bos is None
    ordinary = [*"abcdefghijk", ",", "l", "<|endoftext|>"]
    types = np.array([1] * 13 + [3], np.int32)
    assert tokenizer_from_metadata(metadata_of("gpt2", ordinary, merges=[], token_type=types)).end_ids == (13,)


def test_every_id_that_is_assumed_is_a_role() -> None:
    for kind, roles in IDS.items():
        tokens = TokenList(metadata_of(kind, [f"t{i}" for i in range(200)]))
        listed = {each.key: each.value for each in assumed(tokens.metadata)}
        for role, number in roles.items():
            name = {"unk": "unknown", "sep": "seperator", "pad": "padding"}.get(role, role)
            assert listed[key(f"{name}_token_id")] == tokens.id(key(f"{name}_token_id")) == number


def test_what_is_assumed_is_listed() -> None:
    found = {each.key: each for each in assumed(metadata_of("gpt2", ["a"] * 20, merges=[], bos_token_id=50))}
    assert found[key("pre")].value == "default"
    assert "not this model's" in found[key("pre")].reason
    assert found[key("token_type")].value == 1
    assert found[key("bos_token_id")].value == 11
    assert "50" in found[key("bos_token_id")].reason
    assert not list(assumed({"tokenizer.ggml.model": "none"}))
    llama = {each.key: each.value for each in assumed(metadata_of("llama", ["a"] * 20))}
    assert llama[key("add_space_prefix")] is llama[key("add_bos_token")] is True
    assert llama[key("scores")] == 0


def test_templates_are_given_the_tokens_that_are_assumed() -> None:
    texts = special_texts(Metadata(metadata_of("llama", PIECES)))
    assert (texts["bos_token"], texts["eos_token"]) == ("<s>", "</s>")
    assert special_texts(Metadata(metadata_of("gpt2", ["a"] * 20)))["bos_token"] == ""


def test_missing_scores_are_no_error() -> None:
    metadata = Metadata(metadata_of("llama", PIECES))
    assert [each[0] for each in check_vocabulary(metadata, {}) if each[1] == key("scores")] == ["warning"]


@pytest.mark.parametrize(("new", "old"), [("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle")])
def test_former_names_of_keys(new: str, old: str) -> None:
    tokens = TokenList(metadata_of("llama", ["a", "<PRE>", "<SUF>", "<MID>", "b"], **{f"{old}_token_id": 4}))
    assert tokens.id(key(f"{new}_token_id")) == 4
    gap = {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}[new]
    assert tokens.types[gap] == 1  # named by a key, so not by a text
    assert TokenList(metadata_of("llama", ["a", "<PRE>", "<SUF>", "<MID>", "b"])).types.tolist()[1:4] == [3, 3, 3]


def test_kimi_k2_may_have_no_merges() -> None:
    assert tokenizer_from_metadata(metadata_of("gpt2", [*"abc", "ab"], pre="kimi-k2")).encode("ab") == [0, 1]

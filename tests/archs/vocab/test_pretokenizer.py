from __future__ import annotations

import json
from pathlib import Path

import pytest

from archs.vocab.pretokenizer import Structure, canonical, name_of, pre_tokenizer, structure, table
from quants.errors import VocabularyError

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES_ONLY = BYTE_LEVEL | {"use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}
BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
}
ROBERTA = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}


def split(regex: str, **changes: object) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} | changes


def tokenizer(*blocks: object, normalizer: object = None, processor: object = BYTE_LEVEL, ignore: bool = False) -> dict:
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(blocks)},
        "normalizer": normalizer,
        "post_processor": processor,
        "model": {"type": "BPE", "ignore_merges": ignore},
    }


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (tokenizer(BYTE_LEVEL), "gpt-2"),
        (tokenizer(BYTE_LEVEL, normalizer=NFC), "mpt"),
        (tokenizer(BYTE_LEVEL, processor=ROBERTA), "roberta-bpe"),
        (tokenizer(DIGITS, BYTE_LEVEL), "starcoder"),
        (tokenizer(DIGITS, BYTE_LEVEL, normalizer={"type": "Sequence", "normalizers": [NFC]}), "command-r"),
        (tokenizer(DIGITS, BYTE_LEVEL, processor=None), "smollm"),
        (tokenizer(split(LLAMA3), BYTES_ONLY, processor=BOS, ignore=True), "llama-bpe"),
        (tokenizer(split(LLAMA3), BYTES_ONLY, ignore=True), "glm4"),
        (tokenizer(split(LLAMA3, behavior="Removed", invert=True), BYTES_ONLY), "dbrx"),
        (tokenizer(split(LLAMA3.replace("{1,3}", "")), BYTES_ONLY, normalizer=NFC), "qwen2"),
        (tokenizer(split(LLAMA3.replace("{1,3}", "")), BYTES_ONLY), "hunyuan"),
        (tokenizer(split("\\p{N}+"), split("(?=(\\d{3})+(?!\\d))"), BYTES_ONLY), "superbpe"),
    ],
)
def test_name_follows_from_structure(content: dict, name: str) -> None:
    assert name_of(structure(content), "tokenizer.json") == name


def test_spellings_of_one_expression_are_one() -> None:
    spelled_out = LLAMA3.replace(
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    ).replace(r"\r\n", "\r\n")
    assert canonical(spelled_out) == canonical(LLAMA3)
    assert canonical(LLAMA3.replace("{1,3}", "")) != canonical(LLAMA3)


def test_an_unknown_structure_is_shown_with_the_nearest() -> None:
    content = tokenizer(split(LLAMA3.replace("{1,3}", "{1,5}")), BYTES_ONLY)
    with pytest.raises(VocabularyError, match=r"x/tokenizer\.json.*\{1,5\}.*nearest known is 'llama-bpe'") as error:
        name_of(structure(content), "x/tokenizer.json")
    assert "such as llama-bpe" in str(error.value.hint)


def test_an_unknown_block_is_part_of_the_structure() -> None:
    with pytest.raises(VocabularyError, match="UnicodeScripts"):
        name_of(structure(tokenizer({"type": "UnicodeScripts"}, BYTE_LEVEL)), "tokenizer.json")


def test_every_name_that_gguf_knows_is_there(shared: Path) -> None:
    facts = json.loads((shared / "pretokenizers.json").read_text(encoding="utf-8"))["names"]
    assert set(table()) == set(facts)
    for name, fact in facts.items():
        entry = pre_tokenizer(name)
        assert (entry.ignore_merges, entry.add_bos, entry.add_sep, entry.escaped) == (
            fact.get("ignore_merges", False),
            fact.get("add_bos", False),
            fact.get("add_sep", False),
            fact.get("escape_whitespaces", False),
        )


def test_every_published_regex_finds_a_name_of_its_kind(shared: Path) -> None:
    facts = json.loads((shared / "pretokenizers.json").read_text(encoding="utf-8"))
    rewritten = {"AFMOE", "KIMI_K2", "GRANITE_EMB_MULTI", "FALCON"}  # the facts hold the reference's own stand-ins
    for kind, meaning in facts["kinds"].items():
        if kind in rewritten:
            continue
        regexes = meaning["regexes"]
        if "original" in meaning:
            regexes = regexes[: len(regexes) - len(meaning["original"])] + meaning["original"]
        name = name_of(Structure(tuple(canonical(regex) for regex in regexes)), kind)
        assert facts["kinds"][facts["names"][name]["kind"]]["regexes"] == meaning["regexes"], kind


def test_an_unknown_name_offers_similar_ones() -> None:
    with pytest.raises(VocabularyError, match="'qwen-2'") as error:
        pre_tokenizer("qwen-2")
    assert "qwen2" in str(error.value.hint)

"""Recipes as texts."""

import re

import pytest

from gguftools.quantization.recipe_texts import read_recipe, recipe_of, recipe_or_file, recipe_text, rules_for
from quants.errors import FileError, FormatError, OptionError

FORMATS = {"output.weight": "Q6_K", "blk.1.attn_q.weight": "Q4_K", "blk.11.attn_q.weight": "Q4_K"}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "small.txt"
    path.write_text(recipe_text(rules_for(FORMATS), ["a remark = with a sign, and ünicode"]))
    recipe = read_recipe(path)
    assert recipe.name == "small"
    assert [form for _, form in recipe.rules] == list(FORMATS.values())
    for (pattern, _), name in zip(recipe.rules, FORMATS, strict=True):
        assert [other for other in (*FORMATS, "blk.0.attn_output.weight") if re.search(pattern, other)] == [name]
    assert (recipe.default, recipe.file_type) == ("Q4_K", 15)


def test_every_word_is_a_rule_to_llama_quantize():
    """It knows no comments: each word has a name, a sign and a type (tools/quantize/quantize.cpp)."""
    for word in recipe_text(rules_for(FORMATS), ["gguftools recipe for 4.8 bits, 5% (=) of [it] in c++"]).split():
        pattern, _, form = word.partition("=")
        assert form in ("F32", "Q6_K", "Q4_K")
        re.compile(pattern)
        assert not pattern.startswith("#") or not any(re.search(pattern, name) for name in FORMATS)


def test_names_and_files_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_or_file("q4_k_m")[0].name == "Q4_K_M"
    (tmp_path / "mine").write_text("ffn=Q8_0 attn=Q4_K\n")
    recipe, path = recipe_or_file("mine")
    assert recipe.rules == (("ffn", "Q8_0"), ("attn", "Q4_K"))
    assert str(path) == "mine"
    with pytest.raises(OptionError, match="there is no recipe 'other'"):
        recipe_or_file("other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no rule"),
        (b"# all of it\n", "no rule"),
        (b"ffn\n", "line 1: 'ffn' is not REGEX=TYPE"),
        (b"\n=Q4_K", "line 2"),
        (b"GGUF\xff\xfe", "not UTF-8 text: byte 4"),
    ],
)
def test_other_texts_are_refused(tmp_path, text, said):
    path = tmp_path / "text"
    path.write_bytes(text)
    with pytest.raises(FileError, match=re.escape(said)):
        read_recipe(path)


def test_formats_that_nothing_is_stored_in_are_refused(tmp_path):
    path = tmp_path / "text"
    path.write_text("ffn=Q8_K")
    with pytest.raises(FormatError):
        read_recipe(path)


def test_without_any_format_of_blocks_the_rest_is_large():
    assert recipe_of("x", [("a", "F16")]).default == "Q8_0"

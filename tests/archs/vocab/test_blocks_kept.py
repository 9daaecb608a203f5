"""What tokenizer.json does with a text and no key of llama.cpp says: kept in blocks, obeyed, exported; or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2

from archs.metadata import Metadata
from archs.vocab import vocabulary
from archs.vocab.files import TokenizerFiles
from archs.vocab.restore import restored_files
from archs.vocab.spaces import is_plain, merges_as_scores
from gguftools.inspection.original.tokenizer_check import check_tokenizer
from quants.errors import VocabularyError
from runtime.tokenizer import tokenizer_from_metadata
from tests.archs.vocab.lists import metadata_of
from tests.archs.vocab.test_vocabulary import BYTE_LEVEL, bpe, tokenizer, write
from tests.fuzz.assembled import trained

TOKENIZERS = Path(__file__).parents[2] / "data/families/tokenizers"
NORMALIZER, PRE_TOKENIZER, SCHEME = (
    f"tokenizer.huggingface.{name}" for name in ("normalizer", "pre_tokenizer", "prepend_scheme")
)
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPENDED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACES]}
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def added(number: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


def metaspace(scheme: str, **flags: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False} | flags


def same(folder: Path, kinds: tuple[str, ...], content: dict[str, Any], rows: int = 640, **config: Any) -> Metadata:
    """The file's keys; its tokenizer, and that of what is exported of it, give the library's ids."""
    write(folder, tokenizer__json=content, tokenizer_config__json=config)
    metadata = vocabulary(folder, kinds, {}, rows)
    found = check_tokenizer(metadata, folder)
    assert (found.differing, found.texts > 300) == (0, True), found.message
    back = folder / "back"
    back.mkdir(exist_ok=True)
    for name, raw in restored_files(metadata).items():
        (back / name).write_bytes(raw)
    again = check_tokenizer(metadata, back)
    assert (again.differing, again.texts > 300) == (0, (back / "tokenizer.json").exists()), again.message
    return metadata


def words(folder: Path, **changes: Any) -> Metadata:
    content = json.loads((TOKENIZERS / "wordpiece/tokenizer.json").read_text(encoding="utf-8"))
    return same(folder, ("wordpiece",), content | changes)


def pieces(**changes: Any) -> dict[str, Any]:
    usual = {"post_processor": None, "pre_tokenizer": None, "normalizer": None}
    return {"model": trained("pieces"), "added_tokens": [added(0, "<unk>"), added(433, "<x>")]} | usual | changes


@pytest.mark.parametrize("flag", ["handle_chinese_chars", "clean_text"])
def test_flags_of_berts_normalizer(flag: str, tmp_path: Path) -> None:
    metadata = words(tmp_path, normalizer=BERT | {flag: False})
    assert json.loads(metadata[NORMALIZER])[flag] is False
    assert metadata["tokenizer.ggml.normalizer.lowercase"] is True


def test_berts_usual_blocks_need_no_key(tmp_path: Path) -> None:
    assert not {NORMALIZER, PRE_TOKENIZER} & set(words(tmp_path))


def test_words_without_a_normalizer_and_cut_otherwise(tmp_path: Path) -> None:
    metadata = words(tmp_path, normalizer=None, pre_tokenizer={"type": "WhitespaceSplit"})
    assert (metadata[NORMALIZER], json.loads(metadata[PRE_TOKENIZER])) == ("null", {"type": "WhitespaceSplit"})
    assert metadata["tokenizer.ggml.normalizer.lowercase"] is False  # as near as llama.cpp can be brought


def test_the_longest_word(tmp_path: Path) -> None:
    content = json.loads((TOKENIZERS / "wordpiece/tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["max_input_chars_per_word"] = 6
    metadata = same(tmp_path, ("wordpiece",), content)
    assert metadata["tokenizer.huggingface.max_input_chars_per_word"] == 6


def test_chinese_characters_of_a_word_list(tmp_path: Path) -> None:
    write(
        tmp_path,
        vocab__txt="[UNK]\n[CLS]\n[SEP]\na\n##b\n",
        tokenizer_config__json={"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False},
    )
    assert json.loads(vocabulary(tmp_path, ("wordpiece",), {}, 8)[NORMALIZER])["handle_chinese_chars"] is False


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "NFKC"},
        {"type": "Lowercase"},
        None,
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {
            "type": "Sequence",
            "normalizers": [
                {"type": "Strip", "strip_left": True, "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ],
        },
    ],
)
@pytest.mark.parametrize("cut", [metaspace("always", split=True), metaspace("first")], ids=["always", "first"])
def test_normalizers_of_unigram(normalizer: Any, cut: Any, tmp_path: Path) -> None:
    model = json.loads(json.dumps(trained("unigram")))
    model["vocab"].append(["<unk>", 0.0])
    last = len(model["vocab"])
    model["unk_id"] = last - 1
    content = {
        "model": model,
        "normalizer": normalizer,
        "pre_tokenizer": cut,
        "post_processor": None,
        "added_tokens": [added(last - 1, "<unk>"), added(last, "<x>")],
    }
    metadata = same(tmp_path, ("unigram",), content, rows=last + 8)
    collapses = normalizer is not None and normalizer["type"] == "Sequence"
    assert metadata["tokenizer.ggml.remove_extra_whitespaces"] is collapses


def test_bytes_of_unigram_are_bytes(tmp_path: Path) -> None:
    vocab = [["<unk>", 0.0], *([f"<0x{byte:02X}>", -9.0] for byte in range(256)), ["▁a", -1.0], ["a", -2.0]]
    model = {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": vocab}
    blocks = {"normalizer": None, "pre_tokenizer": metaspace("always", split=True), "post_processor": None}
    content = {"model": model, "added_tokens": [added(0, "<unk>")]} | blocks
    metadata = same(tmp_path, ("unigram",), content, rows=259)
    assert set(metadata["tokenizer.ggml.token_type"][1:257]) == {6}


@pytest.mark.parametrize("steps", [[r"[^\n]+|[\n]+"], None], ids=["lines", "words"])
def test_byte_level_vocabularies_get_no_name_of_plain_text(steps: list[str] | None, tmp_path: Path) -> None:
    split = {"type": "WhitespaceSplit"}
    if steps:
        split = {"type": "Split", "pattern": {"Regex": steps[0]}, "behavior": "Isolated", "invert": False}
    cut = {"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL | {"use_regex": False}]}
    with pytest.raises(VocabularyError, match="has no name for: it cuts bytes by") as error:
        bpe(write(tmp_path, tokenizer__json=tokenizer(pre_tokenizer=cut)))
    assert "`embed_tokenizer`" in str(error.value.hint)


@pytest.mark.parametrize("name", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_marks_of_words_that_no_file_has_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=f"{name} '</w>', which no vocabulary of GGUF has"):
        bpe(write(tmp_path, tokenizer__json=tokenizer(model={name: "</w>"})))


def test_tokens_that_are_found_in_normalized_text(tmp_path: Path) -> None:
    content = json.loads((TOKENIZERS / "wordpiece/tokenizer.json").read_text(encoding="utf-8"))
    number = len(content["model"]["vocab"])
    content["added_tokens"].append(added(number, "MyToken") | {"special": False, "normalized": True})
    metadata = same(tmp_path, ("wordpiece",), content)
    found = tokenizer_from_metadata(metadata)
    assert found.encode("MYTOKEN", add_special=False) == found.encode("mytoken", add_special=False) == [number]
    content["added_tokens"][-1]["normalized"] = False
    assert tokenizer_from_metadata(same(tmp_path, ("wordpiece",), content)).encode("MYTOKEN")[1:2] != [number]


def test_a_space_before_each_piece_that_a_split_leaves(tmp_path: Path) -> None:
    regex = r"\p{N}{1,3}"
    llama3 = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + regex + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": llama3}, "behavior": "Isolated", "invert": False}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
    content = tokenizer(
        model=trained("bytes"), pre_tokenizer={"type": "Sequence", "pretokenizers": [split, bytes_only]}
    )
    metadata = same(tmp_path, ("bpe",), content)
    ids = tokenizer_from_metadata(metadata).encode("ab12")
    texts = [metadata["tokenizer.ggml.tokens"][number] for number in ids]
    assert "".join(texts) == "ĠabĠ12"


def test_tokenizer_json_decides_on_the_first_space(tmp_path: Path) -> None:
    content = tokenizer(model=trained("bytes"), pre_tokenizer=BYTE_LEVEL | {"add_prefix_space": True})
    write(tmp_path, tokenizer__json=content, tokenizer_config__json={"add_prefix_space": False})
    metadata = vocabulary(tmp_path, ("sentencepiece", "bpe"), {}, 640)
    assert metadata["tokenizer.ggml.add_space_prefix"] is False  # as llama.cpp's converter writes it
    assert check_tokenizer(metadata, tmp_path).differing == 0


LIST = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]


def test_a_space_goes_before_each_piece_between_special_tokens() -> None:
    """Llama 2's files, as llama.cpp's converter writes and llama.cpp reads them, have no key for it."""
    types = [2, 3, 3] + [6] * 256 + [1] * 3
    metadata = metadata_of("llama", LIST, scores=[0.0] * 259 + [-1.0, -2.0, -3.0], token_type=types)
    prefixed, plain = LIST.index("▁a"), LIST.index("a")
    assert tokenizer_from_metadata(metadata).encode("a<s>a", parse_special=True) == [1, prefixed, 1, prefixed]
    first = metadata | {SCHEME: "first"}
    assert tokenizer_from_metadata(first).encode("a<s>a", parse_special=True) == [1, prefixed, 1, plain]


@pytest.mark.parametrize(
    ("blocks", "legacy", "scheme"),
    [
        ({"normalizer": PREPENDED}, False, None),  # tokenizer.json decides
        ({"pre_tokenizer": metaspace("first")}, None, "first"),
        ({"pre_tokenizer": metaspace("always")}, False, None),
        (None, True, None),
        (None, False, "first"),
        (None, None, None),
    ],
)
def test_where_model_files_put_spaces(
    blocks: dict[str, Any] | None, legacy: bool | None, scheme: str | None, tmp_path: Path
) -> None:
    model = sentencepiece_model_pb2.ModelProto()
    for text, kind in (("<unk>", 2), ("▁", 1), ("a", 1), ("▁a", 1)):
        model.pieces.add(piece=text, type=kind)
    model.trainer_spec.model_type = 2
    model.normalizer_spec.add_dummy_prefix = True
    (tmp_path / "tokenizer.model").write_bytes(model.SerializeToString())
    config = {"tokenizer_class": "LlamaTokenizer"} | ({} if legacy is None else {"legacy": legacy})
    write(tmp_path, tokenizer_config__json=config)
    if blocks is not None:
        write(tmp_path, tokenizer__json=pieces(**blocks))
    metadata = vocabulary(tmp_path, ("sentencepiece",), {}, 640)
    assert metadata.get(SCHEME) == scheme
    assert json.loads(restored_files(metadata)["tokenizer_config.json"])["legacy"] is (scheme is None)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_metaspace_without_a_model_file(scheme: str, tmp_path: Path) -> None:
    metadata = same(tmp_path, ("sentencepiece",), pieces(pre_tokenizer=metaspace(scheme)))
    assert json.loads(metadata[PRE_TOKENIZER])["prepend_scheme"] == scheme
    assert len(metadata["tokenizer.ggml.merges"]) > 50


def test_scores_say_what_merges_do_where_all_are_there(tmp_path: Path) -> None:
    vocab = {text: row for row, text in enumerate(["a", "b", "c", "ab", "abc", "bc"])}
    complete = ["a b", "b c", "ab c", "a bc"]
    assert merges_as_scores(vocab, complete)
    assert not merges_as_scores(vocab, complete[:3])  # SentencePiece would merge a and bc
    assert not merges_as_scores(vocab, ["ab c", "a b", "a bc", "b c"])  # two ranks of one piece, others between
    metadata = same(tmp_path, ("sentencepiece",), pieces(normalizer=PREPENDED))
    assert "tokenizer.ggml.merges" in metadata  # a trained vocabulary lacks some


def test_llama_2s_blocks_are_what_sentencepiece_does(tmp_path: Path) -> None:
    for blocks, plain in (({"normalizer": PREPENDED}, True), ({"normalizer": SPACES}, True), ({}, False)):
        assert is_plain(TokenizerFiles.read(write(tmp_path, tokenizer__json=pieces(**blocks)))) is plain


def test_a_block_that_is_no_json_is_refused() -> None:
    metadata = metadata_of("t5", ["a", "<unk>"]) | {NORMALIZER: "{"}
    with pytest.raises(VocabularyError, match="normalizer is not JSON"):
        tokenizer_from_metadata(metadata).encode("a")

"""Conversion refuses broken tokenizers, and `validate` reports them in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gguftools
from archs.metadata import Metadata, ValueType
from gguftools.inspection.vocabulary_check import check_vocabulary
from quants.errors import GgufToolsError

from .small_tokenizers import Change, converted, folder_of, vocabulary


def renumbered(number: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["model"]["vocab"] = dict.fromkeys(content["model"]["vocab"], number)

    return change


def first_id(number: Any) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["model"]["vocab"][next(iter(content["model"]["vocab"]))] = number

    return change


def merge(entry: Any) -> Change:
    return lambda content: content["model"]["merges"].append(entry)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renumbered(0), "have one id, 0"),
        (renumbered(-1), "a whole number from 0"),
        (first_id(-1), "has the id -1"),
        (first_id(2**40), "has the id 1099511627776"),
        (first_id(True), "has the id true"),
        (first_id(3), "have one id, 3"),
        (lambda content: content["model"].update(vocab={}, merges=[]), "an empty vocabulary"),
        (lambda content: content["model"].update(vocab=None), '"model.vocab" is null'),
        (merge(["zz", "qq"]), '"zz" is no token'),
        (merge("t o o"), "two tokens were expected"),
        (lambda content: content["added_tokens"][0].update(id=-5), '"added_tokens.0.id" is -5'),
        (lambda content: content["added_tokens"][0].update(id=2**40), '"added_tokens.0.id" is 1099511627776'),
        (lambda content: content["added_tokens"][0].update(id=284), "two added tokens 284"),
        (lambda content: content["added_tokens"][0].update(content=7), '"added_tokens.0.content" is 7'),
    ],
)
def test_ids_merges_and_empty_vocabularies(change: Change, message: str, tmp_path: Path) -> None:
    with pytest.raises(GgufToolsError) as error:
        converted("bpe", tmp_path, {"tokenizer.json": change})
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["spm", "t5"])
@pytest.mark.parametrize("content", [b"", b"\n\x00", b"\n\x02\n\x00"])
def test_an_empty_model_file(name: str, content: bytes, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    path = next(folder.glob("*.model"))
    path.write_bytes(content)
    kind = "unigram" if name == "t5" else "sentencepiece"
    with pytest.raises(GgufToolsError, match=f"{path.name} (is empty|has no pieces|is damaged|is not)"):
        vocabulary(folder, [kind, "bpe"], {}, 320)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_pointer_of_git_lfs_is_called_one(file: str, tmp_path: Path) -> None:
    folder = folder_of("bpe", tmp_path)
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(GgufToolsError, match="git-lfs pointer"):
        vocabulary(folder, ["bpe"], {}, 320)


def test_more_pieces_than_rows(tmp_path: Path) -> None:
    with pytest.raises(GgufToolsError, match="has no token <0x5E>, but such ones of other bytes"):
        converted("spm", tmp_path, rows=100)


def problems(metadata: Metadata) -> list[str]:
    return [f"{key} {message}" for severity, key, message in check_vocabulary(metadata, {}) if severity == "error"]


def test_a_file_that_has_no_tokens(tmp_path: Path) -> None:
    metadata = converted("bpe", tmp_path)
    for key in ("tokens", "token_type", "merges"):
        metadata.set(f"tokenizer.ggml.{key}", [], ValueType.ARRAY, metadata.value(f"tokenizer.ggml.{key}").element)
    assert any("tokens is empty" in problem for problem in problems(metadata))


def test_a_file_whose_tokens_no_text_becomes(tmp_path: Path) -> None:
    metadata = converted("bpe", tmp_path)
    metadata["tokenizer.ggml.token_type"] = [5] * 320
    assert any("no token that text can become" in problem for problem in problems(metadata))


def test_a_file_with_merges_of_what_is_no_token(tmp_path: Path) -> None:
    metadata = converted("bpe", tmp_path)
    metadata["tokenizer.ggml.merges"] = [*metadata["tokenizer.ggml.merges"], "zz qq"]
    assert any("is no token; the first is item 27" in problem for problem in problems(metadata))


def test_a_checkpoint_with_such_a_tokenizer_leaves_no_file(tmp_path: Path) -> None:
    from tests.archs import checkpoints

    checkpoints.build("afmoe", tmp_path / "afmoe")
    (tmp_path / "afmoe" / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {}, "merges": []}}')
    with pytest.raises(GgufToolsError, match="an empty vocabulary"):
        gguftools.convert(tmp_path / "afmoe", tmp_path / "out.gguf")
    assert not list(tmp_path.glob("out*"))

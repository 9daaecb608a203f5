"""The comparison of a converted vocabulary with the checkpoint's own tokenizer, at the end of a conversion."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import gguftools
from archs.vocab import vocabulary
from gguftools.conversion.options import ConvertOptions
from gguftools.inspection.original.texts import adversarial_texts
from gguftools.inspection.original.tokenizer_check import check_tokenizer
from tests.archs.checkpoints import FAMILIES, build
from tests.runtime.test_tokenizer import KINDS

TOKENIZERS = FAMILIES / "tokenizers"
CHECKPOINT = next(
    path.parent.name
    for path in sorted(FAMILIES.glob("*/spec.json"))
    if json.loads(path.read_text(encoding="utf-8"))["tokenizer"] == "bpe"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / CHECKPOINT
    build(CHECKPOINT, folder)
    return folder


@pytest.mark.parametrize("name", ["bpe", "gemma", "glm", "spm", "t5", "wordpiece"])
def test_vocabularies_are_those_of_their_tokenizers(name: str) -> None:
    folder = TOKENIZERS / name
    found = check_tokenizer(vocabulary(folder, KINDS, {}, 600), folder)
    assert (found.differing, found.message) == (0, "")
    assert found.texts > 300
    assert len(found.sources) == 1


def test_the_first_difference_is_one_line_with_both_lists_of_ids() -> None:
    metadata = vocabulary(TOKENIZERS / "bpe", KINDS, {}, 600).copy()
    metadata["tokenizer.ggml.pre"] = "llama-bpe"
    found = check_tokenizer(metadata, TOKENIZERS / "bpe")
    assert 0 < found.differing < found.texts
    assert "\n" not in found.message
    assert f"on {found.differing} of {found.texts} texts, first on '" in found.message
    ours, theirs = found.message.split(": [")[1].split(", by tokenizer.json [")
    assert ours != theirs


@pytest.mark.parametrize("name", ["rwkv", "plamo"])
def test_where_no_library_reads_a_tokenizer_nothing_is_compared(name: str) -> None:
    found = check_tokenizer(vocabulary(TOKENIZERS / name, ("rwkv", "plamo"), {}, 600), TOKENIZERS / name)
    assert (found.texts, found.sources) == (0, ())
    assert "compared with nothing" in found.message


def test_a_tokenizer_that_no_library_takes_is_said(tmp_path: Path) -> None:
    metadata = vocabulary(TOKENIZERS / "bpe", KINDS, {}, 600)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "was not compared" in check_tokenizer(metadata, tmp_path).message
    assert check_tokenizer({"tokenizer.ggml.model": "none"}, tmp_path).message == ""


def test_a_model_files_tokens_around_texts(tmp_path: Path) -> None:
    shutil.copy(TOKENIZERS / "xlm-roberta/sentencepiece.bpe.model", tmp_path)
    metadata = vocabulary(tmp_path, ("fairseq",), {}, 290)
    assert check_tokenizer(metadata, tmp_path).message == ""
    changed = metadata.copy()
    changed["tokenizer.ggml.add_bos_token"] = False
    assert "with the tokens around it" in check_tokenizer(changed, tmp_path).message


def test_texts_have_what_tokenizers_differ_in() -> None:
    texts = adversarial_texts(["<s>"])
    assert len(texts) == len(set(texts)) > 300
    for part in (
        "",
        "<s><s>",
        "a<s>",
        "\r\n\r\n",
        "\u00a0\u00a0",
        "\u0301" * 8,
        "\x00",
        "日本",
        "שלום",
        "def f(x)",
        " " * 33,
    ):
        assert any(part in text if part else text == "" for text in texts)


def _with_lines(folder: Path) -> None:
    """A tokenizer that no GGUF name fits."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"[^\n]+|[\n]+"
    path.write_text(json.dumps(content), encoding="utf-8")


def test_convert_warns_and_writes_the_file(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    assert gguftools.convert(folder, tmp_path / "same.gguf").warnings == []
    _with_lines(folder)
    found: dict[str, Any] = {}
    for name, check in (("checked", True), ("unchecked", False)):
        report = gguftools.convert(
            folder, tmp_path / f"{name}.gguf", options=ConvertOptions(pre="qwen2", check_tokenizer=check)
        )
        found[name] = [each for each in report.warnings if "tokenizer" in each]
    assert len(found["checked"]) == 1
    assert "gives other ids on" in found["checked"][0]
    assert found["unchecked"] == []
    assert (tmp_path / "checked.gguf").read_bytes() == (tmp_path / "unchecked.gguf").read_bytes()


def test_the_tokenizer_itself_in_the_file_is_gone_by(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    _with_lines(folder)
    assert (
        gguftools.convert(
            folder, tmp_path / "m.gguf", options=ConvertOptions(pre="qwen2", embed_tokenizer=True)
        ).warnings
        == []
    )

"""What post-processors put around texts, in files that can say it and in files that cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archs.metadata import Metadata
from archs.vocab import vocabulary
from archs.vocab.around import Around, around_of, processed, roles_of, template
from archs.vocab.listed import TokenList
from archs.vocab.restore import restored_files
from quants.errors import VocabularyError
from runtime.generation import prompt_ids
from runtime.tokenizer import tokenizer_from_metadata
from tests.archs.vocab.test_vocabulary import BYTE_LEVEL, added, special, tokenizer, write

KEY = "tokenizer.huggingface.post_processor"
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
SECOND = {"Sequence": {"id": "B", "type_id": 0}}
TOKENS = [added(5, "[gMASK]", special=True), added(6, "<sop>", special=True), added(7, "<eos>", special=True)]


def templated(single: list[Any], pair: list[Any] | None = None) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": pair or [*single, SECOND]}


def converted(folder: Path, processor: Any, **config: Any) -> Metadata:
    write(
        folder, tokenizer__json=tokenizer(added_tokens=TOKENS, post_processor=processor), tokenizer_config__json=config
    )
    return vocabulary(folder, ("bpe",), {}, 8)


@pytest.mark.parametrize(
    ("processor", "config", "ids"),
    [
        (templated([special("[gMASK]"), special("<sop>"), TEXT]), {}, [5, 6, 0]),
        (templated([special("<sop>"), TEXT]), {"bos_token": "[gMASK]"}, [6, 0]),
        (templated([TEXT, special("<eos>"), special("<sop>")]), {"eos_token": "<eos>"}, [0, 7, 6]),
        (
            templated([special("<sop>"), TEXT, special("<eos>")]),
            {"bos_token": "<sop>", "eos_token": "<eos>", "add_eos_token": False},
            [6, 0],
        ),
        ({"type": "BertProcessing", "sep": ["<eos>", 7], "cls": ["<sop>", 6]}, {}, [6, 0, 7]),
        ({"type": "Sequence", "processors": [BYTE_LEVEL, templated([special("<sop>"), TEXT])]}, {}, [6, 0]),
        (None, {"bos_token": "<sop>", "eos_token": "<eos>"}, [0]),
        (templated([special("[gMASK]"), TEXT]), {"bos_token": "<sop>", "add_bos_token": True}, [5, 6, 0]),
    ],
)
def test_texts_stand_between_the_tokenizers_tokens(
    processor: Any, config: dict[str, Any], ids: list[int], tmp_path: Path
) -> None:
    metadata = converted(tmp_path, processor, **config)
    assert tokenizer_from_metadata(metadata).encode("a") == ids
    restored = json.loads(restored_files(metadata)["tokenizer.json"])
    text = ids.index(0)
    again = processed(restored, {}, "x", 8)
    assert ([*again.before], [*again.after]) == (ids[:text], ids[text + 1 :])


def test_a_prompt_begins_with_all_of_them(tmp_path: Path) -> None:
    found = tokenizer_from_metadata(converted(tmp_path, templated([special("[gMASK]"), special("<sop>"), TEXT])))
    assert prompt_ids(found, "a") == [5, 6, 0]
    assert prompt_ids(found, "[gMASK]<sop>a", rendered=True) == [5, 6, 0]


def test_what_flags_and_ids_can_say_needs_no_key(tmp_path: Path) -> None:
    said = templated([special("<sop>"), TEXT])
    assert KEY not in converted(tmp_path, said, bos_token="<sop>")
    pair = [special("<sop>"), TEXT, special("<sop>"), SECOND]  # which no model of texts reads
    assert KEY not in converted(tmp_path, templated([special("<sop>"), TEXT], pair), bos_token="<sop>")
    assert KEY not in converted(tmp_path, BYTE_LEVEL)


def test_pairs_of_texts(tmp_path: Path) -> None:
    pair = [special("<sop>"), TEXT, special("<eos>"), special("[gMASK]"), SECOND, special("<eos>")]
    metadata = converted(tmp_path, templated([special("<sop>"), TEXT, special("<eos>")], pair), bos_token="<sop>")
    around = tokenizer_from_metadata(metadata).around
    assert (around.before_pair, around.between, around.after_pair) == ((6,), (7, 5), (7,))


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (templated([special("<sop>"), TEXT, TEXT]), "template of a single has the texts A, A"),
        (templated([special("<other>"), TEXT]), "'<other>', which is no token"),
        ({"type": "Sequence", "processors": [templated([TEXT]), templated([TEXT])]}, "one template was expected"),
        ({"type": "Other"}, "'Other', which is not known"),
        (
            {"type": "BertProcessing", "sep": ["<eos>", 70], "cls": ["<sop>", 6]},
            "token 70 around texts, but there are 8",
        ),
    ],
)
def test_what_no_file_can_say_is_refused(processor: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=message):
        converted(tmp_path, processor)


def test_a_template_is_what_it_was_made_of() -> None:
    around = Around((1,), (2, 3), (1,), (2,), (3,))
    written = template(around, ["a", "b", "c", "d"])
    assert processed({"post_processor": written}, {}, "x", 4) == around
    assert template(Around(), ["a"]) is None


def test_a_key_that_is_no_block_is_refused() -> None:
    tokens = TokenList({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], KEY: "[1]"})
    with pytest.raises(VocabularyError, match=r"post_processor is .*; a block of tokenizer\.json was expected"):
        around_of(tokens, roles_of(tokens))


def test_xlm_roberta_without_tokenizer_json(tmp_path: Path) -> None:
    """Its class of tokenizers has its tokens without being told."""
    source = Path(__file__).parents[2] / "data/families/tokenizers/xlm-roberta"
    (tmp_path / "sentencepiece.bpe.model").write_bytes((source / "sentencepiece.bpe.model").read_bytes())
    metadata = vocabulary(tmp_path, ("fairseq",), {}, 290)
    found = tokenizer_from_metadata(metadata)
    ids = found.encode("the text")
    assert (ids[0], ids[-1], found.around.between) == (0, 2, (2, 2))
    assert metadata["tokenizer.ggml.seperator_token_id"] == 2

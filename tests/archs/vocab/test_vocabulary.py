"""What the zoo's tokenizers do not show: other files, other layouts, mistakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from archs.metadata import Metadata
from archs.vocab import vocabulary
from quants.errors import FileError, VocabularyError

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
WORDS = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
MERGES = ["a b", "ab c"]


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def tokenizer(**changes: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": WORDS, "merges": MERGES} | changes.pop("model", {})
    return {"model": model, "pre_tokenizer": BYTE_LEVEL, "added_tokens": [], "post_processor": BYTE_LEVEL} | changes


def added(number: int, content: str, **flags: bool) -> dict[str, Any]:
    return {"id": number, "content": content, **flags}


def bpe(folder: Path, rows: int = 8, config: dict[str, Any] | None = None, **options: Any) -> Any:
    return vocabulary(folder, ("bpe",), config or {}, rows, **options)


def test_rows_past_the_vocabulary_are_unused(tmp_path: Path) -> None:
    content = tokenizer(added_tokens=[added(6, "<|x|>"), added(5, "<y>"), added(9, "<beyond>")])
    found = bpe(write(tmp_path, tokenizer__json=content))
    assert found["tokenizer.ggml.tokens"] == ["a", "b", "c", "ab", "abc", "<y>", "<|x|>", "[PAD7]"]
    assert found["tokenizer.ggml.token_type"].tolist() == [1, 1, 1, 1, 1, 4, 3, 5]


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer())
    with pytest.raises(VocabularyError, match="token 4, but the embedding only 4 rows"):
        bpe(tmp_path, rows=4)


def test_merges_as_pairs_keep_their_spaces(tmp_path: Path) -> None:
    model = {"vocab": {"a": 0, " ": 1, "a ": 2}, "merges": [["a", " "]]}
    assert bpe(write(tmp_path, tokenizer__json=tokenizer(model=model)))["tokenizer.ggml.merges"] == ["a Ġ"]


def test_pre_overrides_the_structure(tmp_path: Path) -> None:
    content = tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"})
    write(tmp_path, tokenizer__json=content)
    with pytest.raises(VocabularyError, match="no name"):
        bpe(tmp_path)
    assert bpe(tmp_path, pre="qwen2")["tokenizer.ggml.pre"] == "qwen2"


def test_what_the_name_does_not_say_is_kept(tmp_path: Path) -> None:
    lowercase = {"type": "Lowercase"}
    strip = added(5, "<mask>", special=True, lstrip=True)
    content = tokenizer(
        model={"ignore_merges": True},
        normalizer=lowercase,
        pre_tokenizer=BYTE_LEVEL | {"add_prefix_space": True},
        added_tokens=[strip, added(6, "<plain>", special=True)],
    )
    found = bpe(write(tmp_path, tokenizer__json=content))
    assert found["tokenizer.ggml.pre"] == "gpt-2"
    assert json.loads(found["tokenizer.huggingface.normalizer"]) == lowercase
    assert found["tokenizer.huggingface.ignore_merges"] is True
    assert found["tokenizer.ggml.add_space_prefix"] is True
    kept = json.loads(found["tokenizer.huggingface.added_tokens"])
    assert [(token["id"], token["lstrip"]) for token in kept] == [(5, True)]


def test_a_missing_normalizer_is_kept_where_the_name_implies_one(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer())
    assert bpe(tmp_path, pre="qwen2")["tokenizer.ggml.normalizer.nfc"] is False
    assert "tokenizer.ggml.normalizer.nfc" not in bpe(tmp_path)


def test_roles_missing_from_the_configuration_come_from_the_map(tmp_path: Path) -> None:
    content = tokenizer(added_tokens=[added(5, "<s>", special=True), added(6, "</s>", special=True)])
    files = {
        "tokenizer__json": content,
        "special_tokens_map__json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}},
    }
    found = bpe(write(tmp_path, **files))
    assert (found["tokenizer.ggml.bos_token_id"], found["tokenizer.ggml.eos_token_id"]) == (5, 6)


def test_a_list_of_end_tokens_gives_its_first(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer())
    assert bpe(tmp_path, generation_config={"eos_token_id": [3, 4]})["tokenizer.ggml.eos_token_id"] == 3
    assert bpe(tmp_path, config={"eos_token_id": [2]})["tokenizer.ggml.eos_token_id"] == 2
    assert "tokenizer.ggml.eos_token_id" not in bpe(tmp_path, config={"eos_token_id": 99})


def test_a_negative_id_is_refused(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer())
    with pytest.raises(VocabularyError, match="pad_token_id is -1"):
        bpe(tmp_path, config={"pad_token_id": -1})


def special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def test_a_template_says_what_goes_around_a_text(tmp_path: Path) -> None:
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    template = {
        "type": "TemplateProcessing",
        "single": [special("<s>"), first, special("</s>")],
        "pair": [special("<s>"), first, special("</s>"), special("</s>"), second, special("</s>")],
    }
    tokens = [added(5, "<s>", special=True), added(6, "</s>", special=True), added(7, "<end>", special=True)]
    content = tokenizer(added_tokens=tokens, post_processor={"type": "Sequence", "processors": [BYTE_LEVEL, template]})
    found = bpe(write(tmp_path, tokenizer__json=content, tokenizer_config__json={"eos_token": "<end>"}))
    flags = [found[f"tokenizer.ggml.add_{role}_token"] for role in ("bos", "eos", "sep")]
    assert flags == [True, True, True]
    ids = [found[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "eos", "eot")]
    assert ids == [5, 6, 7]


def test_roberta_adds_all_three(tmp_path: Path) -> None:
    tokens = [added(5, "<s>", special=True), added(6, "</s>", special=True)]
    processor = {"type": "RobertaProcessing", "sep": ["</s>", 6], "cls": ["<s>", 5]}
    content = tokenizer(added_tokens=tokens, post_processor=processor)
    found = bpe(write(tmp_path, tokenizer__json=content, tokenizer_config__json={"bos_token": "<s>"}))
    assert found["tokenizer.ggml.pre"] == "roberta-bpe"
    assert all(found[f"tokenizer.ggml.add_{role}_token"] for role in ("bos", "eos", "sep"))
    assert found["tokenizer.ggml.seperator_token_id"] == 6


def test_the_configuration_has_the_last_word_on_what_is_added(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer(), tokenizer_config__json={"add_bos_token": True, "add_eos_token": None})
    found = bpe(tmp_path)
    assert (found["tokenizer.ggml.add_bos_token"], found["tokenizer.ggml.add_eos_token"]) == (True, False)


def test_nothing_in_front_is_said_where_the_name_implies_a_token(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer(post_processor=None))
    assert bpe(tmp_path, pre="llama-bpe")["tokenizer.ggml.add_bos_token"] is False


def test_templates_with_names(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer())
    named = [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}, {"name": "none"}]
    write(tmp_path, tokenizer_config__json={"chat_template": named}, chat_template__json={"chat_template": "j"})
    found = bpe(tmp_path)
    assert found["tokenizer.chat_template"] == "d"
    assert found["tokenizer.chat_template.tool_use"] == "t"
    assert found["tokenizer.chat_templates"] == ["tool_use"]
    write(tmp_path, tokenizer_config__json={"chat_template": {"default": "d2", "rag": "r"}})
    assert templates(bpe(tmp_path)) == {"": "d2", "rag": "r"}


def test_templates_whose_names_would_be_one_key_are_refused(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer(), tokenizer_config__json={"chat_template": {"a b": "1", "a-b": "2"}})
    with pytest.raises(VocabularyError, match=r"'a b' and 'a-b' would have one key, tokenizer\.chat_template\.a_b"):
        bpe(tmp_path)


def templates(metadata: Metadata) -> dict[str, str]:
    start = "tokenizer.chat_template"
    return {
        key.removeprefix(start).removeprefix("."): metadata[key]
        for key in metadata
        if key == start or key.startswith(f"{start}.")
    }


def test_templates_in_files(tmp_path: Path) -> None:
    """Each file goes before those that came until then, and nothing of them is mixed: as transformers loads them."""
    write(tmp_path, tokenizer__json=tokenizer(), chat_template__json={"chat_template": "from json"})
    assert templates(bpe(tmp_path)) == {"": "from json"}
    write(tmp_path, processor_config__json={"chat_template": "from processor"})
    assert templates(bpe(tmp_path)) == {"": "from processor"}
    write(tmp_path, tokenizer_config__json={"chat_template": {"default": "from config", "tool_use": "t"}})
    assert templates(bpe(tmp_path)) == {"": "from config", "tool_use": "t"}
    (tmp_path / "additional_chat_templates").mkdir()
    write(tmp_path / "additional_chat_templates", rag__jinja="r")
    assert templates(bpe(tmp_path)) == {"rag": "r"}
    write(tmp_path, chat_template__jinja="from jinja")
    assert templates(bpe(tmp_path)) == {"": "from jinja", "rag": "r"}


def test_templates_are_those_that_transformers_takes(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    def loaded() -> dict[str, str]:
        found = PreTrainedTokenizerFast.from_pretrained(tmp_path).chat_template
        found = {"default": found} if isinstance(found, str) else dict(found)
        return {"" if name == "default" else name: text for name, text in found.items()}

    write(tmp_path, tokenizer__json=tokenizer(), tokenizer_config__json={"chat_template": {"default": "c", "rag": "r"}})
    assert templates(bpe(tmp_path)) == loaded()
    (tmp_path / "additional_chat_templates").mkdir()
    write(tmp_path / "additional_chat_templates", tool_use__jinja="t")
    assert templates(bpe(tmp_path)) == loaded()
    write(tmp_path, chat_template__jinja="j")
    assert templates(bpe(tmp_path)) == loaded()


def test_gpt2s_plain_files_need_no_transformers(tmp_path: Path) -> None:
    configured = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<end>", "bos_token": "<end>"}
    files = {"vocab__json": WORDS | {"<end>": 5}, "merges__txt": "#version: 0.2\na b\nab c\n"}
    write(tmp_path, **files, tokenizer_config__json=configured)
    loaded = "transformers" in sys.modules
    found = bpe(tmp_path)
    assert loaded or "transformers" not in sys.modules
    assert found["tokenizer.ggml.pre"] == "gpt-2"
    assert found["tokenizer.ggml.merges"] == MERGES
    assert found["tokenizer.ggml.token_type"].tolist()[5] == 3
    assert found["tokenizer.ggml.eos_token_id"] == 5


def test_plain_files_of_roberta_are_not_taken_for_gpt2s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its texts stand between <s> and </s>, which transformers knows by the name of the model."""

    def asked(folder: Path) -> dict[str, Any]:
        raise VocabularyError(f"transformers is asked about {folder}")

    monkeypatch.setattr("archs.vocab.files.tokenizer_by_transformers", asked)
    files = {"vocab__json": WORDS, "merges__txt": "#version: 0.2\na b\nab c\n"}
    write(tmp_path, config__json={"model_type": "roberta"})
    with pytest.raises(VocabularyError, match="transformers is asked"):
        bpe(write(tmp_path, **files))
    assert bpe(write(tmp_path, config__json={"model_type": "gpt2"}))["tokenizer.ggml.pre"] == "gpt-2"


def test_berts_word_list_is_the_same_as_its_tokenizer_json(shared: Path, tmp_path: Path) -> None:
    source = shared / "zoo/tokenizers/wordpiece"
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    plain = vocabulary(tmp_path, ("wordpiece",), {}, 600)
    whole = vocabulary(source, ("wordpiece",), {}, 600)
    assert {key: str(plain[key]) for key in plain} == {key: str(whole[key]) for key in whole}


def test_slow_tokenizers_go_through_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    files = {"vocab__json": WORDS | {"<|endoftext|>": 5}, "merges__txt": "#version: 0.2\na b\nab c\n"}
    write(tmp_path, **files, tokenizer_config__json={"tokenizer_class": "Qwen2Tokenizer"})
    found = bpe(tmp_path)
    assert found["tokenizer.ggml.pre"] == "qwen2"
    assert found["tokenizer.ggml.merges"] == MERGES


def test_a_folder_without_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="no tokenizer that can be read") as error:
        bpe(tmp_path)
    assert "tokenizer.json" in str(error.value.hint)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer())
    with pytest.raises(VocabularyError, match="model 'BPE', the architecture takes wordpiece"):
        vocabulary(tmp_path, ("wordpiece",), {}, 8)


@pytest.mark.parametrize(("content", "message"), [("{", "is not valid JSON"), ("[]", "holds list")])
def test_broken_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=content)
    with pytest.raises(FileError, match=f"tokenizer.json {message}"):
        bpe(tmp_path)


def test_a_broken_sentencepiece_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\xff\xff")
    with pytest.raises(VocabularyError, match=r"tokenizer\.model is not a SentencePiece model"):
        vocabulary(tmp_path, ("sentencepiece",), {}, 8)


def test_an_architectures_own_keys_do_not_override_the_folders(tmp_path: Path) -> None:
    content = tokenizer(added_tokens=[added(5, "<u>", special=True)])
    write(tmp_path, tokenizer__json=content, tokenizer_config__json={"unk_token": "<u>"})
    extra = {"eot_token_id": "<u>", "eom_token_id": "<none>", "unknown_token_id": 0, "add_sep_token": True}
    found = bpe(tmp_path, extra=extra)
    assert (found["tokenizer.ggml.eot_token_id"], found["tokenizer.ggml.unknown_token_id"]) == (5, 5)
    assert found["tokenizer.ggml.add_sep_token"] is True
    assert "tokenizer.ggml.eom_token_id" not in found


def test_the_whole_tokenizer_is_kept_on_request(tmp_path: Path) -> None:
    write(tmp_path, tokenizer__json=tokenizer())
    assert json.loads(bpe(tmp_path, embed=True)["tokenizer.huggingface.json"]) == tokenizer()
    assert "tokenizer.huggingface.json" not in bpe(tmp_path)


def test_another_model_in_the_same_folder_is_read_anew(shared: Path, tmp_path: Path) -> None:
    tokens = []
    for name in ("spm-llama", "spm-gemma"):
        (tmp_path / "tokenizer.model").write_bytes((shared / "zoo/tokenizers" / name / "tokenizer.model").read_bytes())
        tokens.append(vocabulary(tmp_path, ("sentencepiece",), {}, 600)["tokenizer.ggml.tokens"])
    assert tokens[0] != tokens[1]

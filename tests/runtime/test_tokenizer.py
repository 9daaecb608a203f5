from __future__ import annotations

import json
import lzma
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.metadata import Metadata
from archs.vocab import vocabulary
from archs.vocab.files import AddedToken
from archs.vocab.pretokenizer import table
from gguftools.io.gguf.reader import open_gguf
from quants.errors import VocabularyError
from runtime.tokenizer import Tokenizer, tokenizer_from_metadata
from runtime.tokenizers.special import Splitter
from tests.conftest import SHARED

VOCABULARIES = sorted(path.name.split(".")[0].removeprefix("ggml-vocab-") for path in SHARED.glob("vocabs/*.xz"))
ZOO = sorted(path.name for path in SHARED.glob("zoo/tokenizers/*"))
KINDS = ("wordpiece", "sentencepiece", "bpe")


@pytest.fixture(scope="module")
def published(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Metadata of a published vocabulary, by name."""
    folder = tmp_path_factory.mktemp("vocabs")

    def metadata(name: str) -> Metadata:
        path = folder / f"{name}.gguf"
        if not path.exists():
            path.write_bytes(lzma.decompress((shared / f"vocabs/ggml-vocab-{name}.gguf.xz").read_bytes()))
        return open_gguf(path).metadata

    return metadata


@pytest.mark.parametrize("name", VOCABULARIES)
def test_published_vocabularies_give_the_ids_of_their_models(name: str, shared: Path, published: Any) -> None:
    tokenizer = tokenizer_from_metadata(published(name))
    base = shared / f"vocabs/ggml-vocab-{name}.gguf"
    texts = base.with_name(base.name + ".inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = base.with_name(base.name + ".out").read_text().split("\n")
    assert len(texts) == len(lines) > 40
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == [int(number) for number in line.split()], text
        if name != "bert-bge":  # which has no spaces and no capitals
            assert tokenizer.decode(ids) == text


def from_folder(folder: Path, **options: Any) -> Tokenizer:
    rows = {"spm-llama": 512, "spm-t5": 490}.get(folder.name, 600)
    return tokenizer_from_metadata(vocabulary(folder, KINDS, {}, rows, **options))


@pytest.mark.parametrize("embed", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_zoo_tokenizers_give_the_true_ids(name: str, embed: bool, shared: Path) -> None:
    folder = shared / "zoo/tokenizers" / name
    tokenizer = from_folder(folder, embed=embed and (folder / "tokenizer.json").exists())
    for case in json.loads((folder / "encodings.json").read_text(encoding="utf-8")):
        plain = case.get("sentencepiece", case["hf"])
        assert tokenizer.encode(case["text"], add_special=False, parse_special=True) == plain, case["text"]
        if plain == case["hf"]:
            assert tokenizer.encode(case["text"], parse_special=True) == case["hf_with_special"], case["text"]


@pytest.mark.parametrize("name", ["spm-phi3", "spm-gemma", "spm-t5"])
def test_a_model_file_is_not_needed_beside_its_tokenizer_json(name: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "zoo/tokenizers" / name
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((source / file).read_bytes())
    tokenizer = from_folder(tmp_path)
    for case in json.loads((source / "encodings.json").read_text(encoding="utf-8")):
        # SentencePiece puts another space before one, and its file is not there to say so.
        assert tokenizer.encode(case["text"], add_special=False, parse_special=True) == case["hf"], case["text"]


def test_control_tokens_are_found_on_request_and_user_defined_ones_always(shared: Path) -> None:
    tokenizer = from_folder(shared / "zoo/tokenizers/qwen2")
    text = "<|im_start|><tool_call>"
    assert tokenizer.encode(text, parse_special=True) == [496, 498]
    ids = tokenizer.encode(text)
    assert 496 not in ids
    assert ids[-1] == 498
    assert tokenizer.decode([496, 498]) == text
    assert tokenizer.decode([496, 498], skip_special=True) == "<tool_call>"


def test_plain_text_never_becomes_a_control_token_where_merges_are_ignored(shared: Path) -> None:
    tokenizer = from_folder(shared / "zoo/tokenizers/gpt4o")
    metadata = vocabulary(shared / "zoo/tokenizers/gpt4o", ("bpe",), {}, 600).copy()
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[tokens.index("<|call|>")] = "qqqq"  # a control token that is one word
    metadata["tokenizer.ggml.tokens"] = tokens
    assert tokenizer_from_metadata(metadata).encode("qqqq", add_special=False) == tokenizer.encode("qqqq", False)
    assert tokenizer_from_metadata(metadata).encode("qqqq", parse_special=True) == [599]


def test_contract(published: Any) -> None:
    tokenizer = tokenizer_from_metadata(published("llama-spm"))
    assert tokenizer.encode("Hello") == [1, 15043]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.add_bos, tokenizer.add_eos) == (1, 2, True, False)
    assert tokenizer.vocab_size == 32000
    assert tokenizer.decode([15043, 3186]) == "Hello world"
    assert tokenizer.decode([1, 2]) == "<s></s>"
    assert tokenizer.decode([1, 15043], skip_special=True) == "Hello"
    assert tokenizer.text(15043) == "▁Hello"
    assert tokenizer.decode([0xE2 + 3]) == "�"


@pytest.mark.parametrize("name", ["llama-spm", "qwen2", "bert-bge"])
def test_pieces_in_a_row_are_the_text(name: str, published: Any) -> None:
    tokenizer = tokenizer_from_metadata(published(name))
    ids = tokenizer.encode("a cat's 今天 🦙 and\t7 more", add_special=False)
    assert b"".join(map(tokenizer.piece, ids)).decode().removeprefix(" ") == tokenizer.decode(ids)
    assert name == "bert-bge" or any(len(tokenizer.piece(number).decode("utf-8", "ignore")) == 0 for number in ids)


def test_ids_out_of_range_are_refused(published: Any) -> None:
    with pytest.raises(VocabularyError, match="50257 is no token: the vocabulary has 50257"):
        tokenizer_from_metadata(published("gpt-2")).decode([50257])


def test_building_is_quick(published: Any) -> None:
    metadata = published("llama-bpe")
    start = time.process_time()  # other work on the machine does not count
    tokenizer_from_metadata(metadata).encode("Hello world")
    assert time.process_time() - start < 1.5


def test_libraries_are_imported_when_needed() -> None:
    code = (
        "import sys; from runtime.tokenizer import tokenizer_from_metadata as f; "
        "t = f({'tokenizer.ggml.model': 'gpt2', 'tokenizer.ggml.pre': 'gpt-2', 'tokenizer.ggml.tokens': ['a', 'Ġb']});"
        "assert t.decode([0, 1]) == 'a b'; "
        "sys.exit(any(name in sys.modules for name in ('tokenizers', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


@pytest.mark.parametrize("name", table())
def test_every_pre_tokenizer_runs(name: str) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": ["a", "b", "1", "2", "ab", "12"],
        "tokenizer.ggml.merges": ["a b", "1 2"],
    }
    assert tokenizer_from_metadata(metadata).encode("ab", add_special=False) == [4]


def test_single_digits_stay_apart() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["1", "2", "12"],
        "tokenizer.ggml.merges": ["1 2"],
    }
    assert tokenizer_from_metadata(metadata | {"tokenizer.ggml.pre": "qwen2"}).encode("12") == [0, 1]
    assert tokenizer_from_metadata(metadata | {"tokenizer.ggml.pre": "gpt-2"}).encode("12") == [2]


def test_a_space_in_front_of_byte_pairs() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["Ġ a"]}
    metadata |= {"tokenizer.ggml.tokens": ["a", "Ġ", "Ġa"], "tokenizer.ggml.add_space_prefix": True}
    assert tokenizer_from_metadata(metadata).encode("a") == [2]
    assert tokenizer_from_metadata(metadata).encode(" a") == [2]


def test_normalizers() -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": [], "tokenizer.ggml.pre": "gpt-2"}
    metadata |= {"tokenizer.ggml.tokens": ["a", "A", "Ã", "¥", "Ì", "Ĭ"]}  # a, A, the bytes of å, half those of a ring
    ring = "a\u030a"
    assert tokenizer_from_metadata(metadata).encode(ring) == [0, 4, 5]
    assert tokenizer_from_metadata(metadata | {"tokenizer.ggml.normalizer.nfc": True}).encode(ring) == [2, 3]
    assert tokenizer_from_metadata(metadata | {"tokenizer.ggml.pre": "qwen2"}).encode(ring) == [2, 3]
    lower = {"tokenizer.huggingface.normalizer": json.dumps({"type": "Lowercase"})}
    assert tokenizer_from_metadata(metadata | lower).encode("A") == [0]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "missing: no tokenizer.ggml.model"),
        ({"tokenizer.ggml.model": "hybriddna"}, "unknown type: tokenizer.ggml.model is 'hybriddna'"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "new"}, "unknown pre-tokenizer 'new'"),
        ({"tokenizer.ggml.model": "llama"}, "lacks tokenizer.ggml.tokens"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1]},
            "2 tokens, but types for 1",
        ),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.merges": ["a b"]},
            "merges do not fit",
        ),
    ],
)
def test_bad_metadata(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        tokenizer_from_metadata(metadata).encode("a")


def test_splitter() -> None:
    tokens = [AddedToken("<a>"), AddedToken("<a><b>"), AddedToken("[m]", lstrip=True, rstrip=True)]
    splitter = Splitter(enumerate([*tokens, AddedToken("zz", single_word=True)]))
    assert list(splitter.split("x<a>y")) == [(0, "x"), 0, (4, "y")]
    assert list(splitter.split("<a><b><a>")) == [1, 0]
    assert list(splitter.split("x  [m]  y")) == [(0, "x"), 2, (8, "y")]
    assert list(splitter.split("zz zzz (zz)")) == [3, (2, " zzz ("), 3, (10, ")")]
    assert list(splitter.split("")) == []
    assert list(Splitter([]).split("<a>")) == [(0, "<a>")]


def test_splitter_goes_by_unicode() -> None:
    splitter = Splitter(enumerate([AddedToken("<w>", single_word=True), AddedToken("<s>", lstrip=True, rstrip=True)]))
    for letter in "aé日\u0301_\u200d५Ⓐ":  # letters, marks, digits, underscores, joiners
        assert list(splitter.split(f"{letter}<w>")) == [(0, f"{letter}<w>")]
    for other in "²½-.€\u00a0":
        assert list(splitter.split(f"{other}<w>")) == [(0, other), 0]
    assert list(splitter.split("a\u3000\u2009\x85<s>\u1680\u2028b")) == [(0, "a"), 1, (9, "b")]
    assert list(splitter.split("a\u200b<s>\u180eb")) == [(0, "a\u200b"), 1, (5, "\u180eb")]


def test_word_pieces_are_put_together_as_the_library_does() -> None:
    from tokenizers import decoders

    words = ["▁don", "▁do", "▁not", "'t", "▁n't", "▁.", "▁,", "▁'", "▁'s", "▁'ve", "s", "▁", "▁▁", "▁?", "▁!", "▁a.b"]
    types = np.array([1] * len(words), np.int32)
    metadata = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": types}
    found, chance = tokenizer_from_metadata(metadata), np.random.default_rng(0)
    texts = ["##" + word if word == "▁" or word[0] != "▁" else word[1:] for word in words]
    for _ in range(300):
        ids = chance.integers(0, len(words), chance.integers(0, 9)).tolist()
        assert found.decode(ids) == decoders.WordPiece().decode([texts[number] for number in ids])


def test_words_that_a_vocabulary_lacks(published: Any):
    """BERT's own number where no key says which token stands for them; one line where there is none."""
    metadata = dict(published("bert-bge").items())
    wanted = tokenizer_from_metadata(metadata).encode("a \U0001f389 word")
    del metadata["tokenizer.ggml.unknown_token_id"]
    assert tokenizer_from_metadata(metadata).encode("a \U0001f389 word") == wanted
    few = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["\u2581a"], "tokenizer.ggml.token_type": [1]}
    with pytest.raises(VocabularyError, match="the file's vocabulary has no words for the text: WordPiece error"):
        tokenizer_from_metadata(few).encode("b")

"""The tokenizer files of a Hugging Face folder, read once: tokenizer.json and its companions.

A folder without tokenizer.json but with the plain files of GPT-2 (vocab.json, merges.txt) or BERT (vocab.txt), with
tekken.json or a tiktoken file is read as if it had one; any other slow tokenizer goes through transformers' converters,
imported only then.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from quants.errors import VocabularyError

from ..small_files import read_json_object, read_text
from .blocks import around, byte_level
from .checked import FLAGS, ROLES, check_ids, check_model, read_tokenizer, read_tokenizer_config
from .ranks import from_ranked_files
from .slow import tokenizer_by_transformers

NOT_GPT2 = ("roberta",)  # models with files like GPT-2's but other tokens around texts


@dataclass(frozen=True)
class AddedToken:
    """A token found in text before the model's own splitting, as tokenizer.json describes it."""

    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    @property
    def is_normalized(self) -> bool:
        """Return whether it is matched in normalized text; special tokens are matched before."""
        return self.normalized and not self.special

    @staticmethod
    def of(entry: Mapping[str, Any]) -> "AddedToken":
        return AddedToken(entry["content"], *(bool(entry.get(flag)) for flag in FLAGS))


@dataclass(frozen=True)
class TokenizerFiles:
    """tokenizer: tokenizer.json, or its equivalent; config: tokenizer_config.json; special_map:
    special_tokens_map.json; added_json: added_tokens.json (token → id). Empty if a file is absent.
    """

    folder: Path
    tokenizer: Mapping[str, Any]
    config: Mapping[str, Any]
    special_map: Mapping[str, Any]
    added_json: Mapping[str, int]

    @staticmethod
    def read(folder: Path) -> "TokenizerFiles":
        """Read a folder's files. Raises FileError for a file that is not JSON, VocabularyError for other content."""
        readers: dict[Path, Callable[[Any, str], dict[str, Any]]] = {
            folder / "tokenizer.json": read_tokenizer,
            folder / "tokenizer_config.json": read_tokenizer_config,
            folder / "special_tokens_map.json": read_tokenizer_config,
            folder / "added_tokens.json": check_ids,
        }
        contents = [read(read_json_object(path, optional=True), str(path)) for path, read in readers.items()]
        files = TokenizerFiles(folder, *contents)
        if not files.tokenizer:
            files = replace(files, tokenizer=_from_plain_files(files))
            check_model(files.tokenizer.get("model", {}), f"the tokenizer of {folder}")
        return files

    def converted(self) -> "TokenizerFiles":
        """Return the files with a tokenizer.json made by transformers. Raises VocabularyError if it cannot."""
        return replace(self, tokenizer=read_tokenizer(tokenizer_by_transformers(self.folder), str(self.folder)))

    @property
    def model_type(self) -> str | None:
        """Return tokenizer.json's model type: "BPE", "Unigram", "WordPiece"."""
        return self.tokenizer.get("model", {}).get("type")  # type: ignore[no-any-return]

    def role(self, role: str) -> str | None:
        """Return the text of the token that plays a role ("bos", "eos", …)."""
        key = f"{role}_token"
        entry = self.config[key] if key in self.config else self.special_map.get(key)
        entry = entry.get("content") if isinstance(entry, Mapping) else entry
        return entry if isinstance(entry, str) else None

    @cached_property
    def listed(self) -> dict[int, AddedToken]:
        """Return the tokens that tokenizer.json itself lists as added, by id."""
        return {entry["id"]: AddedToken.of(entry) for entry in self.tokenizer.get("added_tokens", ())}

    @cached_property
    def configured(self) -> dict[int, AddedToken]:
        """Return the tokens that tokenizer_config.json lists as added, by id."""
        decoder = self.config.get("added_tokens_decoder") or {}
        return {int(number): AddedToken.of(entry) for number, entry in decoder.items()}

    @cached_property
    def added(self) -> dict[int, AddedToken]:
        """Return all added tokens by id, as transformers sees them: tokenizer_config.json overrides."""
        tokens = {number: AddedToken(text) for text, number in self.added_json.items()}
        tokens |= self.listed | self.configured
        vocabulary = self.tokenizer.get("model", {}).get("vocab", {})
        if isinstance(vocabulary, Mapping):
            known = {token.content for token in tokens.values()}
            new = [text for text in self.special_texts() if text in vocabulary and text not in known]
            tokens |= {vocabulary[text]: AddedToken(text, special=True) for text in new}
        return tokens

    def special_texts(self) -> Iterator[str]:
        """Yield the role tokens, and those that tokenizer_config.json adds to them."""
        yield from (text for role in ROLES if (text := self.role(role)))
        extra = self.config.get("extra_special_tokens") or ()
        more = extra.values() if isinstance(extra, Mapping) else extra
        for entry in (*(self.config.get("additional_special_tokens") or ()), *more):
            yield entry["content"] if isinstance(entry, Mapping) else entry


def _from_plain_files(files: TokenizerFiles) -> dict[str, Any]:
    """Return the tokenizer.json equivalent to plain files; empty if there are none."""
    tokenizer_class = str(files.config.get("tokenizer_class", "")).removesuffix("Fast")
    folder, normalizer = files.folder, None
    model_type = read_json_object(folder / "config.json", optional=True).get("model_type")
    is_gpt2 = tokenizer_class == "GPT2Tokenizer" or (not tokenizer_class and model_type not in NOT_GPT2)
    if is_gpt2 and (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        model = {"type": "BPE", "vocab": read_json_object(folder / "vocab.json"), "merges": _merges(folder)}
        cutting = closing = byte_level(bool(files.config.get("add_prefix_space", False)))
    elif ranked := from_ranked_files(folder, read_json_object(folder / "tekken.json", optional=True), files.config):
        return ranked
    elif tokenizer_class in ("", "BertTokenizer", "DistilBertTokenizer") and (folder / "vocab.txt").is_file():
        words = read_text(folder / "vocab.txt").removesuffix("\n").split("\n")
        model = {"type": "WordPiece", "vocab": {word.rstrip("\r"): i for i, word in enumerate(words)}}
        lowercase, accents = files.config.get("do_lower_case", True), files.config.get("strip_accents")
        normalizer = {
            "type": "BertNormalizer",
            "clean_text": True,
            "lowercase": lowercase,
            "strip_accents": accents,
            "handle_chinese_chars": files.config.get("tokenize_chinese_chars", True),
        }
        last = files.role("sep") or "[SEP]"
        single = around(files.role("cls") or "[CLS]", "A", last)
        cutting = {"type": "BertPreTokenizer"}
        closing = {"type": "TemplateProcessing", "single": single, "pair": [*single, *around(None, "B", last)]}
    else:
        return {}
    return {
        "model": model,
        "normalizer": normalizer,
        "pre_tokenizer": cutting,
        "post_processor": closing,
        "added_tokens": [
            {"id": id, **vars(token)} for id, token in replace(files, tokenizer={"model": model}).added.items()
        ],
    }


def _merges(folder: Path) -> list[str]:
    lines = read_text(path := folder / "merges.txt").split("\n")
    if lines == [""]:
        raise VocabularyError(f"{path} is empty", hint="fetch it again")
    return [line for line in lines[lines[0].startswith("#version") :] if line.strip()]

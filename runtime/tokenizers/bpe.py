"""Byte-level BPE, on the `tokenizers` library.

Source: GPT-2's byte characters; pre-tokenizers by name: `archs/vocab/pretokenizers.json`.
"""

import re
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from gguf.constants import Keys, TokenType

from archs.schema import PRE_TOKENIZER
from archs.small_files import parse_json
from archs.vocab.around import pre_name
from archs.vocab.listed import TokenList, as_text
from archs.vocab.pretokenizer import byte_characters, pre_tokenizer
from archs.vocab.restore import normalizer, pre_tokenizer_of
from quants.errors import VocabularyError

from .library import read_library, with_added

NEWLINES = re.compile("(\n\n+)")
BYTE_VALUES = {character: byte for byte, character in byte_characters().items()}


class BytePairs:
    """Model "gpt2": byte characters, and "gemma4": plain text with spaces as U+2581 and byte tokens."""

    def __init__(self, tokens: TokenList) -> None:
        self.tokens = tokens
        self.pre = pre_tokenizer(pre_name(tokens))
        self._bytes_of = cache(lambda number: tokens.as_bytes(number, self._spelled))
        self._library = cache(self._build)
        whole = PRE_TOKENIZER in tokens.metadata or Keys.Tokenizer.HF_JSON in tokens.metadata
        self.prefix_space = self.pre.raw and not whole and tokens.flag(Keys.Tokenizer.ADD_PREFIX, False)

    def encode(self, text: str, start: bool) -> list[int]:
        if not self._lines:
            return self._merged(text, start)
        ids: list[int] = []
        for part in NEWLINES.split(text):
            if part in self._lines:
                ids.append(self._lines[part])
            elif part:
                ids += self._merged(part, start and not ids)
        return ids

    @cached_property
    def _lines(self) -> dict[str, int]:
        """Return tokens of several newlines, which "gemma4" uses for runs of as many, whether merges produce them or
        not.
        """
        if self.tokens.model != "gemma4":
            return {}
        return {text: number for number, text in enumerate(self.tokens.texts) if text[1:] and not text.strip("\n")}

    def _merged(self, text: str, start: bool) -> list[int]:
        if self.prefix_space and not text.startswith(" "):
            text = " " + text
        library = self._library(start or not self.pre.raw)
        ids: list[int] = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def piece(self, number: int) -> bytes:
        return self._bytes_of(number)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._bytes_of, ids)).decode("utf-8", "replace")

    def _spelled(self, text: str) -> bytes:
        if self.pre.raw:
            return (text.replace("▁", " ") if self.pre.escaped else text).encode()
        return b"".join(bytes([BYTE_VALUES[c]]) if c in BYTE_VALUES else c.encode() for c in text)

    def _build(self, start: bool) -> Any:
        """Return the library's tokenizer, without any special tokens. start: for the beginning of the text."""
        if complete := self.tokens.metadata.get(Keys.Tokenizer.HF_JSON):
            return read_library(parse_json(complete) | {"added_tokens": [], "post_processor": None, "truncation": None})
        cuts = pre_tokenizer_of(self.tokens, self.pre, start)
        blocks = {"normalizer": normalizer(self.tokens, self.pre), "pre_tokenizer": cuts}
        tokenizer = read_library({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}} | blocks)
        tokenizer.model = self._merging
        return with_added(tokenizer, self.tokens.matched_normalized)

    @cached_property
    def _merging(self) -> Any:
        """Return the merges, which take most of the time of building."""
        from tokenizers import models

        ignore_merges = self.tokens.flag("tokenizer.huggingface.ignore_merges", self.pre.ignore_merges)
        merges = [_pair(as_text(merge)) for merge in self.tokens.merges()]
        vocabulary = {text: number for number, text in enumerate(self.tokens.texts)}
        vocabulary |= {token.content: number for number, token in self.tokens.matched_normalized.items()}
        if ignore_merges:
            # A whole word is looked up in the vocabulary: it must not be a token that text cannot produce.
            made = {left + right for left, right in merges}
            for number in (self.tokens.types != TokenType.NORMAL).nonzero()[0]:
                if self.tokens.types[number] != TokenType.BYTE and self.tokens.texts[number] not in made:
                    vocabulary.pop(self.tokens.texts[number], None)
        unknown = self.tokens.id(Keys.Tokenizer.UNK_ID) if self.pre.raw else None
        try:
            return models.BPE(
                vocabulary,
                merges,
                ignore_merges=ignore_merges,
                byte_fallback=self.pre.raw,
                fuse_unk=self.pre.raw,
                unk_token=None if unknown is None else self.tokens.texts[unknown],
            )
        except Exception as error:  # the library raises Exception itself
            raise VocabularyError(f"the file's merges do not fit its tokens: {error}") from error


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    return merge[:cut], merge[cut + 1 :]

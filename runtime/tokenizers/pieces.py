"""SentencePiece's BPE and unigram, on the `sentencepiece` library: its model file is rebuilt from tokens and scores.

Source: sentencepiece's `sentencepiece_model.proto`.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from archs.schema import PREPEND_SCHEME
from archs.vocab.listed import TokenList, as_text
from archs.vocab.spaces import blocks_of, has_blocks, merged
from quants.errors import VocabularyError

from .library import read_library, with_added

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
LIBRARY_TYPES = [TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED]  # types that text can become


class Pieces:
    """Model "llama" (BPE) and, with unigram, "t5"."""

    def __init__(self, tokens: TokenList, unigram: bool) -> None:
        self.tokens = tokens
        self.unigram = unigram
        self.prefix_space = tokens.flag(Keys.Tokenizer.ADD_PREFIX)
        self.first_alone = tokens.metadata.get(PREPEND_SCHEME) == "first"
        self.by_blocks = has_blocks(tokens)
        self._bytes_of = cache(lambda number: tokens.as_bytes(number, lambda text: text.replace("▁", " ").encode()))
        self._processor, self._library = cache(self._build), cache(self._build_library)

    def encode(self, text: str, start: bool) -> list[int]:
        """Return ids. A space is put before every piece of text between special tokens, as in llama.cpp, unless the
        file restricts it to the first.
        """
        if self.by_blocks:
            return list(self._library(start).encode_batch_fast([text], add_special_tokens=False)[0].ids)
        prefix = self.prefix_space and (start or not self.first_alone)
        ids: list[int] = self._processor(prefix).encode(text)
        return [number if number < self.tokens.size else self._unknown for number in ids]

    def piece(self, number: int) -> bytes:
        return self._bytes_of(number)

    def decode(self, ids: Sequence[int]) -> str:
        text = b"".join(map(self._bytes_of, ids)).decode("utf-8", "replace")
        begins = bool(ids) and self.tokens.types[ids[0]] == TokenType.NORMAL
        return text[1:] if self.prefix_space and begins and text.startswith(" ") else text

    def _build(self, prefix_space: bool) -> Any:
        """Return the library's processor. Only pieces that text can become keep their type; the others are control
        pieces.
        """
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto()
        types = np.where(np.isin(self.tokens.types, LIBRARY_TYPES), self.tokens.types, TokenType.CONTROL)
        types[self._unknown] = TokenType.UNKNOWN
        seen: set[str] = set()
        for number, (text, score, type) in enumerate(zip(self.tokens.texts, self.tokens.scores, types, strict=True)):
            if not text or text in seen:  # the library requires unique pieces; text cannot produce this one anyway
                text, type = f"<duplicate {number}>", TokenType.CONTROL
            seen.add(text)
            model.pieces.add(piece=text, score=float(score), type=int(type))
        model.trainer_spec.model_type = UNIGRAM if self.unigram else BPE
        if (types == TokenType.BYTE).any():
            model.trainer_spec.byte_fallback = True
            # The library requires all 256; Gemma's fast tokenizer has a tab in place of one.
            for text in sorted({f"<0x{byte:02X}>" for byte in range(256)} - seen):
                model.pieces.add(piece=text, type=int(TokenType.BYTE))
        spec = model.normalizer_spec
        spec.name = "gguf"
        spec.add_dummy_prefix = prefix_space
        spec.remove_extra_whitespaces = self.tokens.flag(Keys.Tokenizer.REMOVE_EXTRA_WS, False)
        charsmap = self.tokens.metadata.get(Keys.Tokenizer.PRECOMPILED_CHARSMAP)
        spec.precompiled_charsmap = b"" if charsmap is None else np.asarray(charsmap).astype(np.uint8).tobytes()
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
        except (RuntimeError, OSError) as error:
            raise VocabularyError(f"the file's vocabulary is not a valid SentencePiece model: {error}") from error

    def _build_library(self, start: bool) -> Any:
        """Return the `tokenizers` library's tokenizer, by the file's blocks of tokenizer.json, which SentencePiece
        cannot apply.
        """
        empty = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
        tokenizer = read_library(empty | blocks_of(self.tokens, start))
        tokenizer.model = self._model
        return with_added(tokenizer, self.tokens.matched_normalized)

    @cached_property
    def _model(self) -> Any:
        from tokenizers import models

        texts, user = list(self.tokens.texts), TokenType.USER_DEFINED
        for number in (self.tokens.stored_types == user).nonzero()[0]:
            texts[number] = texts[number].replace(" ", "▁")  # as pieces are written
        added = self.tokens.matched_normalized
        byte_fallback = bool((self.tokens.types == TokenType.BYTE).any())
        marked = (self.tokens.stored_types == TokenType.UNKNOWN).nonzero()[0]
        unknown = int(marked[0]) if len(marked) else self._unknown
        try:
            if self.unigram:
                reached = np.isin(self.tokens.types, [*LIBRARY_TYPES, TokenType.UNKNOWN])
                texts = [text if reached[row] else f"\0{row}" for row, text in enumerate(texts)]
                texts = [added[row].content if row in added else text for row, text in enumerate(texts)]
                scored = list(zip(texts, map(float, self.tokens.scores), strict=True))
                return models.Unigram(scored, unknown, byte_fallback)
            vocabulary = {text: number for number, text in reversed(list(enumerate(texts)))}
            vocabulary |= {token.content: number for number, token in added.items()}
            return models.BPE(
                vocabulary,
                [merged(as_text(merge), vocabulary) for merge in self.tokens.merges()],
                unk_token=texts[unknown],
                fuse_unk=True,
                byte_fallback=byte_fallback,
            )
        except Exception as error:  # the library raises Exception itself
            raise VocabularyError(f"the file's pieces do not fit each other: {error}") from error

    @cached_property
    def _unknown(self) -> int:
        """Return the token for text that the vocabulary cannot spell."""
        if (stated := self.tokens.stated(Keys.Tokenizer.UNK_ID)) is not None:
            return stated
        marked = (self.tokens.stored_types == TokenType.UNKNOWN).nonzero()[0]
        return int(marked[0]) if len(marked) else self.tokens.id(Keys.Tokenizer.UNK_ID) or 0

"""SentencePiece's BPE and unigram, on the `sentencepiece` library: its model file is rebuilt from tokens and scores.

Source: sentencepiece's `sentencepiece_model.proto`.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from archs.vocab.listed import TokenList
from quants.errors import VocabularyError

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
LIBRARY_TYPES = [TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED]  # what text can become


class Pieces:
    """Model "llama" (BPE) and, with unigram, "t5"."""

    def __init__(self, tokens: TokenList, unigram: bool) -> None:
        self.tokens = tokens
        self.unigram = unigram
        self.add_bos, self.add_eos = not unigram, unigram
        self.prefix_space = tokens.flag(Keys.Tokenizer.ADD_PREFIX, True)
        self._bytes_of = cache(lambda number: tokens.as_bytes(number, lambda text: text.replace("▁", " ").encode()))
        self._processor = cache(self._build)

    def encode(self, text: str, start: bool) -> list[int]:
        """BPE models have a space put in front of the whole text only, unigram models before each piece of it."""
        prefix = self.prefix_space and (start or self.unigram)
        ids: list[int] = self._processor(prefix).encode(text)
        return [number if number < self.tokens.size else self._unknown for number in ids]

    def piece(self, number: int) -> bytes:
        return self._bytes_of(number)

    def decode(self, ids: Sequence[int]) -> str:
        text = b"".join(map(self._bytes_of, ids)).decode("utf-8", "replace")
        begins = bool(ids) and self.tokens.types[ids[0]] == TokenType.NORMAL
        return text[1:] if self.prefix_space and begins and text.startswith(" ") else text

    def _build(self, prefix_space: bool) -> Any:
        """The library's processor. Only pieces that text can become keep their type; the others are control pieces."""
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto()
        types = np.where(np.isin(self.tokens.types, LIBRARY_TYPES), self.tokens.types, TokenType.CONTROL)
        types[self._unknown] = TokenType.UNKNOWN
        seen: set[str] = set()
        for number, (text, score, type) in enumerate(zip(self.tokens.texts, self.tokens.scores, types, strict=True)):
            if not text or text in seen:  # the library wants unique pieces; this one no text can become anyway
                text, type = f"<duplicate {number}>", TokenType.CONTROL
            seen.add(text)
            model.pieces.add(piece=text, score=float(score), type=int(type))
        model.trainer_spec.model_type = UNIGRAM if self.unigram else BPE
        if (types == TokenType.BYTE).any():
            model.trainer_spec.byte_fallback = True
            # The library wants all 256; Gemma's fast tokenizer has a tab in place of one.
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

    @cached_property
    def _unknown(self) -> int:
        """The token for what the vocabulary cannot spell."""
        if (number := self.tokens.id(Keys.Tokenizer.UNK_ID)) is not None:
            return number
        marked = (self.tokens.types == TokenType.UNKNOWN).nonzero()[0]
        return int(marked[0]) if len(marked) else 0

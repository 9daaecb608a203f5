"""WordPiece (BERT), on the `tokenizers` library. Words begin with U+2581 in the file, continuations with nothing."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gguf.constants import TokenType

from archs.vocab.listed import TokenList
from archs.vocab.wordpiece import longest_word, normalizer_of, pre_tokenizer_of, unknown_word, words
from quants.errors import VocabularyError

from .library import read_library, with_added

# Spaces that transformers removes from decoded text, in each word with the space before it.
SPACED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


MATCHED_FIRST = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED)


class WordPieces:
    """Model "bert"."""

    def __init__(self, tokens: TokenList) -> None:
        self.tokens = tokens

    def encode(self, text: str, start: bool) -> list[int]:
        try:
            ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises Exception itself
            raise VocabularyError(f"the file's vocabulary has no words for the text: {error}") from error
        return ids

    def piece(self, number: int) -> bytes:
        return self._inside[number].encode()

    def decode(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        return _clean(self._texts[ids[0]]) + "".join([self._inside[number] for number in ids[1:]])

    @cached_property
    def _inside(self) -> list[str]:
        """Return each token as inside a text: a word has a space before it."""
        return [text[2:] if text.startswith("##") else _clean(f" {text}") for text in self._texts]

    @cached_property
    def _texts(self) -> list[str]:
        texts = words(self.tokens.metadata, self.tokens.texts, self.tokens.types.tolist())
        return [self.tokens.unlisted.get(number, text) for number, text in enumerate(texts)]

    @cached_property
    def _library(self) -> Any:
        from tokenizers import models

        # Tokens matched before the text is split are no parts of words.
        listed = zip(self._texts, self.tokens.types.tolist(), strict=True)
        vocabulary = {text: number for number, (text, type) in enumerate(listed) if type not in MATCHED_FIRST}
        vocabulary |= {token.content: number for number, token in self.tokens.matched_normalized.items()}
        unknown = unknown_word(self.tokens, self._texts)
        if unknown is not None:
            vocabulary[self._texts[unknown]] = unknown
        # The library's JSON requires a vocabulary with the unknown word in it; building the model from texts is
        # quicker.
        model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
        blocks = {"normalizer": normalizer_of(self.tokens), "pre_tokenizer": pre_tokenizer_of(self.tokens)}
        tokenizer = read_library({"version": "1.0", "model": model} | blocks)
        tokenizer.model = models.WordPiece(
            vocabulary,
            unk_token="[UNK]" if unknown is None else self._texts[unknown],
            max_input_chars_per_word=longest_word(self.tokens),
        )
        return with_added(tokenizer, self.tokens.matched_normalized)


def _clean(text: str) -> str:
    for spaced, plain in SPACED:
        text = text.replace(spaced, plain)
    return text

"""A tokenizer rebuilt from GGUF metadata alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Protocol

from gguf.constants import Keys, TokenType

from archs.schema import ADDED_TOKENS
from archs.vocab.around import around_of, roles_of
from archs.vocab.ends import listed_ends
from archs.vocab.files import AddedToken
from archs.vocab.listed import TokenList
from archs.vocab.named import with_strips
from quants.errors import VocabularyError

from .tokenizers.bpe import BytePairs
from .tokenizers.longest import LongestTokens
from .tokenizers.pieces import Pieces
from .tokenizers.special import Splitter
from .tokenizers.viterbi import BestTokens
from .tokenizers.wordpiece import WordPieces


class TokenizerModel(Protocol):
    """One type of vocabulary."""

    def encode(self, text: str, start: bool) -> list[int]:
        """Return ids of a piece of text without special tokens. start: the piece begins the whole text."""

    def piece(self, number: int) -> bytes:
        """Return a token's text inside a text; for a control token its printed form."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of consecutive ids; control tokens in printed form."""


MODELS: dict[str, Callable[[TokenList], TokenizerModel]] = {
    "gpt2": BytePairs,
    "gemma4": BytePairs,
    "llama": lambda tokens: Pieces(tokens, unigram=False),
    "t5": lambda tokens: Pieces(tokens, unigram=True),
    "bert": WordPieces,
    "rwkv": LongestTokens,
    "plamo2": BestTokens,
}


class Tokenizer:
    """Text to token ids and back.

    bos, eos: ids of the tokens that begin and end a text, or None. add_bos, add_eos: whether `encode` adds them.
    around: all tokens that are added around a text, and around and between two.
    """

    def __init__(self, model: TokenizerModel, tokens: TokenList) -> None:
        self._model = model
        self._tokens = tokens
        self._splitter = cache(self._build_splitter)  # by `parse_special`
        roles = roles_of(tokens)
        self.bos, self.eos = roles.bos, roles.eos
        self.around = around_of(tokens, roles)
        self.add_bos = self.bos is not None and self.around.before[:1] == (self.bos,)
        self.add_eos = self.eos is not None and self.around.after[-1:] == (self.eos,)

    @property
    def vocab_size(self) -> int:
        return self._tokens.size

    @cached_property
    def control_ids(self) -> tuple[int, ...]:
        """Return tokens that no text produces."""
        return tuple((self._tokens.types == TokenType.CONTROL).nonzero()[0].tolist())

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Return tokens that are matched in a text before it is split, if special tokens are parsed."""
        return tuple(sorted(self._matched))

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """Return tokens that end a generated text."""
        return end_ids(self._tokens)

    @cached_property
    def pieces(self) -> list[bytes]:
        """Return each token's text inside a text; see `piece`."""
        return [self.piece(number) for number in range(self.vocab_size)]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return token ids of a text.

        add_special: add the tokens around it that the model expects. parse_special: control tokens written in the text
        become those tokens; user-defined ones always do. Raises VocabularyError for text that is not Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"U+{ord(text[error.start]):04X}"
            raise VocabularyError(f"the text has half of a UTF-16 pair, {half}, at character {error.start}") from error
        ids = list(self.around.before) if add_special else []
        for part in self._splitter(parse_special).split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._model.encode(part[1], start=part[0] == 0))
        return [*ids, *self.around.after] if add_special else ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD. skip_special: leave control tokens out.

        Raises VocabularyError for an id that is no token.
        """
        numbers = [int(number) for number in ids]
        size = self.vocab_size
        if numbers and not 0 <= min(numbers) <= max(numbers) < size:
            wrong = next(number for number in numbers if not 0 <= number < size)
            raise VocabularyError(f"{wrong} is no token: the vocabulary has {size}")
        if skip_special:
            numbers = [number for number in numbers if self._tokens.types[number] != TokenType.CONTROL]
        return self._model.decode(numbers)

    def piece(self, number: int) -> bytes:
        """Return a token's bytes inside a text, possibly part of a character; a control token's own text."""
        return self._model.piece(number)

    def text(self, number: int) -> str:
        """Return a token as stored in the file."""
        return self._tokens.texts[number]

    def _build_splitter(self, parse_special: bool) -> Splitter:
        tokens = self._matched.items()
        return Splitter((number, token) for number, token in tokens if parse_special or not token.special)

    @cached_property
    def _matched(self) -> dict[int, AddedToken]:
        """Return the tokens that are matched in text: by their type, and those that types cannot describe."""
        special = {TokenType.CONTROL: True, TokenType.UNKNOWN: True, TokenType.USER_DEFINED: False}
        typed = {
            int(number): AddedToken(self._tokens.texts[number], special[type])
            for type in special
            for number in (self._tokens.types == type).nonzero()[0]
        }
        metadata = self._tokens.metadata
        if ADDED_TOKENS not in metadata:
            typed = {number: with_strips(metadata, token) for number, token in typed.items()}
        tokens = typed | self._tokens.added
        return {number: token for number, token in tokens.items() if number not in self._tokens.matched_normalized}


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return a tokenizer from a file's metadata. The vocabulary is decoded when it is first used.

    metadata: key → value, arrays as (lazy) sequences or numpy arrays. Raises VocabularyError for a missing vocabulary,
    or an unknown type.
    """
    name = metadata.get(Keys.Tokenizer.MODEL)
    if name not in MODELS:
        what = f"of an unknown type: tokenizer.ggml.model is {name!r}" if name else "missing: no tokenizer.ggml.model"
        raise VocabularyError(f"the file's vocabulary is {what}; known are {', '.join(map(repr, MODELS))}")
    tokens = TokenList(metadata)
    return Tokenizer(MODELS[name](tokens), tokens)


def end_ids(tokens: TokenList) -> tuple[int, ...]:
    """Return tokens that end a text, in order: those that keys name or list, and those with such names."""
    return tuple(sorted(tokens.named.ends.union(listed_ends(tokens.metadata))))

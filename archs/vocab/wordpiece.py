"""WordPiece (BERT): words begin with U+2581, continuations have no mark; vocab.txt marks the opposite."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gguf.constants import Keys, TokenType

from ..metadata import Metadata
from ..schema import NORMALIZER, PRE_TOKENIZER
from .blocks import parts
from .byte_bpe import listed_tokens
from .files import TokenizerFiles
from .listed import TokenList

LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
CONTINUATIONS = "tokenizer.huggingface.continuations"  # that begin with U+2581, like words
STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"
LONGEST_WORD_KEY, LONGEST_WORD = "tokenizer.huggingface.max_input_chars_per_word", 100
BERT_NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
IMPLIED = ("type", "clean_text", "handle_chinese_chars")  # which GGUF's keys cannot change
BERT_CUTS = {"type": "BertPreTokenizer"}


def write_wordpiece(metadata: Metadata, files: TokenizerFiles, rows: int, pre: str | None) -> None:
    """Write tokens and types. Raises VocabularyError for a token without a row in the embedding."""
    prefix = files.tokenizer["model"].get("continuing_subword_prefix", "##")
    tokens = listed_tokens(files, rows)
    tokens.texts = [
        text if type == TokenType.CONTROL else text[len(prefix) :] if text.startswith(prefix) else f"▁{text}"
        for text, type in zip(tokens.texts, tokens.types, strict=True)
    ]
    tokens.write(metadata, "bert", pre or "default", scores=False)
    vocabulary = files.tokenizer["model"]["vocab"]
    if unclear := [row for text, row in vocabulary.items() if text[: len(prefix) + 1] == f"{prefix}▁" != text]:
        metadata[CONTINUATIONS] = unclear


def write_normalizer(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write how text is normalized and split: by BERT's keys, and by blocks of tokenizer.json if these do not
    suffice.
    """
    normalizer = files.tokenizer.get("normalizer")
    for key, name in ((LOWERCASE, "lowercase"), (STRIP_ACCENTS, "strip_accents")):
        if isinstance(flag := (normalizer or {}).get(name), bool):
            metadata[key] = flag
    if normalizer is None or any((BERT_NORMALIZER | normalizer)[name] != BERT_NORMALIZER[name] for name in IMPLIED):
        blocks = parts(files.tokenizer, "normalizer")
        lowers = any(block["type"] == "Lowercase" or block.get("lowercase") for block in blocks)
        metadata[LOWERCASE] = metadata.get(LOWERCASE, lowers)
        metadata[NORMALIZER] = json.dumps(normalizer, ensure_ascii=False)
    if files.tokenizer.get("pre_tokenizer") != BERT_CUTS:
        metadata[PRE_TOKENIZER] = json.dumps(files.tokenizer.get("pre_tokenizer"), ensure_ascii=False)
    model = files.tokenizer["model"]
    if (longest := model.get("max_input_chars_per_word", LONGEST_WORD)) != LONGEST_WORD:
        metadata[LONGEST_WORD_KEY] = longest
    unknown = model["vocab"].get(name := model.get("unk_token", "[UNK]"))
    if unknown is not None and name != "[UNK]" and metadata.get(Keys.Tokenizer.UNK_ID) != unknown:
        metadata[Keys.Tokenizer.UNK_ID] = unknown


def normalizer_of(tokens: TokenList) -> Any:
    """Return the normalizer of tokenizer.json, None for none."""
    if NORMALIZER in tokens.metadata:
        return tokens.block(NORMALIZER)
    return BERT_NORMALIZER | {
        "lowercase": tokens.flag(LOWERCASE, True),
        "strip_accents": tokens.metadata.get(STRIP_ACCENTS),
    }


def pre_tokenizer_of(tokens: TokenList) -> Any:
    """Return the pre_tokenizer of tokenizer.json, None for none."""
    return tokens.block(PRE_TOKENIZER) if PRE_TOKENIZER in tokens.metadata else BERT_CUTS


def unknown_word(tokens: TokenList, texts: Sequence[str]) -> int | None:
    """Return the token for unknown words: the file's, else by its usual name, else BERT's. texts: as from `words`."""
    if (stated := tokens.stated(Keys.Tokenizer.UNK_ID)) is not None:
        return stated
    return texts.index("[UNK]") if "[UNK]" in texts else tokens.id(Keys.Tokenizer.UNK_ID)


def longest_word(tokens: TokenList) -> int:
    """Return the maximum number of characters of a word; a longer one is unknown."""
    return int(tokens.metadata.get(LONGEST_WORD_KEY, LONGEST_WORD))


def words(metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int]) -> list[str]:
    """Return a file's tokens as in vocab.txt. U+2581 alone is a continuation, as there is no empty word; so are those
    that the file lists because they begin with it, as words do.
    """
    named = set(metadata.get(CONTINUATIONS, ()))

    def word(row: int, text: str) -> str:
        return text[1:] if text.startswith("▁") and text != "▁" and row not in named else f"##{text}"

    normal = int(TokenType.NORMAL)
    return [word(row, text) if types[row] == normal else text for row, text in enumerate(texts)]

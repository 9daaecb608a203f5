"""WordPiece (BERT): words begin with U+2581, continuations have no mark; the other way round than in vocab.txt."""

from collections.abc import Mapping, Sequence
from typing import Any

from gguf.constants import TokenType

from ..metadata import Metadata
from .byte_bpe import listed_tokens
from .files import TokenizerFiles

LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
CONTINUATIONS = "tokenizer.huggingface.continuations"  # that begin with U+2581, as only words do otherwise
STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"


def write_wordpiece(metadata: Metadata, files: TokenizerFiles, rows: int, pre: str | None) -> None:
    """Write tokens and types. Raises VocabularyError where a token has no row in the embedding."""
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
    """Write how BERT's normalizer treats case and accents."""
    normalizer = files.tokenizer.get("normalizer") or {}
    for key, name in ((LOWERCASE, "lowercase"), (STRIP_ACCENTS, "strip_accents")):
        if isinstance(flag := normalizer.get(name), bool):
            metadata[key] = flag


def words(metadata: Mapping[str, Any], texts: Sequence[str], types: Sequence[int]) -> list[str]:
    """A file's tokens as vocab.txt has them. U+2581 alone is a continuation, as there is no empty word; so are those
    that the file names because they begin with it, which else words do.
    """
    named = set(metadata.get(CONTINUATIONS, ()))

    def word(row: int, text: str) -> str:
        return text[1:] if text.startswith("▁") and text != "▁" and row not in named else f"##{text}"

    normal = int(TokenType.NORMAL)
    return [word(row, text) if types[row] == normal else text for row, text in enumerate(texts)]

"""Byte-level BPE: tokens in GPT-2's byte characters, merges, and the name of the pre-tokenizer."""

import json
from collections.abc import Iterable, Mapping

from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata
from ..schema import NORMALIZER, PRE_TOKENIZER
from .blocks import LayerSpec, parts, split
from .files import TokenizerFiles
from .listed import BYTE
from .pretokenizer import LINES, canonical, cutting, name_of, structure, table
from .spaces import NO_CUTS, SPACES, write_blocks
from .tokens import ADDED_SCORE, Tokens


def write_bpe(metadata: Metadata, files: TokenizerFiles, rows: int, pre: str | None) -> None:
    """Write tokens, types, merges. pre: the pre-tokenizer's name; None: determined from the structure.

    Raises VocabularyError if the structure has no name, or a token has no row in the embedding.
    """
    name = pre or name_of(structure(files.tokenizer), str(files.folder / "tokenizer.json"))
    raw = name in table() and table()[name].raw
    tokens = listed_tokens(files, rows, bytes_too=raw)
    tokens.write(metadata, "gemma4" if raw else "gpt2", name, scores=False)
    write_merges(metadata, files)


def write_plain_bpe(metadata: Metadata, files: TokenizerFiles, rows: int, user_defined: Iterable[str]) -> None:
    """Write tokens, types, scores (all the same) and merges of plain text; the model's name says how text is cut.

    As llama.cpp does for Gemma 4: only tokens with a role are control tokens; the family says which are user-defined.
    """
    tokens, roles = listed_tokens(files, rows, bytes_too=True), set(files.special_texts())
    roles.add("<mask>")  # implicit in Gemma's tokenizer class
    types = dict.fromkeys(roles, TokenType.CONTROL) | dict.fromkeys(user_defined, TokenType.USER_DEFINED)
    for row, token in files.added.items():
        tokens.put(row, token.content, types.get(token.content, TokenType.NORMAL))
    tokens.scores = [ADDED_SCORE] * len(tokens.scores)
    tokens.write(metadata, "gemma4", "", scores=True)
    write_merges(metadata, files)
    metadata[Keys.Tokenizer.ADD_PREFIX] = False
    metadata[Keys.Tokenizer.ADD_BOS] = True
    write_escaped(metadata, files)


def listed_tokens(files: TokenizerFiles, rows: int, bytes_too: bool = False) -> Tokens:
    """Return all tokens of tokenizer.json's vocabulary and the added ones. bytes_too: include byte tokens such as
    `<0x0A>`.
    """
    model = files.tokenizer["model"]
    for name in ("end_of_word_suffix", "continuing_subword_prefix"):
        if model.get("type") == "BPE" and model.get(name):
            where = files.folder / "tokenizer.json"
            raise VocabularyError(f"{where}: the model has {name} {model[name]!r}, which no vocabulary of GGUF has")
    vocabulary: Mapping[str, int] = model["vocab"]
    tokens = Tokens.unused(rows, files, max(vocabulary.values(), default=-1))
    for text, row in vocabulary.items():
        tokens.put(row, text, TokenType.BYTE if bytes_too and BYTE.fullmatch(text) else TokenType.NORMAL)
    tokens.put_added(files.added)
    return tokens


def write_lost_structure(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write what tokenizer.json has and the pre-tokenizer's name does not imply: normalizer, ignored merges, first
    space.
    """
    own = structure(files.tokenizer)
    implied = table().get(metadata[Keys.Tokenizer.PRE])
    if implied is not None and implied.escaped:
        write_escaped(metadata, files)
    elif implied is None or implied.normalizer == own.normalizer:
        pass
    elif own.normalizer in (None, "NFC"):
        metadata["tokenizer.ggml.normalizer.nfc"] = own.normalizer == "NFC"
    else:
        metadata[NORMALIZER] = json.dumps(files.tokenizer["normalizer"], ensure_ascii=False)
    if implied is not None and implied.ignore_merges != own.ignore_merges:
        metadata["tokenizer.huggingface.ignore_merges"] = own.ignore_merges
    if own.prefix_space and Keys.Tokenizer.ADD_PREFIX not in metadata:
        metadata[Keys.Tokenizer.ADD_PREFIX] = True
    # A space before the text differs from one before each piece; and tokenizer_config.json may ask for one or none,
    # against tokenizer.json.
    adds = bool(metadata.get(Keys.Tokenizer.ADD_PREFIX, False))
    if implied is not None and not own.raw and (own.prefix_space or adds):
        cuts = {"pre_tokenizer": files.tokenizer["pre_tokenizer"]}
        if _cut_by(cuts) != _cut_by({"pre_tokenizer": cutting(implied, adds)}):
            metadata[PRE_TOKENIZER] = json.dumps(files.tokenizer["pre_tokenizer"], ensure_ascii=False)


def _cut_by(tokenizer: LayerSpec) -> list[LayerSpec]:
    """Return the blocks that split a text, in canonical spelling."""
    blocks: list[LayerSpec] = []
    for block in parts(tokenizer, "pre_tokenizer"):
        kept = {key: value for key, value in block.items() if key != "trim_offsets"}
        if block["type"] == "Split" and "Regex" in block["pattern"]:
            kept = {**kept, "pattern": canonical(block["pattern"]["Regex"]), "behavior": "", "invert": False}
        blocks.append(kept)
    return blocks


def write_escaped(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write the blocks of tokenizer.json if they do more than replace spaces by U+2581 and, as GGUF's names mean, split
    lines; splitting lines makes no difference unless a token spans a line end.
    """
    cuts = parts(files.tokenizer, "pre_tokenizer")
    over = any("\n" in text and text.strip("\n") for text in files.tokenizer["model"]["vocab"])
    usual = cuts == [split(LINES)] or (cuts in NO_CUTS and not over)
    if parts(files.tokenizer, "normalizer") != [SPACES] or not usual:
        write_blocks(metadata, files)


def write_merges(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write each merge as one string. Spaces within a pair become GPT-2's character for a space."""
    metadata[Keys.Tokenizer.MERGES] = [
        entry if isinstance(entry, str) else " ".join(part.replace(" ", "Ġ") for part in entry)
        for entry in files.tokenizer["model"]["merges"]
    ]

"""How a SentencePiece vocabulary's tokenizer.json treats spaces: as SentencePiece does, or by its own blocks."""

import base64
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gguf.constants import Keys

from ..metadata import Metadata
from ..schema import NORMALIZER, PRE_TOKENIZER, PREPEND_SCHEME
from .blocks import LayerSpec, parts
from .files import TokenizerFiles
from .listed import TokenList
from .named import cuts

CHARSMAP = "precompiled_charsmap"
PREPENDED = {"type": "Prepend", "prepend": "▁"}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
NO_CUTS: tuple[list[LayerSpec], ...] = ([], [AT_SPACES])  # where spaces are already replaced


def is_plain(files: TokenizerFiles) -> bool:
    """Return whether tokenizer.json treats text as SentencePiece does: spaces become U+2581, optionally one in
    front.
    """
    usual = parts(files.tokenizer, "normalizer") in ([PREPENDED, SPACES], [SPACES])
    return usual and parts(files.tokenizer, "pre_tokenizer") in NO_CUTS


def puts_space(tokenizer: LayerSpec) -> bool:
    """Return whether tokenizer.json puts a space before a text."""
    prepends = any(block["type"] == "Prepend" for block in parts(tokenizer, "normalizer"))
    return prepends or any(_scheme(block) != "never" for block in parts(tokenizer, "pre_tokenizer"))


def write_scheme(metadata: Metadata, files: TokenizerFiles, unigram: bool) -> None:
    """Write whether only the first of the texts between special tokens gets a space in front.

    Without a tokenizer.json, `legacy` of Llama's tokenizers in tokenizer_config.json says so.
    """
    blocks = parts(files.tokenizer, "pre_tokenizer")
    if any(block["type"] == "Prepend" for block in parts(files.tokenizer, "normalizer")):
        return
    first = any(_scheme(block) == "first" for block in blocks)
    if first or (not files.tokenizer and not unigram and files.config.get("legacy") is False):
        metadata[PREPEND_SCHEME] = "first"


def write_blocks(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write tokenizer.json's normalizer and pre-tokenizer; a character map has a key of its own."""
    normalizer = _mapped(
        files.tokenizer.get("normalizer"), lambda block: {key: value for key, value in block.items() if key != CHARSMAP}
    )
    metadata[NORMALIZER] = json.dumps(normalizer, ensure_ascii=False)
    metadata[PRE_TOKENIZER] = json.dumps(files.tokenizer.get("pre_tokenizer"), ensure_ascii=False)


def has_blocks(tokens: TokenList) -> bool:
    """Return whether a file has tokenizer.json blocks that go beyond SentencePiece."""
    return NORMALIZER in tokens.metadata or PRE_TOKENIZER in tokens.metadata


def blocks_of(tokens: TokenList, start: bool = True) -> dict[str, Any]:
    """Return the two blocks of a file. start: whether this is the beginning of the text."""

    def later(block: LayerSpec) -> LayerSpec:
        return block if start or _scheme(block) != "first" else {**block, "prepend_scheme": "never"}

    return {
        "normalizer": _mapped(tokens.block(NORMALIZER), partial(with_charsmap, tokens)),
        "pre_tokenizer": _mapped(tokens.block(PRE_TOKENIZER), later),
    }


def with_charsmap(tokens: TokenList, block: LayerSpec) -> LayerSpec:
    """Return a normalizer with the file's character map, if it uses one and lacks it."""
    if block.get("type") != "Precompiled" or CHARSMAP in block:
        return block
    charsmap = np.asarray(tokens.metadata.get(Keys.Tokenizer.PRECOMPILED_CHARSMAP, ()))
    return {**block, CHARSMAP: base64.b64encode(charsmap.astype(np.uint8).tobytes()).decode()}


def merged(merge: str, known: Container[str]) -> tuple[str, str]:
    """Return the two tokens of a merge, whose spaces files write as GPT-2's character for a space. known: all
    tokens.
    """
    cut = merge.find(" ", 1)
    left, right = merge[:cut], merge[cut + 1 :]
    if left in known and right in known:
        return left, right
    return left.replace("Ġ", " "), right.replace("Ġ", " ")


def merges_as_scores(vocabulary: Mapping[str, int], merges: Sequence[Any]) -> bool:
    """Return whether merging by scores of pieces equals merging by ranks of pairs: all pairs that make a piece are
    there, and those of one piece are consecutive.
    """
    pairs = [tuple(entry.split(" ", 1) if isinstance(entry, str) else entry) for entry in merges]
    known, previous, seen = set(pairs), "", set[str]()
    for left, right in pairs:
        if (made := left + right) != previous and made in seen:
            return False
        seen.add(made)
        previous = made
    return all(pair in known for pair in possible_pairs(vocabulary))


def possible_pairs(vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of pieces that make a piece."""
    for text in vocabulary:
        for left, right in cuts(text):
            if left in vocabulary and right in vocabulary:
                yield left, right


def _scheme(block: LayerSpec) -> str:
    """Return where a block puts a space: "always", "first", "never"."""
    if block.get("type") != "Metaspace":
        return "never"
    default = "always" if block.get("add_prefix_space", True) else "never"  # files older than prepend_scheme
    return str(block.get("prepend_scheme", default))


def _mapped(block: Any, change: Callable[[LayerSpec], LayerSpec]) -> Any:
    """Return a block with a change applied to each nested block."""
    if not isinstance(block, Mapping):
        return block
    inner = {
        key: [_mapped(each, change) for each in block[key]]
        for key in ("normalizers", "pretokenizers")
        if isinstance(block.get(key), list)
    }
    return {**change(block), **inner}

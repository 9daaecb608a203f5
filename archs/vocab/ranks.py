"""Vocabularies of ranked byte strings (tiktoken files, Mistral's tekken.json), as equivalent tokenizer.json.

Two neighbouring strings merge if the joined string has a rank, the lowest first; so a string's own merge is the pair
that remains when it is merged by lower ranks only. A word with a rank is one token: `ignore_merges`.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from quants.errors import VocabularyError

from ..small_files import read_vocabulary
from ..typed_json import Fields, FieldType, Flag, ListOf, Text, Whole, read_fields
from .blocks import around, byte_level, split
from .pretokenizer import byte_characters, pre_tokenizer

# A tiktoken file does not say how text is split; the tokenizer class published with it does.
PRE_TOKENIZERS = {"TikTokenTokenizer": "kimi-k2", "QWenTokenizer": "qwen2", "ChatGLM4Tokenizer": "chatglm-bpe"}
TEKKEN_SPECIAL = (  # of tekken.json files that do not list their own
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "<pad>",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
)

LONGEST = 512  # bytes of a word
TEKKEN: dict[str, FieldType] = {
    "config": Fields(
        {"default_num_special_tokens": Whole(0, 1 << 20), "default_vocab_size": Whole(), "pattern": Text()}
    ),
    "special_tokens": ListOf(Fields({"rank": Whole(), "token_str": Text(), "is_control": Flag()})),
}


def from_ranked_files(folder: Path, tekken: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of tokenizer.json; empty if the folder has no such file.

    tekken: content of tekken.json; config: of tokenizer_config.json, which names a tiktoken file's special tokens.
    Raises VocabularyError for a damaged file.
    """
    if tekken:
        return _from_tekken(tekken)
    for path in [*sorted(folder.glob("*.tiktoken")), folder / "tokenizer.model"]:
        if path.is_file() and (ranks := _read_tiktoken(path)):
            name = PRE_TOKENIZERS.get(str(config.get("tokenizer_class", "")))
            steps = map(str, pre_tokenizer(name).steps if name else ())
            added = [{"id": int(id), **token} for id, token in (config.get("added_tokens_decoder") or {}).items()]
            content = _tokenizer_json(ranks, 0, steps, added)
            return content | {"normalizer": {"type": "NFC"}} if name == "qwen2" else content
    return {}


def _from_tekken(tekken: Mapping[str, Any]) -> dict[str, Any]:
    tekken = read_fields(tekken, TEKKEN, "tekken.json", VocabularyError)
    settings = tekken["config"]
    count = settings["default_num_special_tokens"]
    usual = [{"rank": rank, "token_str": text} for rank, text in enumerate(TEKKEN_SPECIAL)]
    listed = {entry["rank"]: entry for entry in tekken.get("special_tokens") or usual}
    entries = [listed.get(rank, {"token_str": f"<SPECIAL_{rank}>"}) for rank in range(count)]
    added = [
        {"id": rank, "content": entry["token_str"], "special": bool(entry.get("is_control", True))}
        for rank, entry in enumerate(entries)
    ]
    kept = tekken["vocab"][: settings["default_vocab_size"] - count]
    ranks = {base64.b64decode(entry["token_bytes"]): int(entry["rank"]) for entry in kept}
    template = {"type": "TemplateProcessing", "single": around("<s>", "A", None)}
    return _tokenizer_json(ranks, count, [settings["pattern"]], added) | {"post_processor": template}


def _read_tiktoken(path: Path) -> dict[bytes, int]:
    """Return lines of a base64 byte string and its rank. Empty for a file of another type."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_vocabulary(path).splitlines()):
        text, _, rank = line.partition(b" ")
        try:
            ranks[base64.b64decode(text, validate=True)] = int(rank)
        except (binascii.Error, ValueError) as error:
            if not number:
                return {}
            raise VocabularyError(f"{path} is damaged: line {number + 1} is no base64 string and rank") from error
    return ranks


def _tokenizer_json(ranks: Mapping[bytes, int], offset: int, splits: Iterable[str], added: list[Any]) -> dict[str, Any]:
    """Return the tokenizer.json. offset: the id of rank 0."""
    if (longest := max(map(len, ranks), default=0)) > LONGEST:
        raise VocabularyError(f"the tokenizer has a word of {longest} bytes; at most {LONGEST} were expected")
    character = byte_characters()
    texts = {word: "".join(character[byte] for byte in word) for word in ranks}
    ordered = sorted((rank, word) for word, rank in ranks.items() if len(word) > 1)
    pairs = [pair for rank, word in ordered if len(pair := _parts_below(ranks, word, rank)) == 2]
    return {
        "model": {
            "type": "BPE",
            "vocab": {texts[word]: rank + offset for word, rank in ranks.items()},
            "merges": [[texts[left], texts[right]] for left, right in pairs],
            "ignore_merges": True,
        },
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*map(split, splits), byte_level(use_regex=False)]},
        "post_processor": None,
        "added_tokens": added,
    }


def _parts_below(ranks: Mapping[bytes, int], word: bytes, limit: int) -> list[bytes]:
    """Return the parts of a word after merging pairs with ranks below a limit."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 2:
        rank, place = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts

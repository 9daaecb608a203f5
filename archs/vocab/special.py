"""Ids of special tokens, and which of them are put around a text: by the rules of `gguf.SpecialVocab`.

A role's token comes from tokenizer_config.json (else special_tokens_map.json) and its id from tokenizer.json's added
tokens; config.json fills in missing ones. The tokens around a text come from tokenizer.json's post-processor;
`add_bos_token` and similar flags of tokenizer_config.json override it.
"""

from collections.abc import Mapping
from typing import Any

from gguf.constants import Keys

from quants.errors import VocabularyError

from ..metadata import Metadata
from ..schema import SPECIAL_TOKENS
from .blocks import LayerSpec, parts, token_of
from .checked import ROLES
from .ends import stated_ends
from .files import TokenizerFiles

# Built into the class of XLM-RoBERTa's tokenizers, if there is no tokenizer.json.
FAIRSEQ = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"}
ADD_KEYS = {"bos": Keys.Tokenizer.ADD_BOS, "eos": Keys.Tokenizer.ADD_EOS, "sep": Keys.Tokenizer.ADD_SEP}


def write_special(
    metadata: Metadata,
    files: TokenizerFiles,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    rows: int,
    vocab_type: str = "",
) -> None:
    """Write the ids of special tokens and the add_* flags. Ids beyond `rows` are left out. vocab_type: see
    `vocabulary`.

    Raises VocabularyError for a negative id.
    """
    texts, adds = _special(files)
    if vocab_type == "fairseq" and not files.tokenizer:
        texts, adds = FAIRSEQ | texts, {"bos": True, "eos": True, "sep": True} | adds
    ids: dict[str, int] = {}
    for role, text in texts.items():
        number = next((i for i, token in files.listed.items() if token.content == text), None)
        _fill(ids, role, number, rows)
    for role in texts | dict.fromkeys(ROLES):
        _fill(ids, role, config.get(f"{role}_token_id"), rows)
    listed = stated_ends(config, generation)
    _fill(ids, "eos", listed[0] if isinstance(listed, list) and listed else listed, rows)
    tokens = metadata[Keys.Tokenizer.LIST]
    for role in FAIRSEQ if vocab_type == "fairseq" else ("bos", "eos"):
        if role not in ids and texts.get(role) in tokens:
            _fill(ids, role, tokens.index(texts[role]), rows)
    for role, number in ids.items():
        if role != "cls":  # a classifier's first token is its BOS
            metadata[SPECIAL_TOKENS[role]] = number
    for role, flag in adds.items():
        metadata[ADD_KEYS[role]] = flag


def _special(files: TokenizerFiles) -> tuple[dict[str, str], dict[str, bool]]:
    """Return each role's text, in the order they are written, and the tokens around a text."""
    texts, adds = {role: text for role in ROLES if (text := files.role(role))}, dict[str, bool]()
    if files.tokenizer:
        for role, stand_in in (("bos", "cls"), ("eos", "sep")):
            if role not in texts and stand_in in texts:
                texts[role] = texts[stand_in]
        for processor in parts(files.tokenizer, "post_processor"):
            match processor["type"]:
                case "ByteLevel":
                    adds |= {"bos": False, "eos": False}
                case "RobertaProcessing":  # <s> A </s></s> B </s>
                    adds |= {"bos": True, "eos": True, "sep": True}
                    for role in ("cls", "sep"):
                        texts.setdefault(role, processor[role][0])
                case "TemplateProcessing":
                    _template(texts, adds, processor)
    texts = {role: texts[role] for role in (*ROLES, "eot") if role in texts}
    for role in ADD_KEYS:
        if isinstance(flag := files.config.get(f"add_{role}_token"), bool):
            adds[role] = flag
    return texts, adds


def _template(texts: dict[str, str], adds: dict[str, bool], processor: LayerSpec) -> None:
    """Record a template of special tokens and texts, for one text and for a pair."""
    single, pair = processor.get("single", []), processor.get("pair", [])
    first = last = None
    if len(single) > 1:
        first, last = token_of(single[0]), token_of(single[-1])
    if first:
        texts.setdefault("bos", first)
        adds["bos"] = first in (texts["bos"], texts.get("cls"))
    if last:
        if "eos" in texts and last != texts["eos"]:
            texts["eot"] = texts["eos"]  # ends a turn, if another token ends the text
        texts["eos"] = last
        adds["eos"] = True
    inner = _between(pair, first, last)
    if inner is not None:
        ends = (texts.get("sep"), texts.get("eos"))
        adds["sep"] = (not last and inner[0] in ends) or (len(inner) == 2 and inner[1] in ends)
        if adds["sep"] and "eos" in texts:
            texts.setdefault("sep", texts["eos"])


def _between(pair: list[LayerSpec], first: str | None, last: str | None) -> list[str | None] | None:
    """Return the tokens between the two texts of a pair; None if there are none."""
    start = 1 if first and pair and token_of(pair[0]) == first else 0
    stop = len(pair) - 1 if last and pair and token_of(pair[-1]) == last else len(pair)
    body = pair[start:stop]
    if len(body) < 3 or [part.get("Sequence", {}).get("id") for part in (body[0], body[-1])] != ["A", "B"]:
        return None
    return [token_of(part) for part in body[1:-1]]


def _fill(ids: dict[str, int], role: str, number: Any, rows: int) -> None:
    """Set a role's id unless it has one or the id is none."""
    if not isinstance(number, int) or isinstance(number, bool) or role in ids or number >= rows:
        return
    if number < 0:
        raise VocabularyError(f"{role}_token_id is {number}; a token's id is not negative")
    ids[role] = number

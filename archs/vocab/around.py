"""The special tokens around a text, and around and between two: by a tokenizer, and by a file.

A file gives flags and ids, which can name one token in front and one at the end. Whatever they cannot express is stored
in `tokenizer.huggingface.post_processor`, as tokenizer.json writes it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata
from ..schema import POST_PROCESSOR
from .absent import BERT, GPT2
from .blocks import LayerSpec, parts, token_of
from .files import TokenizerFiles
from .listed import TokenList
from .pretokenizer import pre_tokenizer

CLS_ID = "tokenizer.ggml.cls_token_id"
HINT = "gguftools knows templates of special tokens around one text and around two"
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Around:
    """Ids of the tokens before and after a text; before, between and after two."""

    before: Ids = ()
    after: Ids = ()
    before_pair: Ids = ()
    between: Ids = ()
    after_pair: Ids = ()

    def agrees(self, other: "Around") -> bool:
        """Return whether both treat texts alike; pairs matter only if something ends a text, in models that read
        pairs.
        """
        single = (self.before, self.after) == (other.before, other.after)
        return single and (not self.after or replace(self, before=(), after=()) == replace(other, before=(), after=()))


@dataclass(frozen=True)
class Roles:
    """Ids of the tokens that begin and end a text and separate two, and whether they are added."""

    bos: int | None
    eos: int | None
    sep: int | None
    add_bos: bool
    add_eos: bool
    add_sep: bool

    @property
    def around(self) -> Around:
        before = (self.bos,) if self.add_bos and self.bos is not None else ()
        after = (self.eos,) if self.add_eos and self.eos is not None else ()
        between = after + ((self.sep,) if self.add_sep and self.sep is not None else ())
        return Around(before, after, before, between, after)


def roles_of(tokens: TokenList) -> Roles:
    """Return the roles by a file's flags and ids, and the defaults of absent ones (`absent.py`)."""
    bos = _first(tokens.stated(Keys.Tokenizer.BOS_ID), tokens.stated(CLS_ID), tokens.id(Keys.Tokenizer.BOS_ID))
    sep = tokens.stated(Keys.Tokenizer.SEP_ID)
    if tokens.model == BERT:
        return Roles(bos, _bert_end(tokens), sep, True, True, False)
    eos = _first(tokens.stated(Keys.Tokenizer.EOS_ID), sep, tokens.id(Keys.Tokenizer.EOS_ID))
    names = tokens.model in (GPT2, "gemma4")
    pre = pre_tokenizer(pre_name(tokens)) if names else None
    add_bos = tokens.flag(Keys.Tokenizer.ADD_BOS, pre.add_bos if pre else None) or (pre is not None and pre.always_bos)
    add_sep = tokens.flag(Keys.Tokenizer.ADD_SEP, pre.add_sep if pre else None)
    return Roles(bos, eos, sep, add_bos, tokens.flag(Keys.Tokenizer.ADD_EOS), add_sep)


def pre_name(tokens: TokenList) -> str:
    """Return the name of a BPE vocabulary's pre-tokenizer; for Gemma 4's files it follows from the model's name."""
    return "gemma4" if tokens.model == "gemma4" else tokens.metadata.get(Keys.Tokenizer.PRE) or "default"


def _bert_end(tokens: TokenList) -> int | None:
    """Return BERT's separator, which ends each text whatever a file gives as end of text."""
    if (stated := tokens.stated(Keys.Tokenizer.SEP_ID)) is not None:
        return stated
    usual, eos = tokens.id(Keys.Tokenizer.SEP_ID), tokens.stated(Keys.Tokenizer.EOS_ID)
    is_word = usual is not None and tokens.types[usual] == TokenType.NORMAL
    return eos if eos is not None and (usual is None or is_word) else usual


def around_of(tokens: TokenList, roles: Roles) -> Around:
    """Return the tokens around texts by a file's own key, else by its flags and ids."""
    if POST_PROCESSOR not in tokens.metadata:
        return roles.around
    block = tokens.block(POST_PROCESSOR)
    places = {text: number for number, text in enumerate(tokens.texts)} if block else {}
    return processed({"post_processor": block}, places, POST_PROCESSOR, tokens.size)


def write_around(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write the post-processor's tokens around texts if the file's flags and ids do not express them.

    tokenizer_config.json's `add_bos_token` and `add_eos_token` override it.
    """
    if not files.tokenizer:
        return
    tokens = TokenList(metadata)
    places = {text: number for number, text in enumerate(tokens.texts)}
    vocabulary = files.tokenizer.get("model", {}).get("vocab", {})
    places |= vocabulary if isinstance(vocabulary, Mapping) else {}
    places |= {token.content: number for number, token in files.added.items()}
    wanted = processed(files.tokenizer, places, str(files.folder / "tokenizer.json"), tokens.size)
    for role, side in (("bos", "before"), ("eos", "after")):
        if isinstance(flag := files.config.get(f"add_{role}_token"), bool):
            wanted = _configured(wanted, side, places.get(files.role(role) or ""), flag)
    if not wanted.agrees(around_of(tokens, roles_of(tokens))):
        metadata[POST_PROCESSOR] = json.dumps(template(wanted, tokens.texts), ensure_ascii=False)


def _configured(wanted: Around, side: str, number: int | None, flag: bool) -> Around:
    """Return the tokens around texts with a token there, or without it."""
    ids: Ids = getattr(wanted, side)
    if number is None or flag == (number in ids):
        return wanted
    changed = (*ids, number) if flag else tuple(each for each in ids if each != number)
    paired: Ids = getattr(wanted, f"{side}_pair")
    paired = (*paired, number) if flag else tuple(each for each in paired if each != number)
    return replace(wanted, **{side: changed, f"{side}_pair": paired})


def processed(tokenizer: LayerSpec, places: Mapping[str, int], where: str, size: int) -> Around:
    """Return the tokens that a tokenizer.json's post-processor puts around texts. places: ids by text, for templates
    that name none.

    Raises VocabularyError if it does anything else, or uses tokens that do not exist.
    """
    result = Around()
    blocks = [block for block in parts(tokenizer, "post_processor") if block["type"] != "ByteLevel"]
    if len(blocks) > 1:
        names = ", then ".join(block["type"] for block in blocks)
        raise VocabularyError(f"{where}: texts go through {names}; one template was expected", HINT)
    for block in blocks:
        if block["type"] == "TemplateProcessing":
            single, pair = (_sides(block, name, places, where) for name in ("single", "pair"))
            result = Around(single[0], single[-1], pair[0], pair[1], pair[-1])
        elif block["type"] in ("BertProcessing", "RobertaProcessing"):
            begin, end = (int(block["cls"][1]),), (int(block["sep"][1]),)
            result = Around(begin, end, begin, end * (1 + (block["type"] == "RobertaProcessing")), end)
        else:
            raise VocabularyError(f"{where} has a post-processor {block['type']!r}, which is not known", HINT)
    used = {number for ids in vars(result).values() for number in ids}
    if wrong := sorted(number for number in used if not 0 <= number < size):
        raise VocabularyError(f"{where} puts token {wrong[0]} around texts, but there are {size} tokens")
    return result


def _sides(block: LayerSpec, name: str, places: Mapping[str, int], where: str) -> list[Ids]:
    """Return the special tokens before, between and after the texts of a template."""
    sides, texts = [list[int]()], list[str]()
    special = block.get("special_tokens", {})
    for part in block.get(name, ()):
        if (text := token_of(part)) is None:
            texts.append(str(part.get("Sequence", {}).get("id")))
            sides.append([])
        elif text in special:
            sides[-1] += map(int, special[text]["ids"])
        elif text in places:
            sides[-1].append(places[text])
        else:
            raise VocabularyError(f"{where}: the template of a {name} has {text!r}, which is no token")
    wanted = ["A"] if name == "single" else ["A", "B"]
    if texts != wanted and (texts or name == "single"):
        raise VocabularyError(f"{where}: the template of a {name} has the texts {', '.join(texts) or 'none'}", HINT)
    return [tuple(side) for side in sides] if texts else [(), (), ()]


def template(around: Around, texts: Sequence[str]) -> dict[str, Any] | None:
    """Return the tokens around texts as tokenizer.json's post-processor; None if there are none. texts: of the
    tokens.
    """
    used = sorted({number for ids in vars(around).values() for number in ids})
    if not used:
        return None

    def special(ids: Iterable[int], type_id: int) -> list[LayerSpec]:
        return [{"SpecialToken": {"id": texts[number], "type_id": type_id}} for number in ids]

    def sequence(name: str, type_id: int) -> LayerSpec:
        return {"Sequence": {"id": name, "type_id": type_id}}

    pair = [*special(around.before_pair, 0), sequence("A", 0), *special(around.between, 0), sequence("B", 1)]
    return {
        "type": "TemplateProcessing",
        "single": [*special(around.before, 0), sequence("A", 0), *special(around.after, 0)],
        "pair": [*pair, *special(around.after_pair, 1)],
        "special_tokens": {
            texts[number]: {"id": texts[number], "ids": [number], "tokens": [texts[number]]} for number in used
        },
    }


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)

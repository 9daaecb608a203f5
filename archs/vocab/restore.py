"""Restore the tokenizer files of a Hugging Face folder from GGUF metadata.

Byte-level BPE becomes tokenizer.json, SentencePiece's BPE tokenizer.model and usually tokenizer.json (all that
transformers reads for most model types), its unigram spiece.model, WordPiece vocab.txt. PLaMo's and RWKV's lists of
tokens become those files again. Each comes with tokenizer_config.json: special tokens, added tokens and chat templates.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType
from numpy.typing import NDArray

from quants.errors import VocabularyError

from ..schema import NORMALIZER, POST_PROCESSOR, PRE_TOKENIZER, PREPEND_SCHEME, SPECIAL_TOKENS
from . import plamo, rwkv
from .around import around_of, roles_of, template
from .blocks import around, byte_level
from .chat import DEFAULT, restored_templates
from .checked import ROLES
from .files import AddedToken
from .listed import TokenList, as_text
from .pretokenizer import PreTokenizer, cutting, pre_tokenizer
from .spaces import AT_SPACES, PREPENDED, SPACES, blocks_of, has_blocks, merged, with_charsmap
from .special import ADD_KEYS
from .tokens import ADDED_SCORE, NAMED_TYPES
from .wordpiece import LONGEST_WORD_KEY, longest_word, unknown_word, words
from .wordpiece import normalizer_of as word_normalizer
from .wordpiece import pre_tokenizer_of as word_cuts

METASPACE = {"type": "Metaspace", "replacement": "▁"}
SPACES_IN_A_ROW = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
CLASSES = {
    **dict.fromkeys(("gpt2", "gemma4"), "PreTrainedTokenizerFast"),
    "llama": "LlamaTokenizer",
    "t5": "T5Tokenizer",
    "bert": "BertTokenizer",
}
OTHERS = ("plamo2", "rwkv")  # which no class of transformers reads
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # first of XLM-RoBERTa's tokens; its model file begins with <unk>


class _Vocabulary(TokenList):
    """A file's token list, to be written as tokenizer files."""

    @cached_property
    def types(self) -> NDArray[np.int32]:
        """Return the stored types; types decided by names are not the checkpoint's."""
        return self.stored_types

    @cached_property
    def is_whole(self) -> bool:
        """Return whether only a tokenizer.json can reproduce the file's tokenization."""
        return has_blocks(self) or LONGEST_WORD_KEY in self.metadata

    @cached_property
    def is_fairseq(self) -> bool:
        """Return whether its tokens are in XLM-RoBERTa's order."""
        return self.model == "t5" and tuple(self.texts[: len(FAIRSEQ)]) == FAIRSEQ

    @cached_property
    def matched_first(self) -> dict[int, AddedToken]:
        """Return the tokens matched in text before anything else, by row."""
        user, matched = TokenType.USER_DEFINED, {TokenType.CONTROL, TokenType.USER_DEFINED}
        matched |= {TokenType.UNKNOWN} if self.is_whole else set()
        return {
            row: AddedToken(self.texts[row], special=each != user)
            for row, each in enumerate(self.types.tolist())
            if each in matched
            and (self.is_whole or self.model in ("gpt2", "gemma4", "bert", "rwkv") or self.scores[row] == ADDED_SCORE)
        } | self.added

    @cached_property
    def own_rows(self) -> int:
        """Return how many rows are the model's own, before added tokens and unused rows."""
        count, unused, unknown = self.size, TokenType.UNUSED, TokenType.UNKNOWN
        while count and self.types[count - 1] == unused and count - 1 not in self.matched_first:
            count -= 1
        while count and count - 1 in self.matched_first and self.types[count - 1] != unknown:
            count -= 1
        return count

    def text(self, role: str) -> str | None:
        number = self.id(SPECIAL_TOKENS[role])
        return None if number is None else self.named_text(number)

    def named_text(self, number: int) -> str:
        return self.matched_first[number].content if number in self.matched_first else self.texts[number]

    def is_special(self, role: str) -> bool:
        """Return whether a role's token is one that no text produces; others are named in config.json, by id."""
        number = self.id(SPECIAL_TOKENS[role])
        return number is not None and (number in self.matched_first or self.types[number] in NAMED_TYPES)

    def is_piece(self, row: int) -> bool:
        """Return whether the SentencePiece model itself defines an added token."""
        return self.model in ("llama", "t5") and row < self.size and bool(self.types[row] == TokenType.NORMAL)


def restored_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """Return file name → content. Raises VocabularyError for a missing vocabulary, or one of a type that cannot be
    written.
    """
    model, vocabulary = metadata.get(Keys.Tokenizer.MODEL), _Vocabulary(metadata)
    if model not in (*CLASSES, *OTHERS) or Keys.Tokenizer.LIST not in metadata:
        raise VocabularyError(f"a vocabulary of the type {model!r} cannot become tokenizer files")
    if model in ("gpt2", "gemma4"):
        vocabulary.merges()  # whatever else the file has
    types, known = metadata.get(Keys.Tokenizer.TOKEN_TYPE, ()), frozenset(TokenType)
    if (odd := next((row for row, each in enumerate(types) if int(each) not in known), None)) is not None:
        first, last = min(known), max(known)
        raise VocabularyError(f"token {odd} is of type {types[odd]}; types from {first:d} to {last:d} are known")
    configured = _config(vocabulary)
    files = {"tokenizer_config.json": _json(configured)}
    if roles := {key: configured[key] for role in ROLES if (key := f"{role}_token") in configured}:
        files["special_tokens_map.json"] = _json(roles)
    if model in OTHERS:
        return files | _others(vocabulary)
    if whole := metadata.get(Keys.Tokenizer.HF_JSON):
        return files | {"tokenizer.json": as_text(whole).encode()}
    if model == "gpt2":
        return files | {"tokenizer.json": _json(_byte_bpe(vocabulary))}
    if model == "gemma4":
        return files | {"tokenizer.json": _json(_plain_bpe(vocabulary))}
    whole_json = {"bert": _word_pieces, "t5": _unigram, "llama": _sentencepiece_bpe}[str(model)]
    if vocabulary.is_whole:
        return files | {"tokenizer.json": _json(whole_json(vocabulary))}
    files |= _plain_files(vocabulary)
    if model == "llama" and metadata.get(Keys.Tokenizer.ADD_BOS, True) and Keys.Tokenizer.ADD_SEP not in metadata:
        needed = POST_PROCESSOR in metadata  # a conversion writes ADD_SEP if tokenizer.json adds a first token
    else:
        needed = model == "llama" or POST_PROCESSOR in metadata
    return files | ({"tokenizer.json": _json(whole_json(vocabulary))} if needed else {})


def _plain_files(vocabulary: _Vocabulary) -> dict[str, bytes]:
    """Return the word list or the model file of a vocabulary that has one."""
    if vocabulary.model == "bert":
        used = [row for row, each in enumerate(vocabulary.types) if each != TokenType.UNUSED]
        listed = words(vocabulary.metadata, vocabulary.texts, vocabulary.types.tolist())[: used[-1] + 1]
        return {"vocab.txt": "".join(f"{word}\n" for word in listed).encode()}
    name = "sentencepiece.bpe.model" if vocabulary.is_fairseq else "spiece.model"
    name = name if vocabulary.model == "t5" else "tokenizer.model"
    return {name: _sentencepiece(vocabulary, unigram=vocabulary.model == "t5")}


def _others(vocabulary: _Vocabulary) -> dict[str, bytes]:
    """Return lists of tokens as PLaMo's and RWKV's code has them, without the extra rows of the embedding."""
    types = vocabulary.types.tolist()
    count = next((row + 1 for row in range(vocabulary.size - 1, -1, -1) if types[row] != TokenType.UNUSED), 0)
    if TokenType.UNUSED in types[:count]:
        gap = types.index(TokenType.UNUSED)
        raise VocabularyError(f"token {gap} is unused; vocabularies of the type {vocabulary.model!r} have no gaps")
    texts = vocabulary.texts[:count]
    if vocabulary.model == "rwkv":
        return {rwkv.FILE: rwkv.restored(texts)}
    return {plamo.FILE: plamo.restored(texts, vocabulary.scores.tolist(), types[:count])}


def _json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2, default=as_text).encode()


def _config(vocabulary: _Vocabulary) -> dict[str, Any]:
    """Return tokenizer_config.json."""
    metadata = vocabulary.metadata
    config: dict[str, Any] = {f"{role}_token": vocabulary.text(role) for role in ROLES if vocabulary.is_special(role)}
    roles = roles_of(vocabulary)
    adds = {"bos": roles.add_bos, "eos": roles.add_eos, "sep": roles.add_sep}
    for role, key in ADD_KEYS.items():
        if key in metadata and POST_PROCESSOR not in metadata:
            config[f"add_{role}_token"] = adds[role]
    if Keys.Tokenizer.ADD_PREFIX in metadata:
        config["add_prefix_space"] = bool(metadata[Keys.Tokenizer.ADD_PREFIX])
    if vocabulary.model == "bert":
        config["do_lower_case"] = vocabulary.flag("tokenizer.ggml.normalizer.lowercase", True)
        config["strip_accents"] = metadata.get("tokenizer.ggml.normalizer.strip_accents")
    if vocabulary.model == "llama" and not vocabulary.is_whole:
        config["legacy"] = metadata.get(PREPEND_SCHEME) != "first"
    listed = {row: token for row, token in sorted(vocabulary.matched_first.items()) if not vocabulary.is_piece(row)}
    config["added_tokens_decoder"] = {str(row): vars(token) for row, token in listed.items()}
    if templates := _templates(metadata):
        config["chat_template"] = templates
    if vocabulary.model in OTHERS:
        return config
    name = "XLMRobertaTokenizer" if vocabulary.is_fairseq else CLASSES[vocabulary.model]
    name = CLASSES["gpt2"] if vocabulary.is_whole else name  # other classes build some blocks themselves
    return config | {"clean_up_tokenization_spaces": False, "tokenizer_class": name}


def _templates(metadata: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """Return the one template, or all of them with their names."""
    templates = restored_templates(metadata)
    if templates.keys() <= {DEFAULT}:
        return templates.get(DEFAULT)
    return [{"name": name, "template": text} for name, text in templates.items()]


def _byte_bpe(vocabulary: _Vocabulary) -> dict[str, Any]:
    """Return tokenizer.json."""
    pre = pre_tokenizer(vocabulary.metadata.get(Keys.Tokenizer.PRE) or "default")
    if pre.raw:
        raise VocabularyError(f"a vocabulary with the pre-tokenizer {pre.name!r} cannot become a tokenizer.json")
    return _tokenizer_json(
        vocabulary,
        {TokenType.NORMAL},
        [as_text(merge) for merge in vocabulary.merges()],
        normalizer=normalizer(vocabulary, pre),
        pre_tokenizer=pre_tokenizer_of(vocabulary, pre),
        post_processor=_closing(vocabulary) or (None if pre.bare else byte_level()),
        decoder=byte_level(),
        ignore_merges=vocabulary.flag("tokenizer.huggingface.ignore_merges", pre.ignore_merges),
    )


def _tokenizer_json(
    vocabulary: _Vocabulary,
    types: Collection[int],
    merges: Sequence[Any],
    ignore_merges: bool = False,
    unknown: str | None = None,
    **blocks: Any,
) -> dict[str, Any]:
    """Return a tokenizer.json with BPE. types: types of the rows in its vocabulary; added tokens are kept elsewhere,
    with their ids.
    """
    added = vocabulary.matched_first
    rows = {
        text: row for row, text in enumerate(vocabulary.texts) if vocabulary.types[row] in types and row not in added
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": row, **vars(token)} for row, token in sorted(added.items())],
        **blocks,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": unknown is not None,
            "byte_fallback": unknown is not None,
            "ignore_merges": ignore_merges,
            "vocab": rows | {token.content: row for row, token in added.items()},
            "merges": merges,
        },
    }


def normalizer(tokens: TokenList, pre: PreTokenizer) -> Any:
    """Return the normalizer of tokenizer.json, None for none. Raises VocabularyError if the file's own is not JSON."""
    if NORMALIZER in tokens.metadata:
        return blocks_of(tokens)["normalizer"]
    if pre.escaped:
        return SPACES
    composed = tokens.metadata.get("tokenizer.ggml.normalizer.nfc")
    name = pre.normalizer if composed is None else "NFC" if composed else None
    return {"type": name} if name else None


def pre_tokenizer_of(tokens: TokenList, pre: PreTokenizer, start: bool = True) -> Any:
    """Return the pre_tokenizer of tokenizer.json, None for none. start: for the beginning of the text.

    Raises VocabularyError if the file's own is not JSON.
    """
    if PRE_TOKENIZER in tokens.metadata:
        return blocks_of(tokens, start)["pre_tokenizer"]
    return cutting(pre, tokens.flag(Keys.Tokenizer.ADD_PREFIX, False))


def _closing(vocabulary: _Vocabulary) -> dict[str, Any] | None:
    """Return the post-processor, which adds tokens around a text."""
    if POST_PROCESSOR in vocabulary.metadata:
        return vocabulary.block(POST_PROCESSOR)  # type: ignore[no-any-return]
    roles = roles_of(vocabulary)
    begin, end = roles.bos if roles.add_bos else None, roles.eos if roles.add_eos else None
    first, last = (None if number is None else vocabulary.named_text(number) for number in (begin, end))
    if begin is not None and end is not None and roles.add_sep:
        return {
            "type": "RobertaProcessing",
            "sep": [last, end],
            "cls": [first, begin],
            "trim_offsets": True,
            "add_prefix_space": False,
        }
    if not first and not last:
        return None
    special = {
        text: {"id": text, "ids": [number], "tokens": [text]} for number, text in ((begin, first), (end, last)) if text
    }
    single, second = around(first, "A", last), around(first, "B", last, 1)
    return {"type": "TemplateProcessing", "single": single, "pair": single + second, "special_tokens": special}


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> dict[str, Any]:
    """Return tokenizer.json of a SentencePiece model with merges: text with spaces as in its pieces."""
    prefix = vocabulary.flag(Keys.Tokenizer.ADD_PREFIX, True)
    first, blocks = METASPACE | {"prepend_scheme": "first", "split": False}, dict[str, Any]()
    if has_blocks(vocabulary):
        blocks = blocks_of(vocabulary)
    elif prefix and vocabulary.metadata.get(PREPEND_SCHEME) == "first":
        blocks = {"normalizer": None, "pre_tokenizer": first}
    else:
        always = {"type": "Sequence", "normalizers": [PREPENDED, SPACES]}
        blocks = {"normalizer": always if prefix else SPACES, "pre_tokenizer": None}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    unknown = next(
        (vocabulary.texts[row] for row, token_type in enumerate(vocabulary.types) if token_type == TokenType.UNKNOWN),
        "<unk>",
    )
    own, known = Keys.Tokenizer.MERGES in vocabulary.metadata, frozenset(vocabulary.texts)
    merges = [merged(as_text(each), known) for each in vocabulary.merges()] if own else _merges(vocabulary)
    return _tokenizer_json(
        vocabulary,
        {token_type for token_type in TokenType if token_type != TokenType.UNUSED},
        merges,
        **blocks,
        post_processor=_closing(vocabulary),
        decoder={"type": "Sequence", "decoders": decoders[: 3 + prefix]},
        unknown=unknown,
    )


def _word_pieces(vocabulary: _Vocabulary) -> dict[str, Any]:
    """Return tokenizer.json of WordPiece."""
    texts = [
        vocabulary.named_text(row) if row in vocabulary.matched_first else word
        for row, word in enumerate(words(vocabulary.metadata, vocabulary.texts, vocabulary.types.tolist()))
    ]
    unknown = unknown_word(vocabulary, texts)
    rows = {text: row for row, text in enumerate(texts[: vocabulary.own_rows])}
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]" if unknown is None else texts[unknown],
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": longest_word(vocabulary),
        "vocab": rows,
    }
    return _whole(
        vocabulary,
        model,
        {"normalizer": word_normalizer(vocabulary), "pre_tokenizer": word_cuts(vocabulary)},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def _unigram(vocabulary: _Vocabulary) -> dict[str, Any]:
    """Return tokenizer.json of SentencePiece's unigram."""
    unknown = next((row for row, token_type in enumerate(vocabulary.types) if token_type == TokenType.UNKNOWN), None)
    scores = vocabulary.scores.astype(float).tolist()
    model = {
        "type": "Unigram",
        "unk_id": unknown,
        "byte_fallback": bool((vocabulary.types == TokenType.BYTE).any()),
        "vocab": [[text, scores[row]] for row, text in enumerate(vocabulary.texts[: vocabulary.own_rows])],
    }
    prefix = "always" if vocabulary.flag(Keys.Tokenizer.ADD_PREFIX) else "never"
    prefix = "first" if vocabulary.metadata.get(PREPEND_SCHEME) == "first" else prefix
    cut = METASPACE | {"prepend_scheme": prefix, "split": True}
    charsmap = Keys.Tokenizer.PRECOMPILED_CHARSMAP in vocabulary.metadata
    removes = vocabulary.flag(Keys.Tokenizer.REMOVE_EXTRA_WS)
    normalizers = [
        *([with_charsmap(vocabulary, {"type": "Precompiled"})] if charsmap else []),
        *([{"type": "Strip", "strip_left": True, "strip_right": True}, SPACES_IN_A_ROW] if removes else []),
    ]
    blocks = {"normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": cut}
    return _whole(vocabulary, model, blocks_of(vocabulary) if has_blocks(vocabulary) else blocks, cut)


def _whole(
    vocabulary: _Vocabulary, model: Mapping[str, Any], blocks: Mapping[str, Any], decoder: Any
) -> dict[str, Any]:
    """Return a tokenizer.json with a model other than BPE."""
    around = around_of(vocabulary, roles_of(vocabulary))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": row, **vars(token)} for row, token in sorted(vocabulary.matched_first.items())],
        **blocks,
        "post_processor": template(around, vocabulary.texts),
        "decoder": decoder,
        "model": model,
    }


def _plain_bpe(vocabulary: _Vocabulary) -> dict[str, Any]:
    """Return tokenizer.json of Gemma 4: merges of plain text, and bytes for unknown characters."""
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}]
    blocks = blocks_of(vocabulary) if has_blocks(vocabulary) else {"normalizer": SPACES, "pre_tokenizer": AT_SPACES}
    used = {token_type for token_type in TokenType if token_type != TokenType.UNUSED}
    return _tokenizer_json(
        vocabulary,
        used,
        [as_text(merge).split(" ", 1) for merge in vocabulary.merges()],
        **blocks,
        post_processor=_closing(vocabulary),
        decoder={"type": "Sequence", "decoders": [*decoders, {"type": "Fuse"}]},
        unknown=vocabulary.text("unk") or "<unk>",
    )


def _merges(vocabulary: _Vocabulary) -> list[list[str]]:
    """Return every split of a piece into two others, those of the best pieces first."""
    rows = [row for row, token_type in enumerate(vocabulary.types) if token_type == TokenType.NORMAL]
    scores = {vocabulary.texts[row]: float(vocabulary.scores[row]) for row in rows}
    best_first = sorted(scores, key=lambda text: -scores[text])
    pairs = ((text[:cut], text[cut:]) for text in best_first for cut in range(1, len(text)))
    return [[left, right] for left, right in pairs if left in scores and right in scores]


def _sentencepiece(vocabulary: _Vocabulary, unigram: bool) -> bytes:
    """Return the model file, without rows that were only added to it later."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    count = len(vocabulary.texts)
    while count and (count - 1 in vocabulary.matched_first or vocabulary.types[count - 1] == TokenType.UNUSED):
        count -= 1
    for row in (3, 0, 2, *range(4, count)) if vocabulary.is_fairseq else range(count):
        user_defined = row in vocabulary.matched_first and vocabulary.types[row] == TokenType.NORMAL
        token_type = TokenType.USER_DEFINED if user_defined else vocabulary.types[row]
        model.pieces.add(piece=vocabulary.texts[row], score=float(vocabulary.scores[row]), type=int(token_type))
    trainer, spec = model.trainer_spec, model.normalizer_spec
    trainer.model_type = 1 if unigram else 2
    trainer.byte_fallback = any(token_type == TokenType.BYTE for token_type in vocabulary.types)
    trainer.vocab_size = len(model.pieces)
    for role in ("bos", "eos", "unk", "pad"):
        number = vocabulary.metadata.get(SPECIAL_TOKENS[role])
        if vocabulary.is_fairseq:
            number = {"unk": 0, "bos": 1, "eos": 2}.get(role)
        setattr(trainer, f"{role}_id", -1 if number is None or number >= count else number)
    charsmap = vocabulary.metadata.get(Keys.Tokenizer.PRECOMPILED_CHARSMAP)
    spec.name = "identity" if charsmap is None else "nmt_nfkc"
    spec.precompiled_charsmap = b"" if charsmap is None else np.asarray(charsmap).astype(np.uint8).tobytes()
    spec.add_dummy_prefix = vocabulary.flag(Keys.Tokenizer.ADD_PREFIX, True)
    spec.remove_extra_whitespaces = vocabulary.flag(Keys.Tokenizer.REMOVE_EXTRA_WS, False)
    content: bytes = model.SerializeToString()
    return content

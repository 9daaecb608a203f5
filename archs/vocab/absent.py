"""Defaults of vocabulary keys that a file lacks: one table, by `tokenizer.ggml.model`.

Source: llama.cpp b11434, `llama_vocab::impl::load`. Files of 2023 and 2024 leave out ids of special tokens, the name of
the pre-tokenizer, types and scores. Where llama.cpp's value cannot be what the model's own tokenizer does, it is not
followed; these are all such cases:

- gpt2, end of text: 11 is Falcon's <|endoftext|>; in other vocabularies it is ordinary text such as ",", at which no
  text ends. The same holds for every assumed end of text: it counts only where its token is no ordinary text
  (`runtime.tokenizers.ends`).
- bert, first token: a file's `cls_token_id` goes before 101, which is the first token of BERT's own vocabulary only;
  last token: `eos_token_id` goes before 102 where 102 is an ordinary word.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gguf.constants import Keys, TokenType

from ..hparams.assumed import DEFAULT, Assumed
from ..schema import SPECIAL_TOKENS

LLAMA, GPT2, BERT, T5, PLAMO = "llama", "gpt2", "bert", "t5", "plamo2"
IDS: dict[str, dict[str, int]] = {
    LLAMA: {"bos": 1, "eos": 2, "unk": 0},
    GPT2: {"bos": 11, "eos": 11},
    BERT: {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    T5: {"eos": 1, "unk": 2, "pad": 0},
    PLAMO: {"bos": 1, "eos": 2, "unk": 0, "pad": 3},
}
# Flags that default to true; others are false, and for gpt2 vocabularies the pre-tokenizer's name decides.
FLAGS: dict[str, dict[str, bool]] = {
    Keys.Tokenizer.ADD_BOS: {LLAMA: True},
    Keys.Tokenizer.ADD_EOS: {T5: True},
    Keys.Tokenizer.ADD_PREFIX: {LLAMA: True, T5: False},
}
NO_BOS = ("chatglm-bpe", "glm4", "glm5")  # pre-tokenizers of models whose texts begin with no special token
FORMER = {  # keys of 2023 and 2024 by those that replaced them
    Keys.Tokenizer.FIM_PRE_ID: "tokenizer.ggml.prefix_token_id",
    Keys.Tokenizer.FIM_SUF_ID: "tokenizer.ggml.suffix_token_id",
    Keys.Tokenizer.FIM_MID_ID: "tokenizer.ggml.middle_token_id",
}
ROLE_OF = {key: role for role, key in SPECIAL_TOKENS.items()}


def assumed_id(metadata: Mapping[str, Any], key: str, size: int) -> int | None:
    """Return a special token's default id; None for none, or one past the vocabulary.

    key: of the id.
    """
    model, role = metadata.get(Keys.Tokenizer.MODEL), ROLE_OF.get(key, "")
    number = IDS.get(str(model), {}).get(role)
    if role == "bos" and model == GPT2 and metadata.get(Keys.Tokenizer.PRE) in NO_BOS:
        return None
    return number if number is not None and number < size else None


def assumed_flag(metadata: Mapping[str, Any], key: str) -> bool:
    """Return the default of a flag that the file lacks."""
    if key == Keys.Tokenizer.ADD_PREFIX and metadata.get(Keys.Tokenizer.MODEL) == T5:
        return bool(metadata.get(Keys.Tokenizer.REMOVE_EXTRA_WS, False))  # words are set apart there, the first too
    return FLAGS.get(key, {}).get(str(metadata.get(Keys.Tokenizer.MODEL)), False)


def assumed(metadata: Mapping[str, Any]) -> Iterator[Assumed]:
    """Return the defaults of vocabulary keys that a file lacks.

    Those that may be wrong for another tokenizer are marked as doubtful.
    """
    for key, value, doubt in _assumptions(metadata):
        yield Assumed(key, value, f"{DEFAULT}; {doubt}" if doubt else DEFAULT, bool(doubt))


def _assumptions(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield key, value, and what may be wrong with it: "" if hardly anything."""
    model = str(metadata.get(Keys.Tokenizer.MODEL))
    if Keys.Tokenizer.LIST not in metadata:
        return
    size = len(metadata[Keys.Tokenizer.LIST])
    if model == GPT2 and Keys.Tokenizer.PRE not in metadata:
        yield (Keys.Tokenizer.PRE, "default", "text may be cut by rules that are not this model's")
    if Keys.Tokenizer.TOKEN_TYPE not in metadata:
        why = "every token counts as ordinary text, unless it is called like one that ends a text or marks a gap"
        yield (Keys.Tokenizer.TOKEN_TYPE, int(TokenType.NORMAL), why)
    if model in (LLAMA, T5, PLAMO) and Keys.Tokenizer.SCORES not in metadata:
        yield (Keys.Tokenizer.SCORES, 0.0, "no piece of text is preferred to another")
    for role in IDS.get(model, {}):
        number = metadata.get(SPECIAL_TOKENS[role])
        missing = number is None or not 0 <= int(number) < size
        if missing and (usual := assumed_id(metadata, SPECIAL_TOKENS[role], size)) is not None:
            why = "" if number is None else f"the file's own, {number}, is no token"
            yield (SPECIAL_TOKENS[role], usual, why)
    for key, models in FLAGS.items():
        if model in models and key not in metadata:
            yield (key, assumed_flag(metadata, key), "")

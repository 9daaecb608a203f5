"""Check a conversion's vocabulary against the checkpoint's own tokenizer, on texts on which tokenizers differ."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import Keys

from quants.errors import GgufToolsError, VocabularyError
from quants.spelling import quote
from runtime.tokenizer import Tokenizer, tokenizer_from_metadata

from .source_tokenizer import Encode, SourceTokenizer, source_tokenizer
from .texts import adversarial_texts

FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # XLM-RoBERTa's first tokens
SPECIAL = 12  # of a vocabulary's special tokens: that many are written in texts
SHOWN = 24  # ids of a text, around the first that differs


@dataclass(frozen=True)
class TokenizerCheck:
    """The result of the comparison.

    texts: how many were compared, with and without the tokens around them. differing: how many got different ids.
    sources: the checkpoint's files that were used. message: the first difference, or why nothing was compared; "" if
    all agree.
    """

    texts: int = 0
    differing: int = 0
    sources: tuple[str, ...] = ()
    message: str = ""


def check_tokenizer(metadata: Mapping[str, Any], folder: Path) -> TokenizerCheck:
    """Compare a file's vocabulary with the tokenizer of the checkpoint's folder. A GgufToolsError becomes a message."""
    vocabulary_model = metadata.get(Keys.Tokenizer.MODEL)
    if vocabulary_model in (None, "none", "no_vocab"):
        return TokenizerCheck()
    try:
        tokenizer = tokenizer_from_metadata(metadata)
        first = [tokenizer.text(number) for number in range(min(len(FAIRSEQ), tokenizer.vocab_size))]
        source = source_tokenizer(folder, vocabulary_model == "t5" and tuple(first) == FAIRSEQ)
        if not source.encoders:
            nothing = f"the file's tokenizer was compared with nothing: no library reads {folder}'s"
            return TokenizerCheck(message=nothing)
        return _compared(tokenizer, source)
    except GgufToolsError as error:
        return TokenizerCheck(message=f"the file's tokenizer was not compared with the checkpoint's: {error}")


def _compared(tokenizer: Tokenizer, source: SourceTokenizer) -> TokenizerCheck:
    special, encoders = _special(tokenizer), source.encoders
    texts = adversarial_texts(special)
    compared, differing, message = 0, 0, ""
    for text in texts:
        asked = {name: encode for name, encode in encoders.items() if _is_asked(name, encoders, text, special)}
        compared += bool(asked)
        if asked and (difference := _difference(tokenizer, asked, text, source.around)):
            differing += 1
            message = message or difference
    if message:
        message = f"the file's tokenizer gives other ids on {differing} of {compared} texts, first on {message}"
    return TokenizerCheck(compared, differing, tuple(encoders), message)


def _is_asked(name: str, encoders: Mapping[str, Encode], text: str, special: Sequence[str]) -> bool:
    """Return whether a checkpoint's file gives a definite answer for a text.

    A sentencepiece model does not match special tokens in texts. If it and tokenizer.json disagree on the pieces
    between these, the answer is undefined.
    """
    if not any(token in text for token in special):
        return True
    if name != "tokenizer.json":
        return False
    pieces = re.split("|".join(map(re.escape, sorted(special, key=len, reverse=True))), text)
    return all(len({tuple(encode(piece, False)) for encode in encoders.values()}) == 1 for piece in pieces)


def _difference(tokenizer: Tokenizer, encoders: Mapping[str, Encode], text: str, with_around: bool) -> str:
    """Return the first difference between a text's ids and all those of the checkpoint's files; "" for none."""
    for around in (False, True) if with_around else (False,):
        ours = tokenizer.encode(text, add_special=around, parse_special=True)
        try:
            theirs = {name: encode(text, around) for name, encode in encoders.items()}
        except Exception as error:  # the library raises Exception itself, for a text that a vocabulary lacks
            raise VocabularyError(f"{quote(text[:40])}: {str(error)[:100]}") from error
        if ours not in theirs.values():
            name, ids = next(iter(theirs.items()))
            place = next((i for i, pair in enumerate(zip(ours, ids, strict=False)) if pair[0] != pair[1]), 0)
            place = max(place, min(len(ours), len(ids)) if ours[: len(ids)] == ids[: len(ours)] else place)
            how = " with the tokens around it" if around else ""
            return f"{quote(text[:80])}{how}: {_shown(ours, place)}, by {name} {_shown(ids, place)}"
    return ""


def _shown(ids: Sequence[int], place: int) -> str:
    """Return ids as text; of a long list those around a place."""
    start = max(0, place - SHOWN // 2) if len(ids) > SHOWN else 0
    shown = ", ".join(map(str, ids[start : start + SHOWN]))
    return f"[{'… ' if start else ''}{shown}{' …' if start + SHOWN < len(ids) else ''}]"


def _special(tokenizer: Tokenizer) -> list[str]:
    """Return the texts of special tokens, from both ends of the vocabulary."""
    texts = [tokenizer.text(number) for number in tokenizer.special_ids]
    return texts if len(texts) <= SPECIAL else [*texts[: SPECIAL // 2], *texts[-SPECIAL // 2 :]]

"""A checkpoint's own tokenizer, by the library that its files are made for: `tokenizers` or `sentencepiece`.

No code of a checkpoint runs: other kinds of tokenizers have nothing here that they could be compared with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archs.small_files import read_json_object, read_vocabulary
from archs.vocab.checked import read_tokenizer_config
from archs.vocab.files import AddedToken
from archs.vocab.sentencepiece import MODEL_FILES, is_model_file
from quants.errors import VocabularyError

PROBES = ("a", "b", "0", ".", "é", "x y z")  # what stands around one that is not lost stands around every text
Encode = Callable[[str, bool], list[int]]  # a text, and whether the tokens around it are wanted
SENTENCEPIECE = "sentencepiece"  # the library's name; it knows no tokens that are written in texts
FAIRSEQ = {0: 3, 1: 0, 2: 2}  # XLM-RoBERTa's ids of the model file's special pieces; the others are one more


@dataclass(frozen=True)
class Source:
    """encoders: what makes tokens of texts, by the name of its file. around: whether it is known what they put around
    texts.
    """

    encoders: Mapping[str, Encode]
    around: bool


def source_tokenizer(folder: Path, fairseq: bool = False) -> Source:
    """The tokenizer in a checkpoint's folder; no encoders where no library reads it.

    fairseq: the ids are XLM-RoBERTa's. Raises VocabularyError where a library does not take the checkpoint's files.
    """
    found: dict[str, Encode] = {}
    path = folder / "tokenizer_config.json"
    config = read_tokenizer_config(read_json_object(path, optional=True), str(path))
    if (path := folder / "tokenizer.json").is_file():
        found[path.name] = by_library(opened_library(path, config), config)
    for path in (folder / name for name in MODEL_FILES):
        if is_model_file(path):
            found[path.name] = by_sentencepiece(path, config, fairseq)
            break
    return Source(found, fairseq or "tokenizer.json" in found or "tokenizer_class" in config)


def opened_library(path: Path, config: Mapping[str, Any]) -> Any:
    """A tokenizer.json with the added tokens of tokenizer_config.json, as transformers adds them."""
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_file(str(path))
    except Exception as error:  # whatever the library raises on a tokenizer.json that it does not like
        raise VocabularyError(f"{path} cannot be run: {str(error)[:200]}") from error
    return prepared(library, config)


def prepared(library: Any, config: Mapping[str, Any]) -> Any:
    """A library's tokenizer that reads whole texts, and finds the added tokens of tokenizer_config.json."""
    import tokenizers

    library.no_truncation()
    library.no_padding()
    known = library.get_added_tokens_decoder()
    listed = sorted(
        (int(number), AddedToken.of(entry)) for number, entry in (config.get("added_tokens_decoder") or {}).items()
    )
    for number, token in listed:
        if number not in known and library.token_to_id(token.content) in (None, number):
            added = tokenizers.AddedToken(**vars(token))
            (library.add_special_tokens if token.special else library.add_tokens)([added])
    return library


def by_library(library: Any, config: Mapping[str, Any]) -> Encode:
    """Texts by a tokenizer.json; what goes around them by `add_bos_token` and `add_eos_token`, too."""
    before, after = library_sides(library, config)

    def encode(text: str, around: bool) -> list[int]:
        ids: list[int] = library.encode(text, add_special_tokens=False).ids
        return [*before, *ids, *after] if around else ids

    return encode


def library_sides(library: Any, config: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """What stands before a text and behind it: what the library puts there, and what tokenizer_config.json says, which
    has the last word.
    """
    plain, around = list[int](), list[int]()
    for probe in PROBES:
        if not plain:
            plain, around = (library.encode(probe, add_special_tokens=special).ids for special in (False, True))
    start = next((i for i in range(len(around)) if around[i : i + len(plain)] == plain), 0)
    sides = {"bos": around[:start], "eos": around[start + len(plain) :]}
    for role, side in sides.items():
        name, wanted = config.get(f"{role}_token"), config.get(f"add_{role}_token")
        name = name.get("content") if isinstance(name, Mapping) else name
        number = library.token_to_id(name) if isinstance(name, str) else None
        if number is None or not isinstance(wanted, bool):
            continue
        sides[role] = [*side, *([] if number in side else [number])] if wanted else [n for n in side if n != number]
    return sides["bos"], sides["eos"]


def by_sentencepiece(path: Path, config: Mapping[str, Any], fairseq: bool = False) -> Encode:
    """Texts by a model file; around them what the classes of transformers put there that such files are made for."""
    from sentencepiece import SentencePieceProcessor

    try:
        library = SentencePieceProcessor(model_proto=read_vocabulary(path))
    except RuntimeError as error:
        raise VocabularyError(f"{path} is no sentencepiece model: {str(error)[:200]}", "fetch it again") from error
    kind = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    bos, eos = config.get("add_bos_token", kind != "T5Tokenizer"), config.get("add_eos_token", kind == "T5Tokenizer")
    begin = [library.bos_id()] if bos and library.bos_id() >= 0 else []
    end = [library.eos_id()] if eos and library.eos_id() >= 0 else []

    def encode(text: str, around: bool) -> list[int]:
        ids = [int(number) for number in library.encode(text)]
        if fairseq:
            ids = [FAIRSEQ.get(number, number + 1) for number in ids]
            return [FAIRSEQ[1], *ids, FAIRSEQ[2]] if around else ids
        return [*begin, *ids, *end] if around else ids

    return encode

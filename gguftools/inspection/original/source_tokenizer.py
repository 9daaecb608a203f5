"""A checkpoint's own tokenizer, run by the library that its files are made for: `tokenizers` or `sentencepiece`.

No code of a checkpoint runs, so other types of tokenizers cannot be compared.
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

PROBES = ("a", "b", "0", ".", "é", "x y z")  # tokens around one that is not empty are around every text
Encode = Callable[[str, bool], list[int]]  # a text, and whether the tokens around it are wanted
SENTENCEPIECE = "sentencepiece"  # the library's name; it does not match special tokens in texts
FAIRSEQ = {0: 3, 1: 0, 2: 2}  # XLM-RoBERTa's ids of the model file's special pieces; the others are one more


@dataclass(frozen=True)
class SourceTokenizer:
    """Encoders by the name of their file. around: whether it is known which tokens they add around texts."""

    encoders: Mapping[str, Encode]
    around: bool


def source_tokenizer(folder: Path, fairseq: bool = False) -> SourceTokenizer:
    """Return the tokenizer in a checkpoint's folder; without encoders if no library reads it.

    fairseq: the ids are XLM-RoBERTa's. Raises VocabularyError if a library rejects the checkpoint's files.
    """
    encoders: dict[str, Encode] = {}
    path = folder / "tokenizer_config.json"
    config = read_tokenizer_config(read_json_object(path, optional=True), str(path))
    if (path := folder / "tokenizer.json").is_file():
        encoders[path.name] = library_encoder(open_library(path, config), config)
    for path in (folder / name for name in MODEL_FILES):
        if is_model_file(path):
            encoders[path.name] = sentencepiece_encoder(path, config, fairseq)
            break
    return SourceTokenizer(encoders, fairseq or "tokenizer.json" in encoders or "tokenizer_class" in config)


def open_library(path: Path, config: Mapping[str, Any]) -> Any:
    """Open a tokenizer.json with the added tokens of tokenizer_config.json, as transformers adds them."""
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_file(str(path))
    except Exception as error:  # any exception of a library that rejects a tokenizer.json
        raise VocabularyError(f"{path} cannot be run: {str(error)[:200]}") from error
    return prepare_library(library, config)


def prepare_library(library: Any, config: Mapping[str, Any]) -> Any:
    """Make a library's tokenizer read whole texts and match the added tokens of tokenizer_config.json."""
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


def library_encoder(library: Any, config: Mapping[str, Any]) -> Encode:
    """Return an encoder by tokenizer.json that respects `add_bos_token` and `add_eos_token`."""
    before, after = library_sides(library, config)

    def encode(text: str, around: bool) -> list[int]:
        ids: list[int] = library.encode(text, add_special_tokens=False).ids
        return [*before, *ids, *after] if around else ids

    return encode


def library_sides(library: Any, config: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the ids before and after a text: those that the library adds, overridden by tokenizer_config.json."""
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


def sentencepiece_encoder(path: Path, config: Mapping[str, Any], fairseq: bool = False) -> Encode:
    """Return an encoder by a model file, with the tokens that transformers' classes for such files add around texts."""
    from sentencepiece import SentencePieceProcessor

    try:
        library = SentencePieceProcessor(model_proto=read_vocabulary(path))
    except RuntimeError as error:
        raise VocabularyError(f"{path} is no sentencepiece model: {str(error)[:200]}", "fetch it again") from error
    tokenizer_class = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    bos, eos = (
        config.get("add_bos_token", tokenizer_class != "T5Tokenizer"),
        config.get("add_eos_token", tokenizer_class == "T5Tokenizer"),
    )
    begin = [library.bos_id()] if bos and library.bos_id() >= 0 else []
    end = [library.eos_id()] if eos and library.eos_id() >= 0 else []

    def encode(text: str, around: bool) -> list[int]:
        ids = [int(number) for number in library.encode(text)]
        if fairseq:
            ids = [FAIRSEQ.get(number, number + 1) for number in ids]
            return [FAIRSEQ[1], *ids, FAIRSEQ[2]] if around else ids
        return [*begin, *ids, *end] if around else ids

    return encode

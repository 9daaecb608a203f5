"""What a file is held against: a checkpoint's folder, whose own tokenizer, template and configs are read, or a file."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from archs.schema import SPECIAL_TOKENS
from archs.small_files import read_json, read_json_object, read_vocabulary
from archs.vocab.chat import DEFAULT, checkpoint_templates
from archs.vocab.files import TokenizerFiles
from quants.errors import VocabularyError

from ..metadata.chat_templates import special_texts
from ..model import Model

PROBE = "a"  # what stands around this stands around every text
Encode = Callable[[str, bool], list[int]]  # a text, and whether the tokens around it are wanted


@dataclass(frozen=True)
class Original:
    """model: as it is, or as a checkpoint is converted, in memory. folder: of a checkpoint on this machine."""

    model: Model
    folder: Path | None

    @cached_property
    def files(self) -> TokenizerFiles | None:
        return None if self.folder is None else TokenizerFiles.read(self.folder)

    def _config(self, name: str) -> dict[str, Any]:
        return {} if self.folder is None else read_json_object(self.folder / name, optional=True)

    @cached_property
    def encoders(self) -> dict[str, Encode]:
        """What makes tokens of texts, by the name of the library; none where the checkpoint has no tokenizer.

        Raises VocabularyError where a library does not take the checkpoint's files.
        """
        if self.folder is None:
            tokenizer = self.model.tokenizer
            return {"the file": lambda text, around: tokenizer.encode(text, add_special=around, parse_special=True)}
        found: dict[str, Encode] = {}
        if self.library is not None:
            before, after = self.sides["bos"], self.sides["eos"]
            found["tokenizers"] = lambda text, around: (
                [*before, *self._ids(text), *after] if around else self._ids(text)
            )
        if (self.folder / "tokenizer.model").is_file():
            found["sentencepiece"] = self._by_sentencepiece(self.folder / "tokenizer.model")
        return found

    @cached_property
    def library(self) -> Any:
        """The checkpoint's tokenizer.json, or what amounts to it; None where there is none."""
        if self.files is None or not self.files.tokenizer:
            return None
        from tokenizers import Tokenizer

        try:
            library = Tokenizer.from_str(json.dumps(self.files.tokenizer))
        except Exception as error:  # whatever the library raises on a tokenizer.json that it does not like
            said = f"{self.folder} has a tokenizer that cannot be run: {str(error)[:200]}"
            raise VocabularyError(said) from error
        library.no_truncation()
        library.no_padding()
        return library

    def _ids(self, text: str, around: bool = False) -> list[int]:
        return [int(number) for number in self.library.encode(text, add_special_tokens=around).ids]

    @cached_property
    def sides(self) -> dict[str, list[int]]:
        """What stands before a text ("bos") and behind it ("eos"): what the library puts there, and what
        `add_bos_token` and `add_eos_token` say, which have the last word.
        """
        if self.library is None:
            return {"bos": [], "eos": []}
        plain, around = self._ids(PROBE), self._ids(PROBE, around=True)
        start = next((i for i in range(len(around)) if around[i : i + len(plain)] == plain), 0)
        sides = {"bos": around[:start], "eos": around[start + len(plain) :]}
        config = {} if self.files is None else self.files.config
        for role, side in sides.items():
            number, wanted = self.token(role), config.get(f"add_{role}_token")
            if number is None or not isinstance(wanted, bool):
                continue
            sides[role] = [*side, *([] if number in side else [number])] if wanted else [n for n in side if n != number]
        return sides

    def _by_sentencepiece(self, path: Path) -> Encode:
        from sentencepiece import SentencePieceProcessor

        try:
            library = SentencePieceProcessor(model_proto=read_vocabulary(path))
        except RuntimeError as error:
            raise VocabularyError(f"{path} is no sentencepiece model: {str(error)[:200]}", "fetch it again") from error
        config = {} if self.files is None else self.files.config
        bos, eos = config.get("add_bos_token", True), config.get("add_eos_token", False)

        def encode(text: str, around: bool) -> list[int]:
            ids = [int(number) for number in library.encode(text)]
            before = [library.bos_id()] if around and bos and library.bos_id() >= 0 else []
            return [*before, *ids, *([library.eos_id()] if around and eos else [])]

        return encode

    def token(self, role: str) -> int | None:
        """The id of the token that plays a role, as the tokenizer's files say it."""
        if self.files is None:
            number = self.model.metadata.get(SPECIAL_TOKENS[role])
            return None if number is None else int(number)
        text = self.files.role(role)
        return next((number for number, token in self.files.added.items() if token.content == text), None)

    def tokens(self, role: str) -> dict[str, list[int]]:
        """Ids of a role's tokens by where they stand; where nothing stands, not at all."""
        found: dict[str, list[int]] = {}
        for name in ("generation_config.json", "config.json"):
            said = self._config(name).get(f"{role}_token_id")
            ids = [number for number in (said if isinstance(said, list) else [said]) if isinstance(number, int)]
            if ids:
                found[name] = ids
        if (number := self.token(role)) is not None:
            found["the tokenizer" if self.folder else "the file"] = [number]
        if around := self.sides.get(role):
            found["what stands around texts"] = around[-1:]
        return found

    @cached_property
    def template(self) -> str | None:
        """The chat template, the default one of several."""
        if self.folder is None or self.files is None:
            return self.model.chat_template
        return checkpoint_templates(self.files).get(DEFAULT)

    @property
    def special_texts(self) -> Mapping[str, str]:
        """bos_token, eos_token, … as templates are told them."""
        if self.files is None:
            return special_texts(self.model.metadata)
        roles = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
        found = {f"{role}_token": text for role in roles if (text := self.files.role(role)) is not None}
        return {"bos_token": "", "eos_token": ""} | found

    @cached_property
    def modules(self) -> list[dict[str, Any]] | None:
        """sentence-transformers' modules; None where the folder has none. Raises FileError for what is no JSON."""
        path = None if self.folder is None else self.folder / "modules.json"
        if path is None or not path.is_file():
            return None
        listed = read_json(path)
        return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []

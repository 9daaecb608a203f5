"""What a file is held against: a checkpoint's folder, whose own tokenizer, template and configs are read, or a file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from archs.schema import SPECIAL_TOKENS
from archs.small_files import read_json, read_json_object
from archs.vocab.chat import DEFAULT, checkpoint_templates
from archs.vocab.files import TokenizerFiles
from quants.errors import VocabularyError

from ...metadata.chat_templates import special_texts
from ...models.model import Model
from .source_tokenizer import SENTENCEPIECE, Encode, by_library, by_sentencepiece, library_sides, prepared


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
            found["tokenizers"] = by_library(self.library, self.config)
        if (path := self.folder / "tokenizer.model").is_file():
            found[SENTENCEPIECE] = by_sentencepiece(path, self.config)
        return found

    @property
    def config(self) -> Mapping[str, Any]:
        """tokenizer_config.json."""
        return {} if self.files is None else self.files.config

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
        return prepared(library, self.config)

    @cached_property
    def sides(self) -> dict[str, list[int]]:
        """What stands before a text ("bos") and behind it ("eos")."""
        if self.library is None:
            return {"bos": [], "eos": []}
        return dict(zip(("bos", "eos"), library_sides(self.library, self.config), strict=True))

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

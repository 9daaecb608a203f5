"""The original that a file is compared with: a file, or a checkpoint's folder with its tokenizer, template and
configs.
"""

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
from .source_tokenizer import (
    SENTENCEPIECE,
    Encode,
    library_encoder,
    library_sides,
    prepare_library,
    sentencepiece_encoder,
)


@dataclass(frozen=True)
class Original:
    """The original. model: as a file, or as a checkpoint converted in memory. folder: of a local checkpoint."""

    model: Model
    folder: Path | None

    @cached_property
    def files(self) -> TokenizerFiles | None:
        return None if self.folder is None else TokenizerFiles.read(self.folder)

    def _config(self, name: str) -> dict[str, Any]:
        return {} if self.folder is None else read_json_object(self.folder / name, optional=True)

    @cached_property
    def encoders(self) -> dict[str, Encode]:
        """Return functions from text to ids by library; none if the checkpoint has no tokenizer.

        Raises VocabularyError if a library rejects the checkpoint's files.
        """
        if self.folder is None:
            tokenizer = self.model.tokenizer
            return {"the file": lambda text, around: tokenizer.encode(text, add_special=around, parse_special=True)}
        encoders: dict[str, Encode] = {}
        if self.library is not None:
            encoders["tokenizers"] = library_encoder(self.library, self.config)
        if (path := self.folder / "tokenizer.model").is_file():
            encoders[SENTENCEPIECE] = sentencepiece_encoder(path, self.config)
        return encoders

    @property
    def config(self) -> Mapping[str, Any]:
        """Return tokenizer_config.json."""
        return {} if self.files is None else self.files.config

    @cached_property
    def library(self) -> Any:
        """Return the checkpoint's tokenizer.json, or an equivalent of it; None if there is none."""
        if self.files is None or not self.files.tokenizer:
            return None
        from tokenizers import Tokenizer

        try:
            library = Tokenizer.from_str(json.dumps(self.files.tokenizer))
        except Exception as error:  # any exception of a library that rejects a tokenizer.json
            problem = f"{self.folder} has a tokenizer that cannot be run: {str(error)[:200]}"
            raise VocabularyError(problem) from error
        return prepare_library(library, self.config)

    @cached_property
    def sides(self) -> dict[str, list[int]]:
        """Return the ids before ("bos") and after ("eos") a text."""
        if self.library is None:
            return {"bos": [], "eos": []}
        return dict(zip(("bos", "eos"), library_sides(self.library, self.config), strict=True))

    def token(self, role: str) -> int | None:
        """Return the id of a role's token in the tokenizer's files."""
        if self.files is None:
            number = self.model.metadata.get(SPECIAL_TOKENS[role])
            return None if number is None else int(number)
        text = self.files.role(role)
        return next((number for number, token in self.files.added.items() if token.content == text), None)

    def tokens(self, role: str) -> dict[str, list[int]]:
        """Return the ids of a role's tokens by the file or place that names them; places without one are left out."""
        ids_by_source: dict[str, list[int]] = {}
        for name in ("generation_config.json", "config.json"):
            value = self._config(name).get(f"{role}_token_id")
            ids = [number for number in (value if isinstance(value, list) else [value]) if isinstance(number, int)]
            if ids:
                ids_by_source[name] = ids
        if (number := self.token(role)) is not None:
            ids_by_source["the tokenizer" if self.folder else "the file"] = [number]
        if around := self.sides.get(role):
            ids_by_source["what stands around texts"] = around[-1:]
        return ids_by_source

    @cached_property
    def template(self) -> str | None:
        """Return the chat template, the default one of several."""
        if self.folder is None or self.files is None:
            return self.model.chat_template
        return checkpoint_templates(self.files).get(DEFAULT)

    @property
    def special_texts(self) -> Mapping[str, str]:
        """Return bos_token, eos_token, … as templates get them."""
        if self.files is None:
            return special_texts(self.model.metadata)
        roles = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
        texts = {f"{role}_token": text for role in roles if (text := self.files.role(role)) is not None}
        return {"bos_token": "", "eos_token": ""} | texts

    @cached_property
    def modules(self) -> list[dict[str, Any]] | None:
        """Return sentence-transformers' modules; None if the folder has none. Raises FileError for invalid JSON."""
        path = None if self.folder is None else self.folder / "modules.json"
        if path is None or not path.is_file():
            return None
        listed = read_json(path)
        return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []

"""Change small tokenizers of tests/data/families and convert them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from archs.vocab import vocabulary
from runtime.tokenizer import Tokenizer, tokenizer_from_metadata
from tests.archs.checkpoints import FAMILIES

KINDS = {"bpe": "bpe", "wordpiece": "wordpiece", "t5": "unigram", "spm": "sentencepiece", "xlm-roberta": "fairseq"}
Change = Callable[[dict[str, Any]], object]


def folder_of(name: str, folder: Path, changes: Mapping[str, Change] | None = None) -> Path:
    """The tokenizer's files, with changes to the JSON of some."""
    shutil.copytree(FAMILIES / "tokenizers" / name, folder / name)
    for file, change in (changes or {}).items():
        content = json.loads((folder / name / file).read_text(encoding="utf-8"))
        change(content)
        (folder / name / file).write_text(json.dumps(content), encoding="utf-8")
    return folder / name


def converted(name: str, folder: Path, changes: Mapping[str, Change] | None = None, rows: int = 320) -> Any:
    return vocabulary(folder_of(name, folder, changes), [KINDS[name]], {}, rows)


def tokenizer(name: str, folder: Path, changes: Mapping[str, Change] | None = None, rows: int = 320) -> Tokenizer:
    return tokenizer_from_metadata(converted(name, folder, changes, rows))

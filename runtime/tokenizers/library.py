"""A tokenizer of the `tokenizers` library from the content of a tokenizer.json."""

import json
from collections.abc import Mapping
from typing import Any

from quants.errors import VocabularyError


def read_library(content: Mapping[str, Any]) -> Any:
    """Raises VocabularyError where the library does not take it."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises Exception itself
        raise VocabularyError(f"the file holds a tokenizer.json that cannot be used: {error}") from error

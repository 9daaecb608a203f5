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


def merged_pair(merge: str, vocabulary: Mapping[str, int]) -> tuple[str, str]:
    """The two tokens of a merge, whose spaces files write as GPT-2's character for one."""
    cut = merge.find(" ", 1)
    left, right = merge[:cut], merge[cut + 1 :]
    if left in vocabulary and right in vocabulary:
        return left, right
    return left.replace("Ġ", " "), right.replace("Ġ", " ")

"""A tokenizer of the `tokenizers` library from the content of a tokenizer.json."""

import json
from collections.abc import Mapping
from typing import Any

from archs.vocab.files import AddedToken
from quants.errors import VocabularyError


def read_library(content: Mapping[str, Any]) -> Any:
    """Return a tokenizer of the library. Raises VocabularyError if the library refuses it."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises Exception itself
        raise VocabularyError(f"the file holds a tokenizer.json that cannot be used: {error}") from error


def with_added(library: Any, added: Mapping[int, AddedToken]) -> Any:
    """Return a library's tokenizer that matches added tokens in normalized text; its model has them in its vocabulary.

    Raises VocabularyError if it gives one another id.
    """
    import tokenizers

    for number, token in sorted(added.items()):
        library.add_tokens([tokenizers.AddedToken(**vars(token))])
        if library.token_to_id(token.content) != number:
            raise VocabularyError(f"the added token {token.content!r} has the id {number}, which is another token's")
    return library

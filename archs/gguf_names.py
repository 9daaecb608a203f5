"""Names that llama.cpp's converter gives tensors, by architecture, and the numbers of its file types.

Recorded from the gguf package (`make model-types`), so that what is found odd about a file does not depend on the
version that is installed.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("gguf_names.json.gz")


@cache
def table() -> dict[str, Any]:
    """Return the recorded table: "gguf", the version it is of; "tensors", names by architecture, with {bid} for the
    number of a layer; "file_types"; "guessed", what is added to one that was guessed.
    """
    found: dict[str, Any] = json.loads(gzip.decompress(TABLE.read_bytes()))
    return found


def tensor_names(architecture: str) -> set[str]:
    """Return the names of an architecture's tensors without suffixes, {i} for the number of a layer."""
    return {name.replace("{bid}", "{i}") for name in table()["tensors"].get(architecture, ())}

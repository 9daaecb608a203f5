"""Tensor names of llama.cpp's converter by architecture, and the numbers of its file types.

Recorded from the gguf package (`make model-types`), so that checks of a file do not depend on the installed version.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("gguf_names.json.gz")


@cache
def table() -> dict[str, Any]:
    """Return the recorded table: "gguf", its version; "tensors", names by architecture, with {bid} for the layer;
    "file_types"; "guessed", the number added to a guessed file type.
    """
    content: dict[str, Any] = json.loads(gzip.decompress(TABLE.read_bytes()))
    return content


def tensor_names(architecture: str) -> set[str]:
    """Return the names of an architecture's tensors without suffixes, {i} for the number of a layer."""
    return {name.replace("{bid}", "{i}") for name in table()["tensors"].get(architecture, ())}

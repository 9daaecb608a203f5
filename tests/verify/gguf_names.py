"""Record names out of the gguf package: `make model-types`, or python -m tests.verify.gguf_names.

Writes archs/gguf_names.json.gz: the names of tensors by architecture, and the numbers of file types. What `validate`
and `set-metadata` find odd goes by that table, and not by the version that is installed;
tests/archs/test_gguf_names.py compares both.
"""

from __future__ import annotations

import gzip
import json
from importlib.metadata import version
from typing import Any

from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES, LlamaFileType

from archs.gguf_names import TABLE


def recorded() -> dict[str, Any]:
    """The table of the installed gguf."""
    tensors = {
        name: sorted(TENSOR_NAMES[each] for each in MODEL_TENSORS[arch]) for arch, name in MODEL_ARCH_NAMES.items()
    }
    types = sorted(int(each) for each in LlamaFileType if each is not LlamaFileType.GUESSED)
    return {"gguf": version("gguf"), "tensors": tensors, "file_types": types, "guessed": int(LlamaFileType.GUESSED)}


def main() -> None:
    table = recorded()
    TABLE.write_bytes(gzip.compress(json.dumps(table, sort_keys=True, separators=(",", ":")).encode(), mtime=0))
    print(f"{TABLE.name}: {len(table['tensors'])} architectures of gguf {table['gguf']}")


if __name__ == "__main__":
    main()

"""What --json prints: the results' `as_dict`, with one key for one fact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gguftools.console.ui import print_json

from ...conftest import DATA
from ...findings.tool import typed

MODEL = DATA / "golden" / "e2e" / "tiny-dense-f16.gguf"
MATRIX = DATA / "golden" / "e2e" / "tiny-dense.imatrix.gguf"
CALLS = {
    "architectures": [], "audit": [MODEL], "convert-endian": [MODEL, "-o", "big.gguf"], "diff": [MODEL, MODEL],
    "export": [MODEL, "-o", "norms.safetensors", "--tensors", "norm"], "formats": [], "hash": [MODEL],
    "imatrix-info": [MATRIX], "quantize": [MODEL, "Q8_0", "--dry-run", "-o", "."],
    "set-metadata": [MODEL, "general.name=x", "--dry-run"], "show": [MODEL], "split": [MODEL, "--dry-run"],
    "validate": [MODEL],
}  # fmt: skip


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield str(key)
        yield from keys(inner)


@pytest.mark.parametrize("command", CALLS)
def test_files_are_named_by_one_key(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = typed(command, *CALLS[command], "--json")
    assert done.returncode == 0, done.stderr
    found = set(keys(json.loads(done.stdout)))
    assert not found & {"path", "paths", "filename"}
    assert command in ("architectures", "formats", "diff") or found & {"file", "files"}


def test_results_are_printed_as_their_dicts(capsys: pytest.CaptureFixture[str]):
    class Result:
        def as_dict(self) -> dict[str, Any]:
            return {"file": Path("a\x1b"), "inner": [Part()]}

    class Part:
        def as_dict(self) -> dict[str, Any]:
            return {"name": "ä"}

    print_json((Result(),))
    printed = capsys.readouterr().out
    assert json.loads(printed) == [{"file": "a\x1b", "inner": [{"name": "ä"}]}]
    assert "\x1b" not in printed

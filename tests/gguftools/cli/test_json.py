"""What --json prints: the results' `as_dict`, with one key for one fact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gguftools.cli.ui import print_json

from ...conftest import DATA
from ..command_line import typed

MODEL = DATA / "golden" / "e2e" / "tiny-dense-f16.gguf"
MATRIX = DATA / "golden" / "e2e" / "tiny-dense.imatrix.gguf"
CALLS = {
    "architectures": [],
    "audit": [MODEL],
    "convert-endian": [MODEL, "-o", "big.gguf"],
    "diff": [MODEL, MODEL],
    "export": [MODEL, "-o", "norms.safetensors", "--tensors", "norm"],
    "fit": [MODEL],
    "formats": [],
    "hash": [MODEL],
    "imatrix-info": [MATRIX],
    "quantize": [MODEL, "Q8_0", "--dry-run", "-o", "."],
    "set-metadata": [MODEL, "general.name=x", "--dry-run"],
    "show": [MODEL],
    "split": [MODEL, "--dry-run"],
    "validate": [MODEL],
}


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
    assert json.loads(printed) == [{"format_version": 1, "file": "a\x1b", "inner": [{"name": "ä"}]}]
    assert "\x1b" not in printed


OLDER = {"path", "paths", "bytes", "size", "perplexity_error", "p99.9", "p0.1", "sound", "valid", "passed", "equal"}
MORE_CALLS = {
    "check": [MODEL, "--predict", "1"],
    "merge": ["s-00001-of-00001.gguf", "--dry-run"],
    "quantize": CALLS["quantize"],
    "patch": ["make", MODEL, MODEL, "-o", "x.delta.gguf", "--dry-run"],
    "graft": [MODEL, "--drop", "blk.0.attn_k", "--force", "-o", "x.gguf", "--dry-run"],
    "diff": [MODEL, MODEL, "--errors"],
}


@pytest.mark.parametrize("command", sorted(CALLS | MORE_CALLS))
def test_one_word_for_one_fact(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sizes, errors, percentiles and verdicts have the same names in the JSON of every command."""
    monkeypatch.chdir(tmp_path)
    if command == "merge":
        typed("split", MODEL, "-o", "s", "-q")
    done = typed(command, *(MORE_CALLS | CALLS)[command], "--json")
    found = json.loads(done.stdout)
    assert not set(keys(found)) & OLDER
    words = [value for key, value in pairs(found) if key == "verdict"]
    assert set(words) <= {"ok", "wrong", "not applicable"}
    assert words or command not in ("check", "validate", "reproduce")


def pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield str(key), inner
        yield from pairs(inner)


def test_results_that_an_older_version_saved_are_read():
    from gguftools.publish.report.results import results_of

    kl = {"mean": 0.1, "p99.9": 2.0, "p0.1": 0.0}
    older = {
        "base": "b.gguf",
        "base_perplexity_error": 0.3,
        "files": [{"path": "m.gguf", "size": 7, "perplexity": 9.0, "perplexity_error": 0.2, "kl_divergence": kl}],
    }
    found = results_of(older)
    figures = found.files[0].figures
    assert found.files[0].path == "m.gguf"
    assert found.figures["base_perplexity_standard_error"] == 0.3
    assert {"size_bytes": 7.0, "perplexity_standard_error": 0.2, "kl_divergence.p99_9": 2.0} | figures == figures

"""What each command prints with --json is what `gguftools schema` says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools.cli.json_schema import schema_of
from gguftools.cli.json_types import PRINTED

from ...conftest import DATA
from ..command_line import EXAMPLE, TEXT, program, typed

MATRIX = DATA / "golden" / "austen.imatrix.gguf"
CALLS = {  # in a folder with f16.gguf and q4.gguf; {} of a command that needs what no small test has
    "architectures": [""],
    "attest": ["q4.gguf -o a.json", "q4.gguf a.json --verify"],
    "audit": ["q4.gguf", "q4.gguf f16.gguf"],
    "chat-template": ["chat.gguf", "chat.gguf --against chat.gguf"],
    "check": ["q4.gguf --predict 1"],
    "convert": [f"{EXAMPLE} --outtype q8_0 -o q8.gguf"],
    "convert-endian": ["q4.gguf -o big.gguf"],
    "demo": [],
    "diff": [
        "f16.gguf q4.gguf",
        "f16.gguf q4.gguf --errors",
        "f16.gguf q4.gguf --identify",
        "f16.gguf q4.gguf --vocab",
    ],
    "divergence": ["f16.gguf q4.gguf -c 64 --chunks 2 -f TEXT"],
    "draft-check": ["f16.gguf q4.gguf -c 64 --chunks 1 -f TEXT --temps 0 --simulate 8 --cost-ratio bytes"],
    "embed": ["f16.gguf -p a -p b --pooling mean", "f16.gguf -p a --pooling mean -o v.npy"],
    "evaluate": ["f16.gguf q4.gguf --hellaswag h.txt"],
    "export": ["f16.gguf -o norms.safetensors --tensors norm"],
    "formats": [""],
    "generate": ["f16.gguf -p It -n 2 --logprobs 2", "f16.gguf -p It -n 2 --samples 2"],
    "gpu-split": [],
    "graft": ["f16.gguf --drop blk.0.attn_k --force -o x.gguf --dry-run"],
    "graph": ["f16.gguf", "f16.gguf --values -p It", "f16.gguf --against q4.gguf -p It"],
    "hash": ["q4.gguf", "q4.gguf --check sums"],
    "imatrix": ["f16.gguf -c 64 --chunks 2 -f TEXT -o im.gguf"],
    "imatrix-info": [f"{MATRIX}", f"{MATRIX} {MATRIX} --show-statistics"],
    "merge": ["s-00001-of-00001.gguf --dry-run"],
    "patch": ["make f16.gguf q4.gguf -o p.gguf --dry-run"],
    "perplexity": ["q4.gguf -c 64 --chunks 2 -f TEXT", "f16.gguf none.gguf q4.gguf -c 64 --chunks 2 -f TEXT"],
    "quantize": ["f16.gguf Q8_0 -o q.gguf", "f16.gguf Q8_0 -o q2.gguf --dry-run", "--list-recipes"],
    "reproduce": ["q4.gguf --source f16.gguf"],
    "set-metadata": ["q4.gguf general.name=x --dry-run"],
    "show": ["q4.gguf", "q4.gguf f16.gguf"],
    "split": ["f16.gguf -o t"],
    "tokenize": ["f16.gguf -p It", "f16.gguf -p It --count"],
    "validate": ["q4.gguf", "q4.gguf f16.gguf"],
}
UNTRIED = ("demo", "gpu-split")  # the first takes many seconds, the second needs a model of PowerInfer's


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schema")
    gguftools.convert(EXAMPLE, folder / "f16.gguf", "F16")
    gguftools.quantize(folder / "f16.gguf", "Q4_0", folder / "q4.gguf")
    shutil.copy(folder / "f16.gguf", folder / "chat.gguf")
    gguftools.set_metadata(folder / "chat.gguf", chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    lines = [line for line in TEXT.read_text(encoding="utf-8").splitlines() if len(line) > 40]
    tasks = [["An answer: " + lines[i], str(i % 4), *lines[i + 1 : i + 5]] for i in range(0, 20, 5)]
    (folder / "h.txt").write_text("".join(f"{line}\n" for task in tasks for line in task), encoding="utf-8")
    return folder


def problems(value: Any, schema: dict[str, Any], where: str = "$") -> list[str]:
    """Where a value is not what a schema of our kinds says; of alternatives, the closest."""
    if "anyOf" in schema:
        return min((problems(value, each, where) for each in schema["anyOf"]), key=len)
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}, not one of {schema['enum']}"]
    if "const" in schema and value != schema["const"]:
        return [f"{where} is {value!r}, not {schema['const']}"]
    if "type" in schema and (not isinstance(value, KINDS[schema["type"]]) or _is_no_number(value, schema["type"])):
        return [f"{where} is {value!r}, no {schema['type']}"]
    found = []
    if isinstance(value, list):
        for number, each in enumerate(value):
            found += problems(each, schema.get("items", {}), f"{where}[{number}]")
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        found += [f"{where} has no {key}" for key in schema.get("required", ()) if key not in value]
        for key, each in value.items():
            if key not in known and others is False:
                found.append(f"{where} has {key}")
            found += problems(each, known.get(key, others or {}), f"{where}.{key}")
    return found


def _is_no_number(value: Any, kind: str) -> bool:
    return isinstance(value, bool) and kind in ("integer", "number")


KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def test_every_command_with_json_has_a_schema() -> None:
    commands = program().commands
    have = {name for name, each in commands.items() if any("--json" in option.opts for option in each.params)}
    assert have == set(PRINTED) == set(CALLS)


@pytest.mark.parametrize("command", [name for name in CALLS if name not in UNTRIED])
def test_output_is_what_the_schema_says(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    if command == "merge":
        typed("split", "f16.gguf", "-o", "s", "-q")
    if command == "hash":
        typed("hash", "q4.gguf", "-o", "sums", "-q", "--overwrite")
    schema = json.loads(typed("schema", command).stdout)
    for call in CALLS[command]:
        words = [str(TEXT) if word == "TEXT" else word for word in call.split()]
        done = typed(command, *words, "--json")
        assert done.stdout, done.stderr
        assert not problems(json.loads(done.stdout), schema)[:8], call


def test_a_schema_is_strict() -> None:
    schema = schema_of(PRINTED["split"][0])
    good = {"file": "a", "size_bytes": 1, "shards": [], "dry_run": False, "warnings": [], "store": None}
    assert not problems(good, schema)
    for other in ({"file": 1}, {"size_bytes": 1.5}, {"size_bytes": True}, {"more": 1}, {"shards": [{}]}, {"store": {}}):
        assert problems(good | other, schema), other
    assert problems({}, schema)


def test_a_command_without_json_is_refused() -> None:
    done = typed("schema", "report")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no command 'report' with --json" in done.stderr


def test_shares_and_names_are_alike() -> None:
    """No key is named as an older version did."""
    text = typed("schema").stdout
    for key in (
        "path",
        "paths",
        "bytes",
        "size",
        "difference_error",
        "acceptance_error",
        "perplexity_error",
        "percent",
    ):
        assert f'"{key}": {{"' not in text, key

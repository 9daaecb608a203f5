"""What each command prints with --json is what `gguftools schema` says of it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools import DraftCheckOptions, GraftOptions, ImatrixOptions, WriteOptions
from gguftools.cli.json_schema import schema_of
from gguftools.cli.json_types import PRINTED
from gguftools.cli.ui import print_json

from ...conftest import DATA
from ..command_line import EXAMPLE, TEXT, program, typed

MATRIX = DATA / "golden" / "austen.imatrix.gguf"
CALLS = {  # in a folder with f16.gguf and q4.gguf; {} of a command that needs what no small test has
    "architectures": [""],
    "attest": ["q4.gguf -o a.json", "q4.gguf a.json --verify"],
    "audit": ["q4.gguf", "q4.gguf f16.gguf"],
    "card": ["cards"],
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
    "fit": ["f16.gguf", "f16.gguf q4.gguf --memory 1G"],
    "fetch": [],
    "formats": [""],
    "generate": ["f16.gguf -p It -n 2 --logprobs 2 --temp 0", "f16.gguf -p It -n 2 --samples 2"],
    "gpu-split": [],
    "graft": ["f16.gguf --drop blk.0.attn_k --force -o x.gguf --dry-run"],
    "graph": ["f16.gguf", "f16.gguf --values -p It", "f16.gguf --against q4.gguf -p It"],
    "hash": ["q4.gguf", "q4.gguf --check sums"],
    "imatrix": ["f16.gguf -c 64 --chunks 2 -f TEXT -o im.gguf"],
    "imatrix-info": [f"{MATRIX}", f"{MATRIX} {MATRIX} --show-statistics"],
    "merge": ["s-00001-of-00001.gguf --dry-run"],
    "patch": ["make f16.gguf q4.gguf -o p.gguf --dry-run"],
    "perplexity": [
        "q4.gguf -c 64 --chunks 2 -f TEXT",
        "f16.gguf none.gguf q4.gguf -c 64 --chunks 2 -f TEXT",
        "q4.gguf f16.gguf -c 64 --chunks 2 -f TEXT --plan --card T4",
    ],
    "quantize": ["f16.gguf Q8_0 -o q.gguf", "f16.gguf Q8_0 -o q2.gguf --dry-run", "--list-recipes"],
    "release": [f"{EXAMPLE} -o rel --ladder none --also Q8_0 --imatrix none --skip measure --skip report"],
    "reproduce": ["q4.gguf --source f16.gguf"],
    "set-metadata": ["q4.gguf general.name=x --dry-run"],
    "show": ["q4.gguf", "q4.gguf f16.gguf"],
    "split": ["f16.gguf -o t"],
    "tokenize": ["f16.gguf -p It", "f16.gguf -p It --count"],
    "upload": [],
    "validate": ["q4.gguf", "q4.gguf f16.gguf"],
}
AGAIN = WriteOptions(overwrite=True)
RELEASE = gguftools.ReleaseOptions(ladder="", recipes=("Q8_0",), imatrix="none", skip=("measure", "report"))
DRAFTING = DraftCheckOptions(temperatures=[0], simulated=8, cost_ratio="bytes")
FUNCTIONS: dict[str, Callable[[], Any]] = {  # by command: what gives the result that its first call prints
    "architectures": lambda: gguftools.architectures(),
    "attest": lambda: gguftools.attest("q4.gguf", output="a.json", overwrite=True),
    "audit": lambda: gguftools.audit("q4.gguf"),
    "card": lambda: _made_anew(
        lambda: gguftools.card("cards"), *Path("cards").glob("[!m]*"), Path("cards", "README.md")
    ),
    "chat-template": lambda: gguftools.chat_template("chat.gguf"),
    "check": lambda: gguftools.check("q4.gguf", n=1),
    "convert": lambda: gguftools.convert(EXAMPLE, "q8.gguf", "q8_0", write=AGAIN),
    "convert-endian": lambda: gguftools.convert_endian("q4.gguf", output="big.gguf", overwrite=True),
    "demo": lambda: gguftools.demo(overwrite=True),
    "diff": lambda: gguftools.diff("f16.gguf", "q4.gguf"),
    "divergence": lambda: gguftools.divergence("f16.gguf", "q4.gguf", text=TEXT, n_ctx=64, chunks=2),
    "draft-check": lambda: gguftools.draft_check(
        "f16.gguf", "q4.gguf", text=TEXT, n_ctx=64, chunks=1, options=DRAFTING
    ),
    "embed": lambda: gguftools.embed("f16.gguf", ["a", "b"], pooling="mean"),
    "evaluate": lambda: gguftools.evaluate(["f16.gguf", "q4.gguf"], hellaswag="h.txt"),
    "export": lambda: gguftools.export("f16.gguf", "norms.safetensors", tensors="norm", write=AGAIN),
    "fit": lambda: gguftools.fit("f16.gguf"),
    "formats": lambda: gguftools.formats(),
    "generate": lambda: gguftools.generate("f16.gguf", "It", max_tokens=2, logprobs=2, temperature=0),
    "graft": lambda: gguftools.graft(
        "f16.gguf", "x.gguf", drop="blk.0.attn_k", options=GraftOptions(force=True), write=WriteOptions(dry_run=True)
    ),
    "graph": lambda: gguftools.graph("f16.gguf"),
    "hash": lambda: gguftools.hash("q4.gguf").digests,
    "imatrix": lambda: gguftools.imatrix(
        "f16.gguf", TEXT, "im.gguf", n_ctx=64, chunks=2, options=ImatrixOptions(overwrite=True)
    ),
    "imatrix-info": lambda: gguftools.imatrix_info(MATRIX),
    "merge": lambda: gguftools.merge("s-00001-of-00001.gguf", dry_run=True),
    "patch": lambda: gguftools.patch("make", "f16.gguf", "q4.gguf", "p.gguf", dry_run=True),
    "perplexity": lambda: gguftools.perplexity("q4.gguf", TEXT, n_ctx=64, chunks=2),
    "quantize": lambda: gguftools.quantize("f16.gguf", "Q8_0", "q.gguf", write=replace(AGAIN, statistics=True)),
    "release": lambda: _made_anew(lambda: gguftools.release(EXAMPLE, "rel", options=RELEASE), Path("rel")),
    "reproduce": lambda: gguftools.reproduce("q4.gguf", "f16.gguf"),
    "set-metadata": lambda: gguftools.set_metadata("q4.gguf", {"general.name": "x"}, dry_run=True),
    "show": lambda: gguftools.show("q4.gguf"),
    "split": lambda: gguftools.split("f16.gguf", "t", overwrite=True),
    "tokenize": lambda: gguftools.tokenize("f16.gguf", "It"),
    "validate": lambda: gguftools.validate("q4.gguf"),
}
UNTRIED = ("demo", "gpu-split", "fetch", "upload")  # these take long, or need a PowerInfer model, or a hub


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schema")
    gguftools.convert(EXAMPLE, folder / "f16.gguf", "F16")
    gguftools.quantize(folder / "f16.gguf", "Q4_0", folder / "q4.gguf")
    shutil.copy(folder / "f16.gguf", folder / "chat.gguf")
    gguftools.set_metadata(
        folder / "chat.gguf", [gguftools.SetChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")]
    )
    lines = [line for line in TEXT.read_text(encoding="utf-8").splitlines() if len(line) > 40]
    tasks = [["An answer: " + lines[i], str(i % 4), *lines[i + 1 : i + 5]] for i in range(0, 20, 5)]
    (folder / "h.txt").write_text("".join(f"{line}\n" for task in tasks for line in task), encoding="utf-8")
    (folder / "cards").mkdir()
    shutil.copy(folder / "q4.gguf", folder / "cards" / "m-Q4_0.gguf")
    return folder


def _made_anew(make: Callable[[], Any], *paths: Path) -> Any:
    """Return what `make` returns where these files and folders are not there."""
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return make()


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
    for number, call in enumerate(CALLS[command]):
        words = [str(TEXT) if word == "TEXT" else word for word in call.split()]
        done = typed(command, *words, "--json")
        assert done.stdout, done.stderr
        printed = json.loads(done.stdout)
        assert not problems(printed, schema)[:8], call
        if number == 0:
            assert steady(printed) == steady(json.loads(printed_json(FUNCTIONS[command]())))


def printed_json(result: Any) -> str:
    """A result as `print_json` prints it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print_json(result)
    return out.getvalue()


def steady(value: Any) -> Any:
    """The same without times and speeds."""
    if isinstance(value, list):
        return [steady(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: steady(each) for key, each in value.items() if not re.search("second|free_bytes|cost|verify", key)}


def test_every_command_has_its_function() -> None:
    commands = {name.replace("-", "_") for name in program().commands}
    assert commands <= set(gguftools.__all__)
    assert not [name for name in commands if not callable(getattr(gguftools, name))]
    without = {name.replace("_", "-") for name in commands} - set(FUNCTIONS)
    assert without == {"chat", "fetch", "gpu-split", "report", "schema", "upload"}


def test_functions_without_a_table_of_their_own(folder: Path) -> None:
    assert json.loads(typed("schema", "hash").stdout) == gguftools.schema("hash")
    assert gguftools.chat(folder / "chat.gguf", max_tokens=1).messages == []
    found = gguftools.divergence(folder / "f16.gguf", folder / "q4.gguf", text=TEXT, n_ctx=64, chunks=2)
    (folder / "kl.json").write_text(printed_json(found), encoding="utf-8")
    table = typed("report", folder / "kl.json", "--markdown").stdout
    assert table == gguftools.report(found).markdown() == gguftools.report(folder / "kl.json").markdown()
    assert gguftools.report(found.as_dict()).as_dict() == found.as_dict()


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

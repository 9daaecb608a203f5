"""Every file that a command writes passes the gate, `gguftools.io.atomic`: commands are listed here and driven."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gguftools.cli import commands
from gguftools.io.checkpoint.safetensors import open_safetensors

from ..archs.prequantized.writers import write_safetensors
from ..conftest import ROOT
from .forks import Tool
from .io.torch_files import write_torch
from .publish.report.example import results
from .tiny_models import metadata_of, write_model

GATE = {"io/atomic.py", "io/entries.py", "io/folders.py", "io/locks.py", "io/replacing.py", "io/unfinished.py"}
# Who may write to an open file, remove or make one by other means, and why.
ELSEWHERE = {
    "io/gguf/journal.py": "writes into a file that is locked",
    "io/shared_file.py": "writes into a file that the gate began, for the process that holds it",
    "io/stores/generic.py": "renames what it wrote to a store",
    "io/checkpoint/remote.py": "fills a temporary folder of its own",
    "io/checkpoint/remote_weights.py": "fills a temporary folder of its own",
    "conversion/shards.py": "deletes shards that are merged",
    "cli/terminal.py": "opens the null device",
    "publish/release/journal.py": "makes the folder of what is not published",
    "publish/release/release.py": "makes folders, names what it searched for, removes its own copy of the source",
    "lab/drafts/acceptance.py": "shortens a KV cache, and no file",
    "lab/drafts/costs.py": "shortens a KV cache, and no file",
}
BEHIND = re.compile(r"\.layers\.[23]\.")
WRITES = {
    "write_bytes",
    "write_text",
    "mkdir",
    "rename",
    "replace_file",
    "unlink",
    "rmdir",
    "rmtree",
    "symlink_to",
    "hardlink_to",
    "touch",
    "truncate",
    "tofile",
    "savez",
    "copyfile",
    "copytree",
    "move",
}
FLAGS = {"O_CREAT", "O_RDWR", "O_WRONLY", "O_TRUNC", "O_TMPFILE"}

READERS = {
    "architectures",
    "audit",
    "chat",
    "chat_template",
    "check",
    "diff",
    "draft_check",
    "evaluate",
    "fit",
    "formats",
    "generate",
    "perplexity",
    "reproduce",
    "schema",
    "show",
    "tokenize",
    "validate",
}


@dataclass(frozen=True)
class Writer:
    """A command that writes.

    line: a call of it, TARGET being what it writes. reads: files of that line that must not be the target.
    """

    line: str
    reads: Sequence[str]

    def __str__(self) -> str:
        return self.line


WRITERS = {
    "attest": Writer("attest m.gguf --recipe rules --imatrix k -o TARGET", ("m.gguf", "rules", "k")),
    "convert": Writer(
        "convert ck --outtype q4_0 --imatrix k -o TARGET",
        ("ck/model.safetensors", "ck/config.json", "ck/tokenizer.json", "ck/tokenizer_config.json", "k"),
    ),
    "convert_endian": Writer("convert-endian m.gguf -o TARGET", ("m.gguf",)),
    "demo": Writer("demo ck -f t -o folder", ()),
    "embed": Writer("embed m.gguf --pooling mean --prompts t -o TARGET.npy", ("m.gguf", "t")),
    "export": Writer("export m.gguf --tensors norm -o TARGET.safetensors", ("m.gguf",)),
    "gpu_split": Writer(
        "gpu-split activations --vram 1M -m p.gguf -o TARGET", ("p.gguf", "activations/activation_0.pt")
    ),
    "graft": Writer("graft m.gguf --from m2.gguf template -o TARGET", ("m.gguf", "m2.gguf")),
    "graph": Writer("graph m.gguf --tokens 1,2,3 --save TARGET.npz", ("m.gguf",)),
    "hash": Writer("hash m.gguf -o TARGET", ("m.gguf",)),
    "imatrix": Writer("imatrix m.gguf -f t -c 128 --chunks 1 -o TARGET", ("m.gguf", "t")),
    "imatrix_info": Writer("imatrix-info k k --merge TARGET", ("k",)),
    "merge": Writer("merge s-00001-of-00002.gguf -o TARGET", ("s-00001-of-00002.gguf", "s-00002-of-00002.gguf")),
    "divergence": Writer("divergence m.gguf m.gguf -f t -c 128 --chunks 1 --html TARGET", ("m.gguf", "t")),
    "report": Writer("report results.json --html TARGET", ("results.json",)),
    "patch": Writer("patch apply m.gguf d.gguf -o TARGET", ("m.gguf", "d.gguf")),
    "quantize": Writer("quantize m.gguf Q4_0 --imatrix k --tensor-type-file rules -o TARGET", ("m.gguf", "k", "rules")),
    "set_metadata": Writer(
        "set-metadata m.gguf general.description=@t --from-json values.json -o TARGET", ("m.gguf", "t", "values.json")
    ),
    "split": Writer("split m.gguf -o s --split-max-tensors 20", ()),
}
HUB = {"fetch", "upload"}  # what they write and read is on a server: publish/hub/ tests them
FOLDERS = {"card", "release"}  # they write a folder of their own: publish/ tests them
MORE = [  # other forms of output, and other inputs
    Writer("divergence m.gguf m.gguf -f t -c 128 --chunks 1 --save-base TARGET", ("m.gguf", "t")),
    Writer(
        "patch make s-00001-of-00002.gguf m2.gguf -o TARGET",
        ("s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "m2.gguf"),
    ),
    Writer("merge s-00001-of-00002.gguf --free -o TARGET", ("s-00001-of-00002.gguf", "s-00002-of-00002.gguf")),
    Writer("imatrix-info k k --merge TARGET.dat", ("k",)),
    Writer("export m.gguf --tensors output_norm -o TARGET.npy", ("m.gguf",)),
    Writer("set-metadata m.gguf --chat-template @t --force -o TARGET", ("t",)),
    Writer("quantize s-00001-of-00002.gguf Q8_0 -o TARGET", ("s-00001-of-00002.gguf", "s-00002-of-00002.gguf")),
    Writer("quantize ck Q8_0 -o TARGET", ("ck/model.safetensors", "ck/tokenizer.json")),
]


def test_each_command_is_known_to_write_or_not() -> None:
    names = {path.stem for path in Path(commands.__file__).parent.glob("[!_]*.py")}
    assert names == READERS | set(WRITERS) | HUB | FOLDERS


def test_only_the_gate_opens_files_for_writing() -> None:
    package = ROOT / "gguftools"
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = str(path.relative_to(package))
        lines = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if _writes(node)]
        if lines and name not in GATE:
            found[name] = lines
    assert set(found) == set(ELSEWHERE), found


def _writes(node: ast.AST) -> bool:
    """Whether it opens a file for writing, or makes or removes one."""
    if isinstance(node, ast.Attribute) and node.attr in FLAGS:
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in WRITES:
        return True
    is_path = isinstance(node.func, ast.Attribute) and name == "replace" and len(node.args) == 1
    given = (*node.args, *(word.value for word in node.keywords))
    modes = [each.value for each in given if isinstance(each, ast.Constant)]
    return is_path or (name in ("open", "fdopen") and any(str(mode)[:1] in "wax" or "+" in str(mode) for mode in modes))


@pytest.fixture(scope="module")
def tool() -> Iterator[Tool]:
    tool = Tool()
    yield tool
    tool.close()


def shorten(checkpoint: Path) -> None:
    """Leave two of four layers: files are copied and read some hundred times."""
    kept = open_safetensors(checkpoint / "model.safetensors").items()
    arrays = {name: ("BF16", each.elements().reshape(each.shape)) for name, each in kept if not BEHIND.search(name)}
    write_safetensors(checkpoint / "model.safetensors", arrays)
    config = json.loads((checkpoint / "config.json").read_text()) | {"num_hidden_layers": 2}
    (checkpoint / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def made(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that the commands read."""
    folder = tmp_path_factory.mktemp("gate")
    shutil.copytree(ROOT / "examples" / "austen-4m", folder / "ck")
    shorten(folder / "ck")
    (folder / "t").write_text((ROOT / "examples" / "persuasion.txt").read_text()[:8000])
    (folder / "rules").write_text("attn_v=Q8_0\n")
    (folder / "results.json").write_text(json.dumps(results(2, passages=1)))
    (folder / "values.json").write_text('{"general.author": "me"}')
    for line in (
        "convert ck -o m.gguf --outtype f16",
        "imatrix m.gguf -f t -o k -c 128 --chunks 1",
        "split m.gguf -o s --split-max-tensors 20",
        "set-metadata m.gguf --chat-template @t --force -o m2.gguf",
        "patch make m.gguf m2.gguf -o d.gguf",
    ):
        done = tool.run(folder, *line.split())
        assert done.code == 0, done.line
    matrices = {f"blk.0.{name}.weight": np.zeros((6, 4)) for name in ("ffn_gate", "ffn_up", "ffn_down_t")}
    write_model(folder / "p.gguf", metadata_of({"general.architecture": "llama"}), matrices)
    (folder / "activations").mkdir()
    write_torch(folder / "activations" / "activation_0.pt", np.arange(6, dtype=np.int64))
    return folder


def state(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("writer", [each for each in (*WRITERS.values(), *MORE) if each.reads], ids=str)
def test_what_is_read_is_never_written(tool: Tool, made: Path, tmp_path: Path, writer: Writer) -> None:
    """Nor through a link, nor by another name of the same file, nor by another spelling."""
    shutil.copytree(made, tmp_path / "work")
    option = writer.line.partition("TARGET")[0].split()[-1].replace("-o", "--output")
    folder, suffix, calls = tmp_path / "work", writer.line.partition("TARGET")[2], []
    for number, read in enumerate(writer.reads):
        targets = [f"link{number}{suffix}", f"name{number}{suffix}", *([] if suffix else [f"ck/../{read}"])]
        (folder / targets[0]).symlink_to(folder / read)
        os.link(folder / read, folder / targets[1])
        calls += [[*writer.line.replace(f"TARGET{suffix}", target).split(), "--overwrite"] for target in targets]
    before = state(folder)
    for done in tool.together(folder, *calls):
        assert done.code == 1, done.line
        assert "is read, so it cannot be written" in done.err, done.line
        assert f"name another {option}" in done.err, done.line
    assert state(folder) == before


@pytest.mark.parametrize("line", [writer.line for writer in (*WRITERS.values(), *MORE)])
def test_what_exists_is_kept(tool: Tool, made: Path, tmp_path: Path, line: str) -> None:
    """A file, a folder, a link to nothing, something that is no file; and a name that must be a folder's."""
    shutil.copytree(made, tmp_path / "work")
    folder = tmp_path / "work"
    written = line.replace("TARGET", "there")
    target = next((word for word in written.split() if word.startswith("there")), None)
    if target is None:
        (folder / "folder").mkdir()
        (folder / "folder" / "ck-BF16.gguf").write_text("mine")
        calls = [written.split()]
    else:
        (folder / target).write_text("mine")
        (folder / f"nothing{target}").symlink_to("nowhere")
        os.mkfifo(folder / f"pipe{target}")
        calls = [
            written.split(),
            *([*written.replace("there", f"{kind}there").split(), "--overwrite"] for kind in ("nothing", "pipe")),
        ]
        if "--free" not in line:  # which would do what it is there for
            calls.append(f"{written}/".replace(target, f"none{target}").split())
    before = state(folder)
    for done in tool.together(folder, *calls):
        if any(str(word).endswith("/") for word in done.arguments) and done.code == 0:
            continue  # a folder that was made
        assert done.code == 1, done.line
        assert "Traceback" not in done.err
    after = state(folder)
    assert {name: after[name] for name in before} == before
    assert not (folder / f"none{target}").is_file()

"""Three wrong inputs for each command: a file that is missing, one of another type, an option that is impossible."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ... import hints
from ..command_line import EXAMPLE, TEXT, program, typed

# Lines that tell themselves what is expected.
EXPECTED = re.compile(
    r"expected|one of|one for each layer|layers are|is not UTF-8 text|is not an? (importance matrix|shard|JSON)"
)
# Call → words of its one error line: what is wrong, where, what was found, what was expected.
CALLS = {
    "architectures llama": "takes no argument",
    "architectures --markdown --json": "--json cannot be combined with --markdown",
    "architectures --check": "no option --check",
    "attest absent.gguf": "there is no file absent.gguf",
    "attest TEXT": "persuasion.txt",
    "attest MODEL --verify MODEL --sign": "--verify cannot be combined with --sign",
    "audit absent.gguf": "there is no file absent.gguf",
    "audit TEXT": "persuasion.txt",
    "audit MODEL --fail-on disaster": "'disaster' is not a severity",
    "card absent/": "absent is no folder",
    "card TEXT": "persuasion.txt is no folder",
    "card . --repository mine": "repository is 'mine'; ORG/NAME",
    "chat absent.gguf": "there is no file absent.gguf",
    "chat TEXT": "persuasion.txt",
    "chat MODEL --temp hot": "--temp is 'hot'; a number",
    "chat-template absent.gguf": "there is no file absent.gguf",
    "chat-template TEXT": "persuasion.txt",
    "chat-template MODEL --messages TEXT": "persuasion.txt",
    "check MODEL --against absent/": "there is no file absent",
    "check MODEL --against TEXT": "persuasion.txt",
    "check MODEL --predict 0": "--predict is '0'; a whole number of at least 1",
    "convert absent/": "absent",
    "convert MODEL": "model.gguf",
    "convert CHECKPOINT --outtype Q4_K_X": "Q4_K_X",
    "convert-endian absent.gguf": "there is no file absent.gguf",
    "convert-endian TEXT": "persuasion.txt",
    "convert-endian MODEL middle -o out.gguf": "middle",
    "demo absent/": "absent",
    "demo TEXT": "persuasion.txt",
    "demo --file absent.txt": "absent.txt",
    "diff MODEL absent.gguf": "there is no file absent.gguf",
    "diff MODEL TEXT": "persuasion.txt",
    "diff MODEL MODEL --vocab --errors": "--vocab cannot be combined with --errors",
    "divergence MODEL absent.gguf": "there is no file absent.gguf",
    "divergence MODEL MATRIX": "matrix.gguf",
    "divergence MODEL MODEL --fail-above mean": "mean",
    "draft-check MODEL absent.gguf": "there is no file absent.gguf",
    "draft-check TEXT MODEL": "persuasion.txt",
    "draft-check MODEL": "no draft",
    "embed absent.gguf -p one": "there is no file absent.gguf",
    "embed TEXT -p one": "persuasion.txt",
    "embed MODEL -p one --pooling median": "median",
    "evaluate MODEL --hellaswag absent.txt": "absent.txt",
    "evaluate MODEL --hellaswag MODEL": "model.gguf",
    "evaluate MODEL": "no benchmark is given",
    "export absent.gguf -o out": "there is no file absent.gguf",
    "export TEXT -o out": "persuasion.txt",
    "export MODEL -o out --split-max-size 0": "'0' is not a size",
    "fit absent.gguf": "there is no file absent.gguf",
    "fit TEXT": "persuasion.txt",
    "fit MODEL --cache-type q2_k": "q2_k",
    "fetch org": "hf://org does not name a model",
    "fetch org/model@a --revision b": "org/model@a names a revision",
    "fetch org/model --token hf_secretsecret": "no option --token",
    "formats MODEL": "takes no argument",
    "formats --markdown": "no option --markdown",
    "formats --quiet --verbose": "--quiet cannot be combined with --verbose",
    "generate absent.gguf -p one": "there is no file absent.gguf",
    "generate TEXT -p one": "persuasion.txt",
    "generate MODEL -p one --draft-lookup --draft-mtp": "--draft-lookup cannot be combined with --draft-mtp",
    "gpu-split absent/ --vram 1G": "absent",
    "gpu-split CHECKPOINT --vram 1G": "austen-4m",
    "gpu-split CHECKPOINT --vram much": "'much' is not a size",
    "graft absent.gguf -o out.gguf --drop x": "there is no file absent.gguf",
    "graft TEXT -o out.gguf --drop x": "persuasion.txt",
    "graft MODEL -o out.gguf --drop-layers 99": "99",
    "graph absent.gguf": "there is no file absent.gguf",
    "graph TEXT": "persuasion.txt",
    "graph MODEL --values": "no text to run",
    "hash absent.gguf": "there is no file absent.gguf",
    "hash TEXT": "persuasion.txt",
    "hash MODEL --check TEXT": "persuasion.txt",
    "imatrix MODEL -f absent.txt -o out.gguf": "absent.txt",
    "imatrix TEXT -f TEXT -o out.gguf": "persuasion.txt",
    "imatrix MODEL -f TEXT -o out.gguf --ctx 1": "--ctx is '1'; a whole number of at least 4",
    "imatrix-info absent.gguf": "there is no file absent.gguf",
    "imatrix-info TEXT": "persuasion.txt",
    "imatrix-info MATRIX --fill": "--fill needs --check-model",
    "merge absent.gguf -o out.gguf": "there is no file absent.gguf",
    "merge TEXT -o out.gguf": "persuasion.txt",
    "merge MODEL -o out.gguf": "model.gguf",
    "patch make MODEL absent.gguf -o out.patch": "there is no file absent.gguf",
    "patch apply MODEL TEXT -o out.gguf": "persuasion.txt",
    "patch mend MODEL MODEL -o out.patch": "mend",
    "perplexity absent.gguf -f TEXT": "there is no file absent.gguf",
    "perplexity MODEL -f MODEL": "model.gguf",
    "perplexity MODEL -f TEXT --precision double": "double",
    "quantize absent.gguf Q8_0": "there is no file absent.gguf",
    "quantize TEXT Q8_0": "persuasion.txt",
    "quantize MODEL Q8_0 --target-size 3M --target-bpw 4": "--target-size cannot be combined with --target-bpw",
    "release absent/ -o new/": "absent",
    "release TEXT -o new/": "persuasion.txt",
    "release CHECKPOINT -o new/ --ladder tall": "there is no ladder 'tall'",
    "report absent.json": "absent.json",
    "report TEXT": "persuasion.txt",
    "report MODEL --html out.html": "model.gguf",
    "reproduce absent.gguf": "there is no file absent.gguf",
    "reproduce TEXT": "persuasion.txt",
    "reproduce MODEL --source MODEL --seed 1": "--seed needs --sample",
    "schema shew": "there is no command 'shew'",
    "schema chat": "there is no command 'chat'",
    "schema --json": "no option --json",
    "set-metadata absent.gguf general.name=x": "absent.gguf cannot be changed: No such file",
    "set-metadata TEXT general.name=x": "persuasion.txt",
    "set-metadata MODEL general.name": "'general.name' is not of the form KEY=VALUE",
    "show absent.gguf": "there is no file absent.gguf",
    "show TEXT": "persuasion.txt",
    "show MODEL --key general.nome": "general.nome",
    "split absent.gguf -o out": "there is no file absent.gguf",
    "split TEXT -o out": "persuasion.txt",
    "split MODEL -o out --split-max-size 500": "'500' has no unit",
    "tokenize absent.gguf -p one": "there is no file absent.gguf",
    "tokenize TEXT -p one": "persuasion.txt",
    "tokenize MODEL -p one --ids": "no option --ids",
    "upload absent/ org/model": "absent is missing; a folder was expected",
    "upload CHECKPOINT model": "'model' has no namespace",
    "upload CHECKPOINT org/model --token hf_secretsecret": "no option --token",
    "validate": "missing argument",
    "validate MODEL --data": "no option --data",
    "validate MODEL --threads 0": "--threads is '0'; a whole number of at least 1",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wrong")
    model, matrix = folder / "model.gguf", folder / "matrix.gguf"
    assert typed("convert", EXAMPLE, "-o", model).returncode == 0
    assert typed("imatrix", model, "-f", TEXT, "-o", matrix, "--chunks", 1, "-c", 64).returncode == 0
    return {"MODEL": model, "MATRIX": matrix, "CHECKPOINT": EXAMPLE, "TEXT": TEXT}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_input_is_one_line_with_a_way_out(
    call: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    done = typed(*(files.get(word, word) for word in call.split()))
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert done.returncode in (1, 2), f"exit code {done.returncode}: {done.stdout[-300:]}{done.stderr}"
    assert "Traceback" not in done.stderr
    assert len(errors) == 1, done.stderr
    assert CALLS[call] in errors[0], errors[0]
    assert not list(tmp_path.iterdir()), "a file is left"
    hint = next((line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")), "")
    assert hint or EXPECTED.search(errors[0]), f"no way out of: {errors[0]}"
    for words in hints.calls(hint):
        if words[1:] and not any(word.isupper() or "…" in word for word in words):  # which stand for the user's files
            again = typed(*words)
            assert "has no option" not in again.stderr, f"{shlex.join(words)}: {again.stderr}"
            assert "takes no argument" not in again.stderr, f"{shlex.join(words)}: {again.stderr}"


def test_every_command_has_three_wrong_inputs():
    commands = [call.split()[0] for call in CALLS]
    assert {name: commands.count(name) for name in program().commands} == dict.fromkeys(program().commands, 3)

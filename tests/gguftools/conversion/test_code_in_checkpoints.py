"""No Python of a checkpoint is run, whatever its files ask for and whatever the user answers."""

from __future__ import annotations

import ast
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from ...conftest import ROOT
from ..command_line import EXAMPLE

LOADERS = ("from_pretrained", "from_config")
CODE = """open('ran', 'w').close()
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
class Evil(PreTrainedTokenizerFast): pass
class EvilConfig(PreTrainedConfig): model_type = 'evil'
"""
AUTO = {"AutoTokenizer": ["evil.Evil"] * 2, "AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]


def test_every_loader_of_transformers_is_told_not_to() -> None:
    found = 0
    for package in ("quants", "archs", "runtime", "gguftools"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in LOADERS:
                    given = {each.arg: getattr(each.value, "value", None) for each in call.keywords}
                    assert given.get("trust_remote_code") is False, f"{path}:{call.lineno}"
                    assert given.get("local_files_only") is True, f"{path}:{call.lineno}"
                    found += 1
    assert found


def evil_folder(folder: Path) -> Path:
    """The example, without a tokenizer that is read without transformers, and with Python beside it."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("tokenizer*", "special*", "README.md"))
    (folder / "evil.py").write_text(CODE)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    named = {"auto_map": AUTO, "tokenizer_class": "Evil"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **named, "model_type": "evil"}))
    return folder


def test_a_folder_with_code_on_a_terminal_that_answers_yes(tmp_path: Path) -> None:
    evil_folder(tmp_path / "ck")
    code, said = on_a_terminal("convert", "ck", "-o", "out.gguf", cwd=tmp_path)
    assert not list(tmp_path.rglob("ran"))
    assert code == 1, said
    assert "never run" in said
    assert "custom code" not in said.partition("error:")[0]
    assert "Traceback" not in said
    assert not (tmp_path / "out.gguf").exists()


def on_a_terminal(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of the tool on a terminal of its own, on which somebody types y again and again."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "gguftools", *arguments],
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(cwd / "home"), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    said, deadline = b"", time.monotonic() + 300
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:
                break
            if not piece:
                break
            said += piece
            if b"custom code" in piece:
                os.write(ours, b"y\n")
        elif command.poll() is not None:
            break
    command.kill()
    os.close(ours)
    return command.wait(), said.decode("utf-8", "replace")

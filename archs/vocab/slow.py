"""Convert slow tokenizers by transformers' converters, in a process with limits: they run whatever a folder's files ask
for, and would keep what they import.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from quants.errors import VocabularyError

from ..small_files import parse_json

SECONDS, BYTES = 120, 4 << 30
CHILD = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve(sys.argv[2])"
FILES = ("*vocab*", "*.model", "*.tiktoken", "*merges*", "tokenizer*", "*.bpe*", "*.spm")


def tokenizer_by_transformers(folder: Path) -> dict[str, Any]:
    """Return the content of tokenizer.json. Raises VocabularyError if no file could become one."""
    why = "there are no files of one"
    if any(next(folder.glob(pattern), None) for pattern in FILES):
        answer = _answer(folder)
        if content := answer.get("tokenizer"):
            return dict(json.loads(content))
        why = str(answer.get("error"))
    if "trust_remote_code" in why:
        raise VocabularyError(
            f"{folder}: the tokenizer is Python code of the checkpoint, which is never run",
            "a version of it with tokenizer.json can be read",
        )
    raise VocabularyError(
        f"{folder} has no tokenizer that can be read: {why.splitlines()[0][:500]}",
        "it should hold tokenizer.json, tokenizer.model, or vocab.json and merges.txt",
    )


def _answer(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-I", "-c", CHILD, json.dumps(sys.path), str(folder.resolve())]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=2 * SECONDS
        )
        return dict(parse_json(done.stdout.rstrip("\n").rpartition("\n")[2]))
    except subprocess.TimeoutExpired:
        return {"error": f"transformers took longer than {2 * SECONDS} s"}
    except ValueError:
        return {"error": f"transformers needed more than {SECONDS} s or {BYTES >> 30} GB"}


def _bound() -> None:
    """Bound this process's time and memory where the system can; on Windows its parent alone bounds its time."""
    try:
        import resource
    except ImportError:
        return
    for which, limit in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_DATA, BYTES)):
        resource.setrlimit(which, (limit, limit))


def serve(folder: str) -> None:
    """What the process does: a line of JSON about the folder."""
    _bound()
    try:
        from transformers import AutoTokenizer  # slow to import

        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, local_files_only=True, trust_remote_code=False)
        answer = {"tokenizer": tokenizer.backend_tokenizer.to_str()}
    except Exception as error:  # a tokenizer class may raise anything on files that it refuses
        answer = {"error": str(error) or type(error).__name__}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")

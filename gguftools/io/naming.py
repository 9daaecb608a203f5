"""Write hints for paths that name nothing, or something else than expected."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from archs.small_files import hint_for_missing
from quants.arguments import PathLike
from quants.errors import FileError

from .stores.path import StorePath, is_url

ADDRESS = re.compile(
    r"https?:/+(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/]+?)(?:/(?:tree|blob|resolve)/([^/]+).*|/)?"
)
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
SHOWN = 3


def is_remote(name: PathLike) -> bool:
    """Return True for a URL of a store, such as a repository of the hub; False for a path on this disk."""
    return is_url(name)


def is_stored_gguf(name: PathLike) -> bool:
    """Return True for the URL of a GGUF file; False for a checkpoint's folder in a store, and for local paths."""
    return is_url(name) and os.fspath(name).partition("?")[0].lower().endswith(".gguf")


def refuse_store(path: Path) -> None:
    """Raise FileError for a URL where a local file is needed."""
    if isinstance(path, StorePath):
        hint = "fetch it, or write a file and copy that: see docs/stores.md for what works there"
        raise FileError(f"{path} is in a store; a file on this disk was expected", hint)


def few(names: Sequence[object]) -> str:
    """Join the first SHOWN names for a message."""
    return ", ".join(map(str, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")


def hint_for_absent(path: PathLike) -> str | None:
    """Return what to do about a path that does not exist: a name on the hub, standard input, a similar name."""
    text = os.fspath(path)
    if text == "-":
        return "standard input is named /dev/stdin"
    if match := ADDRESS.fullmatch(text):
        revision = f"@{match[2]}" if match[2] not in (None, "main") else ""
        return f"`gguftools convert hf://{match[1]}{revision}` reads it from the hub"
    if text.startswith(("hf:/", "hf.co/")):
        return "`gguftools fetch ORG/MODEL` brings it here; convert, quantize and release read hf://ORG/MODEL, too"
    if HUB_NAME.fullmatch(text) and not text.endswith(".gguf") and not Path(text).parent.exists():
        return f"`gguftools convert hf://{text}` reads a model from the hub"
    return None if is_url(text) else hint_for_missing(Path(path))


def hint_for_folder(folder: Path) -> str:
    """Return a hint for a folder where a GGUF file is expected."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".gguf") if os.access(folder, os.R_OK) else []
    if files:
        return f"name a file in it: {few(files)}"
    if (folder / "config.json").exists():
        return f"`gguftools convert {shlex.quote(str(folder))}` makes a GGUF file of it"
    return "name a GGUF file"

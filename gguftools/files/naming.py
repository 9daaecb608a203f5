"""Hints for a path at which there is something else than what was wanted, or nothing."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from quants.arguments import PathLike

ADDRESS = re.compile(
    r"https?:/+(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/]+?)(?:/(?:tree|blob|resolve)/([^/]+).*|/)?"
)
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
SHOWN = 3
SCHEME = "hf://"


def is_remote(name: PathLike) -> bool:
    """Whether a model's name is that of a repository rather than of a folder."""
    return isinstance(name, str) and name.startswith(SCHEME)


def few(names: Sequence[object]) -> str:
    """The first of them, for a message."""
    return ", ".join(map(str, names[:SHOWN])) + (", …" if len(names) > SHOWN else "")


def hint_for_absent(path: PathLike) -> str | None:
    """What to do about a path that does not exist: a name on the hub, its address, standard input."""
    text = os.fspath(path)
    if text == "-":
        return "standard input is named /dev/stdin"
    if found := ADDRESS.fullmatch(text):
        revision = f"@{found[2]}" if found[2] not in (None, "main") else ""
        return f"`gguftools convert hf://{found[1]}{revision}` reads it from the hub"
    if re.match(r"https?:/", text):
        return "fetch the file first: addresses are not opened"
    if text.startswith(("hf:/", "hf.co/")):
        return "only `gguftools convert` reads from the hub: hf://ORG/MODEL"
    if HUB_NAME.fullmatch(text) and not text.endswith(".gguf") and not Path(text).parent.exists():
        return f"`gguftools convert hf://{text}` reads a model from the hub"
    return None


def hint_for_folder(folder: Path) -> str:
    """What to do with a folder where a GGUF file is wanted."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".gguf") if os.access(folder, os.R_OK) else []
    if files:
        return f"name a file in it: {few(files)}"
    if (folder / "config.json").exists():
        return f"`gguftools convert {folder}` makes a GGUF file of it"
    return "name a GGUF file"

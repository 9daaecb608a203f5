"""Tokenize a text with a file's tokenizer.

Prints one id and its piece per line.
"""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = (
    'gguftools tokenize model.gguf -p "It is a truth"',
    "gguftools tokenize model.gguf --count",
    'gguftools tokenize model.gguf -p "<|im_start|>user" --special --json',
)
GROUP = "Inspect"


def tokenize(
    model: Annotated[Path, Argument(help="GGUF file with the tokenizer (of a split set, any shard).")],
    prompt: Annotated[str | None, Option("--prompt", "-p", help="Prompt (- for stdin): stdin if not given.")] = None,
    special: Annotated[bool, "Include special tokens: parse those in the text, and add BOS and EOS."] = False,
    count: Annotated[bool, "Print only the number of tokens."] = False,
    json: bool = False,
) -> None:
    from ...metadata.prompts import read_stdin
    from ...models.tokenizing import tokenize as run
    from ..ui import note, print_json, print_line

    result = run(model, read_stdin() if prompt in (None, "-") else prompt or "", special=special)
    if json:
        print_json(result.as_dict(count_only=count))
        return
    if count:
        print_line(str(len(result.ids)))
    else:
        wide = len(str(max(result.ids, default=0)))
        for number, piece in zip(result.ids, result.pieces, strict=True):
            sys.stdout.write(f"{number:{wide}}  {_shown(piece)}\n")
    if result.prompt_count != len(result.ids):
        counted = _counted(result.prompt_count)
        note(f"as a prompt, {counted}: with what begins texts, and control tokens written in it (--special)")


def _counted(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _shown(piece: bytes) -> str:
    """Quote a piece, so that its spaces and incomplete characters are visible."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return str(piece)
    return repr(text)

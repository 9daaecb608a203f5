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
    from runtime.generation import prompt_ids

    from ...metadata.prompts import check_unicode, read_stdin
    from ...models.model import opened_gguf
    from ..ui import note, print_json, print_line

    source = opened_gguf(model)
    tokenizer = source.tokenizer
    text = read_stdin() if prompt in (None, "-") else prompt or ""
    check_unicode(text)
    ids = tokenizer.encode(text, add_special=special, parse_special=special)
    read = len(prompt_ids(tokenizer, text))
    if json:
        found = {"file": str(model), "count": len(ids), "prompt_count": read}
        pieces = [tokenizer.piece(number).decode("utf-8", "replace") for number in ids]
        print_json(found if count else found | {"ids": ids, "pieces": pieces})
    elif count:
        print_line(str(len(ids)))
    else:
        wide = len(str(max(ids, default=0)))
        for number in ids:
            sys.stdout.write(f"{number:{wide}}  {_shown(tokenizer.piece(number))}\n")
    if not json and read != len(ids):
        note(f"as a prompt, {_counted(read)}: with what begins texts, and control tokens written in it (--special)")


def _counted(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _shown(piece: bytes) -> str:
    """A piece so that its borders and half characters are seen."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return str(piece)
    return repr(text)

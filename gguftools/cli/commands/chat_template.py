"""Render conversations with a file's chat template.

The template runs in a sandbox. With --against, compares the texts with those of another file's template.
"""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

EXAMPLES = (
    "gguftools chat-template model.gguf",
    "gguftools chat-template model.gguf --messages conversation.jsonl",
    "gguftools chat-template model.gguf --against original.gguf",
)
GROUP = "Inspect"


def chat_template(
    model: Annotated[Path, Argument(help="GGUF file with the template (of a split set, any shard).")],
    messages: Annotated[
        Path | None, Option(metavar="FILE", help="Conversations, JSON or JSONL (default: a few sample ones).")
    ] = None,
    against: Annotated[
        Path | None, "Hugging Face folder or GGUF file to compare with: exit code 1 if its template gives other texts."
    ] = None,
    json: bool = False,
) -> None:
    from ...inspection.templates import compare_templates, rendered_texts
    from ...models.model import open as open_model
    from ...models.model import opened_gguf
    from ...writing.report import verdict_word
    from ..ui import print_json, print_line

    source = opened_gguf(model)
    if against is None:
        texts = rendered_texts(source, messages)
        if json:
            print_json({"file": str(model), "texts": [each.as_dict() for each in texts]})
            return
        for each in texts:
            print_line(f"# {each.name}" + (f": refused: the chat template {each.error}" if each.error else ""))
            if each.text is not None:
                print_line(each.text, keep="\n\t")
        sys.stdout.flush()
        return
    found = compare_templates(source, open_model(against), messages)
    if json:
        about = {"file": str(model), "other": str(against), "verdict": verdict_word(not found)}
        print_json(about | {"differences": found})
    elif not found:
        print_line("all texts are the same")
    for name, lines in () if json else found.items():
        print_line(f"# {name}")
        for line in lines:
            print_line(line, keep="\t")
    if found:
        raise Exit(1)

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
    from ...inspection.templates import chat_template as render
    from ...inspection.templates import compare_chat_templates
    from ..ui import print_json, print_line

    if against is None:
        report = render(model, messages)
        if json:
            print_json(report)
            return
        for each in report.texts:
            print_line(f"# {each.name}" + (f": refused: the chat template {each.error}" if each.error else ""))
            if each.text is not None:
                print_line(each.text, keep="\n\t")
        sys.stdout.flush()
        return
    comparison = compare_chat_templates(model, against, messages)
    if json:
        print_json(comparison)
    elif comparison.equal:
        print_line("all texts are the same")
    for name, lines in () if json else comparison.differences.items():
        print_line(f"# {name}")
        for line in lines:
            print_line(line, keep="\t")
    if not comparison.equal:
        raise Exit(1)

"""Show what GGUF files contain: summary, metadata, tensors."""

from pathlib import Path
from typing import Annotated

EXAMPLES = (
    "gguftools show model.gguf",
    "gguftools show model.gguf --tensors 'blk.0.'",
    "gguftools show model.gguf --key tokenizer.chat_template",
)
GROUP = "Inspect"


def show(
    files: list[Path],
    key: Annotated[list[str] | None, "Print the whole value of a key, arrays too."] = None,
    tensors: Annotated[str | None, "Only tensors whose names match."] = None,
    json: bool = False,
    markdown: bool = False,
    text: Annotated[bool, "Print a stable dump of keys, types, shapes and hashes, for diff."] = False,
) -> None:
    from ...inspection import describe
    from ..ui import print_json, print_line, print_markdown, print_table, print_value, size

    reports = [describe.show(path, tensors=None if key or text else tensors) for path in files]
    if json and not key:
        print_json(reports[0] if len(reports) == 1 else reports)
        return
    table = print_markdown if markdown else print_table
    for report in reports:
        each = report.model
        if key:
            values = [(name, describe.full_value(each.metadata, name)) for name in key]
            if json and len(key) > 1:
                print_value(dict(values), True)
                continue
            for name, value in values:
                if len(key) > 1:
                    print_line(f"{name}:")
                print_value(value, json)
        elif text:
            for line in describe.as_text(each):
                print_line(line, keep="\t")
        else:
            if tensors is None:
                table(str(each.path), ("", ""), [(k, describe.fact(v)) for k, v in describe.summary(each).items()])
                table("metadata", ("key", "type", "value"), [*describe.metadata_rows(each)])
            places = each.file.offsets if each.file else {}
            rows = [
                (t.name, t.format.name, " × ".join(map(str, t.shape)), f"{places.get(t.name, 0):,}", size(t.nbytes))
                for t in report.tensors
            ]
            if rows:
                table("tensors (rows first)", ("name", "type", "shape", "offset", "bytes"), rows, "lllrr")

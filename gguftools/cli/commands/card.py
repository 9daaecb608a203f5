"""Write or update the model card of a folder of GGUF files.

Figures come from divergence.json in the folder. What a person wrote outside of the generated blocks stays.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = ("gguftools card release/", "gguftools card release/ --repository me/Model-GGUF --original org/Model")
GROUP = "Publish"


def card(
    folder: Annotated[Path, Argument(help="Folder of GGUF files, and of folders of shards.")],
    repository: Annotated[
        str | None, Option(metavar="ORG/NAME", help="Repository on the Hub that the files are for.")
    ] = None,
    original: Annotated[
        str | None, Option(metavar="ORG/MODEL", help="Model on the Hub that the files were made from.")
    ] = None,
    quantized_by: Annotated[str | None, Option(metavar="NAME", help="Who made the files.")] = None,
    title: Annotated[str | None, "Title of the model (default: the file's name of it)."] = None,
    no_ollama: Annotated[bool, "Skip Modelfile, template, system and params."] = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ...publish.cards.card import CardOptions
    from ...publish.cards.card import card as write_card
    from ..ui import note, print_line, print_result

    options = CardOptions(original, repository, quantized_by, title, not no_ollama, overwrite)
    report = write_card(folder, options=options)
    for name in report.edited:
        note(f"the block {name} was changed by hand: it stays as it is")
    if print_result(report, json, [folder / name for name in report.files]):
        return
    for name in report.files:
        print_line(f"{folder / name}: written")
    if not report.files:
        print_line(f"{report.file}: up to date")

"""List the supported architectures, and what works with each.

For each GGUF architecture: its Hugging Face classes, its vocabularies, and whether `export` turns it back into a
checkpoint. For image and video models: the tag of their files, and the programs that load them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...inspection.catalogue import ArchitectureInfo

EXAMPLES = ("gguftools architectures", "gguftools architectures --json")
GROUP = "Inspect"


def architectures(json: bool = False, markdown: bool = False) -> None:
    from ...inspection.catalogue import architectures as known
    from ...inspection.catalogue import encoders
    from ..ui import print_line, print_markdown, print_result, print_table

    infos = known()
    if print_result(infos, json):
        return
    show = print_markdown if markdown else print_table
    named = tuple(each for each in infos if not (each.wrapper or each.image))
    rows = [
        (
            each.name,
            ", ".join(each.hf_classes),
            ", ".join(each.vocabularies) or "the target's",
            "yes" if each.exports else "no",
        )
        for each in named
    ]
    show(None, ("GGUF name", "Hugging Face classes", "vocabularies", "back again"), rows)
    having = [
        (
            ", ".join(each.hf_classes),
            ", ".join(each.model_types),
            ", ".join(each.parts),
            ", ".join(each.running),
            ", ".join(each.exporting),
        )
        for each in encoders()
    ]
    columns = ("classes", "model types", "encoders", "that run", "back again with --mmproj")
    show("Classes with encoders, which `convert --mmproj` writes", columns, having)
    images = [(each.title, each.name, ", ".join(each.readers)) for each in infos if each.image]
    show("Image and video models, which are converted and quantized", ("model", "tag", "read by"), images)
    for line in _remarks(named):
        print_line(line)


def _remarks(infos: "tuple[ArchitectureInfo, ...]") -> Iterator[str]:
    from ...inspection.catalogue import coverage, wrappers

    by_reason: dict[str, list[str]] = {}
    for each in infos:
        if each.export_obstacle and not each.draft:
            by_reason.setdefault(each.export_obstacle, []).append(each.hf_classes[0])
    for reason, names in by_reason.items():
        yield f"no checkpoints again, because {reason}: {', '.join(names)}"
    yield f"wrappers, of which the text model that config.json names is converted: {', '.join(wrappers())}"
    count = coverage()
    yield (
        f"{count['classes']} classes are converted and run, {count['wrappers']} more wrap a text model of these, "
        f"{count['drafts']} are drafts; {count['exported']} become checkpoints again; {count['with_encoders']} have "
        f"encoders, those of {count['with_running_encoders']} run; {count['exported_with_encoders']} become "
        "checkpoints with them again"
    )

"""List the model architectures that are converted and run."""


EXAMPLES = ("gguftools architectures", "gguftools architectures --json")


def architectures(json: bool = False, markdown: bool = False) -> None:
    from ..console.ui import print_markdown, print_table, said
    from ..inspection.catalogue import architectures as known

    if said(known(), json):
        return
    rows = [(each.name, ", ".join(each.hf_classes), ", ".join(each.vocabularies)) for each in known()]
    (print_markdown if markdown else print_table)(None, ("GGUF name", "Hugging Face classes", "vocabularies"), rows)

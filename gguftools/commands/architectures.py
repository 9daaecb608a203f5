"""`gguftools architectures`."""



from ..console.options import Json, Markdown

EXAMPLES = (
    "gguftools architectures",
    "gguftools architectures --json",
)


def architectures(
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """List the model architectures that are converted and run."""
    from archs.registry import architectures as known

    from ..console.ui import print_json, print_markdown, print_table

    if json:
        print_json([
            {"name": a.name, "hf_classes": a.hf_classes, "vocabularies": a.vocab, "converts": True, "runs": True}
            for a in known()
        ])  # fmt: skip
        return
    rows = [(a.name, ", ".join(a.hf_classes), ", ".join(a.vocab)) for a in known()]
    (print_markdown if markdown else print_table)(None, ("GGUF name", "Hugging Face classes", "vocabularies"), rows)

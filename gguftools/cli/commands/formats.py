"""List the tensor formats, with block sizes and bits per weight."""

EXAMPLES = ("gguftools formats", "gguftools formats --json")
GROUP = "Inspect"


def formats(json: bool = False) -> None:
    from ...inspection.catalogue import formats as known
    from ..ui import print_result, print_table

    if print_result(known(), json):
        return
    rows = [
        (
            each.name,
            f"{each.bits_per_weight:.4g}",
            str(each.block),
            str(each.block_bytes),
            each.importance.replace("ignored", ""),
        )
        for each in sorted(known(), key=lambda each: each.bits_per_weight)
    ]
    print_table(None, ("format", "bits/weight", "values a block", "bytes a block", "importance weights"), rows, "lrrrl")

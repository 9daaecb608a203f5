"""`gguftools formats`."""



from ..console.options import Json

FLOATS = ("F32", "F16", "BF16")  # of the types whose values have bytes of their own, those that weights are stored in

EXAMPLES = (
    "gguftools formats",
    "gguftools formats --json",
)


def formats(json: Json = False) -> None:
    """List the formats a tensor can be stored in: size, block, use of importance weights."""
    from quants.format import formats as known

    from ..console.ui import print_json, print_table

    usable = [f for f in known().values() if f.has_codec and (f.is_quantized or f.name in FLOATS)]
    weights = {f.name: "needed" if f.needs_importance else "used" if f.uses_importance else "" for f in usable}
    if json:
        print_json([
            {"name": f.name, "ggml_type": f.ggml_type, "bits_per_weight": f.bits_per_weight, "block": f.block_size,
             "block_bytes": f.block_bytes, "importance": weights[f.name] or "ignored"}
            for f in usable
        ])  # fmt: skip
        return
    rows = [
        (f.name, f"{f.bits_per_weight:.4g}", str(f.block_size), str(f.block_bytes), weights[f.name])
        for f in sorted(usable, key=lambda f: f.bits_per_weight)
    ]
    print_table(None, ("format", "bits/weight", "values a block", "bytes a block", "importance weights"), rows, "lrrrl")

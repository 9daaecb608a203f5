"""Convert a GGUF file back to a Hugging Face checkpoint.

With --tensors, or for a .safetensors or .npy file, writes tensors under their GGUF names.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = (
    "gguftools export model.gguf -o checkpoint",
    "gguftools export model.gguf --mmproj mmproj-model.gguf -o checkpoint",
    "gguftools export model.gguf -o norms.safetensors --tensors norm",
)
GROUP = "Publish"


def export(
    source: Annotated[Path, Argument(help="GGUF file (of a split set, any shard).")],
    output: Annotated[str, "folder for a checkpoint, or .safetensors or .npy file."],
    mmproj: Annotated[
        Path | None, Option(metavar="FILE", help="Vision/audio encoder (mmproj): added to the checkpoint.")
    ] = None,
    tensors: Annotated[str | None, "Only tensors whose names match: written under their GGUF names."] = None,
    outtype: Annotated[str | None, "Output type: f32, f16 or bf16 (default: floats unchanged, blocks as f32)."] = None,
    split_max_size: int | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...conversion.export import export as run
    from ...writing.options import WriteOptions
    from ..ui import bytes_progress, note, print_line, print_result, size, usage

    alone = tensors is not None or output.endswith((".safetensors", ".npy"))
    if split_max_size is not None and alone:
        usage(
            "--split-max-size cannot be combined with --tensors, .safetensors or .npy",
            "it limits the shards of a checkpoint",
        )
    if mmproj is not None and alone:
        usage("--mmproj cannot be combined with --tensors, .safetensors or .npy", "name that file as SOURCE instead")
    with bytes_progress(f"export {source.name}") as progress:
        report = run(
            source,
            output,
            mmproj=mmproj,
            tensors=tensors,
            outtype=outtype,
            max_size=split_max_size,
            write=WriteOptions(threads, progress=progress, overwrite=overwrite),
        )
    if report.differing:
        note(f"warning: a conversion of this would write other values of {', '.join(report.differing)}")
    if print_result(report, json, [report.path]):
        return
    hf_class = f" ({report.hf_class})" if report.hf_class else ""
    print_line(
        f"{report.path}{hf_class}: {report.tensors} tensors, {size(report.bytes)}, in {', '.join(report.files[-4:])}"
    )

"""Turn a GGUF file back into a Hugging Face checkpoint, or write tensors as .safetensors or .npy."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = (
    "gguftools export model.gguf -o checkpoint",
    "gguftools export model.gguf --mmproj mmproj-model.gguf -o checkpoint",
    "gguftools export model.gguf -o norms.safetensors --tensors norm",
)


def export(
    source: Annotated[Path, Argument(help="GGUF file (of a split set, any shard).")],
    output: Annotated[str, "a folder for a checkpoint, or a .safetensors or .npy file."],
    mmproj: Annotated[
        Path | None, Option(metavar="FILE", help="Encoders for images and sounds: the checkpoint has them, too.")
    ] = None,
    tensors: Annotated[str | None, "Tensors whose names match: they are written under their GGUF names."] = None,
    outtype: Annotated[
        str | None, "Type of the weights: f32, f16 or bf16; default: floats as they are, blocks as f32."
    ] = None,
    split_max_size: int | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ..console.ui import bytes_progress, note, print_line, said, size, usage
    from ..conversion.export import export as run
    from ..writing.options import WriteOptions

    alone = tensors is not None or output.endswith((".safetensors", ".npy"))
    if split_max_size is not None and alone:
        usage("--split-max-size means nothing for tensors by themselves", "it is for the weights of a checkpoint")
    if mmproj is not None and alone:
        usage("--mmproj means nothing for tensors by themselves", "name that file instead of the model")
    with bytes_progress(f"export {source.name}") as progress:
        found = run(
            source,
            output,
            mmproj=mmproj,
            tensors=tensors,
            outtype=outtype,
            max_size=split_max_size,
            write=WriteOptions(threads, progress=progress, overwrite=overwrite),
        )
    if found.differing:
        note(f"warning: a conversion of this would write other values of {', '.join(found.differing)}")
    if said(found, json, [found.path]):
        return
    kind = f" ({found.hf_class})" if found.hf_class else ""
    print_line(f"{found.path}{kind}: {found.tensors} tensors, {size(found.bytes)}, in {', '.join(found.files[-4:])}")

"""Make a file's tensors again from its source and compare them to the byte; exit code 1 if any differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

if TYPE_CHECKING:
    from ..provenance.findings import Reproduction

EXAMPLES = (
    "gguftools reproduce model-Q4_K_M.gguf",
    "gguftools reproduce model-Q4_K_M.gguf --source model-f16.gguf --sample 200",
    "gguftools reproduce model-F16.gguf --source hf://org/model --tensors attn_q",
    "gguftools reproduce strange.gguf --source model-f16.gguf --imatrix im.gguf",
)
SHOWN = 20


def reproduce(
    file: Annotated[Path, Argument(help="GGUF file, or any shard of a split set.")],
    source: Annotated[str | None, "What it was made of: default what the manifest names, beside FILE."] = None,
    manifest_file: Annotated[Path | None, "Manifest; default: FILE.manifest.json, if there is one."] = None,
    imatrix: Path | None = None,
    gptq: Annotated[
        list[str] | None,
        "Text; carry rounding errors on by what its inputs are like; repeatable: encode such weights anew.",
    ] = None,
    tensors: Annotated[str | None, "Tensors whose names match: they alone are compared."] = None,
    sample: Annotated[int | None, Option(min=1, help="Compare so many ranges of rows, drawn at random.")] = None,
    seed: Annotated[int | None, Option(min=0, max=2**32 - 1, help="Of the draw: the system's if not given.")] = None,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ..console.ui import bytes_progress, said
    from ..conversion.reproduce import Selection
    from ..conversion.reproduce import reproduce as run

    with bytes_progress(f"reproduce {file.name}") as progress:
        found = run(
            file,
            source,
            manifest=manifest_file,
            imatrix=imatrix,
            gptq=gptq or None,
            compare=Selection(tensors, sample, seed),
            threads=threads,
            progress=progress,
        )
    if not said(found, json):
        _print(found)
    raise Exit(0 if found.equal else 1)


def _print(found: "Reproduction") -> None:
    from ..console.ui import print_line
    from ..provenance.findings import few_lines

    for line in few_lines([str(tensor) for tensor in found.wrong], SHOWN):
        print_line(line)
    for key in found.keys[:SHOWN]:
        for line in key.lines():
            print_line(line)
    for line in (*found.layout, *found.causes):
        print_line(line)
    if found.sample is not None:
        one = f"an alteration in one of them is missed with probability {found.sample.missed():.3g}"
        print_line(f"seed {found.sample.seed}; {one}, in ten of them {found.sample.missed(10):.3g}")
    keys = f"{len(found.keys)} keys differ" if found.keys else "keys are the same"
    print_line(f"{found.file}: {found.verdict}; {keys}")

"""Recompute a file's tensors and compare them byte for byte.

Reads the source and the recipe from the manifest, or from the options. Exit code 1 if a tensor differs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

if TYPE_CHECKING:
    from ...lab.reproduction import Reproduction

EXAMPLES = (
    "gguftools reproduce model-Q4_K_M.gguf",
    "gguftools reproduce model-Q4_K_M.gguf --source model-f16.gguf --sample 200",
    "gguftools reproduce model-F16.gguf --source hf://org/model --tensors attn_q",
    "gguftools reproduce strange.gguf --source model-f16.gguf --imatrix im.gguf",
)
GROUP = "Publish"
SHOWN = 20


def reproduce(
    file: Annotated[Path, Argument(help="GGUF file, or any shard of a split set.")],
    source: Annotated[str | None, "Original: what the manifest names, next to FILE, if not given."] = None,
    manifest_file: Annotated[Path | None, "Manifest (default FILE.manifest.json, if it exists)."] = None,
    imatrix: Path | None = None,
    gptq: Annotated[list[str] | None, "Calibration text for GPTQ: encode weights made by GPTQ again."] = None,
    tensors: Annotated[str | None, "Only tensors whose names match."] = None,
    sample: Annotated[int | None, Option(min=1, help="Compare only N random ranges of rows.")] = None,
    seed: Annotated[int | None, Option(min=0, max=2**32 - 1, help="Random seed: random if not given.")] = None,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...lab.reproduction import Selection
    from ...lab.reproduction import reproduce as run
    from ..ui import bytes_progress, print_result

    with bytes_progress(f"reproduce {file.name}") as progress:
        reproduction = run(
            file,
            source,
            manifest=manifest_file,
            imatrix=imatrix,
            gptq=gptq or None,
            compare=Selection(tensors, sample, seed),
            threads=threads,
            progress=progress,
        )
    if not print_result(reproduction, json):
        _print(reproduction)
    raise Exit(0 if reproduction.equal else 1)


def _print(reproduction: "Reproduction") -> None:
    from ...lab.reproduction import few_lines
    from ..ui import print_line

    for line in few_lines([str(tensor) for tensor in reproduction.wrong], SHOWN):
        print_line(line)
    for key in reproduction.keys[:SHOWN]:
        for line in key.lines():
            print_line(line)
    for line in (*reproduction.layout, *reproduction.causes):
        print_line(line)
    if reproduction.sample is not None:
        one = f"an alteration in one of them is missed with probability {reproduction.sample.missed():.3g}"
        print_line(f"seed {reproduction.sample.seed}; {one}, in ten of them {reproduction.sample.missed(10):.3g}")
    keys = f"{len(reproduction.keys)} keys differ" if reproduction.keys else "keys are the same"
    print_line(f"{reproduction.file}: {reproduction.verdict}; {keys}")

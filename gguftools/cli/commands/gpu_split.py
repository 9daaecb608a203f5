"""Choose the neurons of a PowerInfer model for the GPU.

Writes the .gpuidx file that PowerInfer reads.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = ("gguftools gpu-split activation/ --vram 6G --model model.powerinfer.gguf",)
GROUP = "Expert"


def gpu_split(
    activations: Annotated[Path, Argument(help="Folder of activation_N.pt: how often each neuron fired.")],
    vram: Annotated[int, "GPU memory for neurons, e.g. 6G."],
    model: Annotated[
        Path | None, Option("--model", "-m", help="The model's GGUF file (default: the one next to the folder).")
    ] = None,
    output: Annotated[str | None, "file (default MODEL.generated.gpuidx)."] = None,
    batch: Annotated[int, Option(min=1, help="Neurons that are placed together.")] = 256,
    min_neurons: Annotated[int, Option("--min-neurons", min=0, help="Minimum per layer that has any on the GPU.")] = 0,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ...lab.gpu_split import gpu_split as run
    from ..ui import named_progress, print_line, print_result, size

    with named_progress("choose neurons") as progress:
        report = run(
            activations,
            vram,
            model,
            output,
            batch=batch,
            min_neurons=min_neurons,
            overwrite=overwrite,
            progress=progress,
        )
    if print_result(report, json, [report.file]):
        return
    placement = report.placement
    neurons = sum(len(gpu) for gpu in placement.gpu)
    print_line(
        f"{report.file}: {sum(int(gpu.sum()) for gpu in placement.gpu)} of {neurons} neurons, {size(placement.used)}"
    )
    print_line(
        f"they made {100 * placement.activations:.1f} % of all activations"
        + ("" if placement.optimal else "; the solver's time was up, there may be a better placement")
    )

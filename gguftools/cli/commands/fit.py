"""Show how much memory models need, and which fits a card.

Memory is that of llama.cpp: weights, caches and states, compute buffers, the encoder of images. It needs only the
files' headers. Sizes are binary here: 24G are 24 GiB, as on a card's box.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = (
    "gguftools fit model.gguf",
    "gguftools fit model.gguf --memory 24G --ctx 32768 --cache-type q8_0",
    "gguftools fit ladder/*.gguf --memory 12G --parallel 2",
    "gguftools fit model.gguf --mmproj mmproj.gguf --memory 16G",
    "gguftools fit model.gguf --cpu --memory 32G",
)
GROUP = "Run"


def fit(
    models: Annotated[list[Path], Argument(help="GGUF files (of a split set, any shard).")],
    memory: Annotated[
        int | None, Option("--memory", metavar="MEMORY", help="Memory limit: of the card, or RAM with --cpu; e.g. 24G.")
    ] = None,
    ctx: int = 8192,
    cache_type: Annotated[str, "Type of the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl."] = "f16",
    cache_type_v: Annotated[str | None, "Type of the values in the KV cache (default: that of the keys)."] = None,
    parallel: Annotated[
        int, Option("--parallel", "-np", min=1, help="Sequences at once: slots that share the context.")
    ] = 1,
    ubatch: Annotated[int, Option("--ubatch", "-ub", min=1, help="Tokens of one step.")] = 512,
    margin: Annotated[
        int | None, Option("--margin", metavar="MARGIN", help="Memory to leave free, 0 for none (default: 1G).")
    ] = None,
    mmproj: Annotated[Path | None, "Vision/audio encoder (mmproj): counted, too."] = None,
    cpu: Annotated[bool, "Run in RAM alone."] = False,
    json: bool = False,
) -> None:
    from ...inspection.fitting import FitOptions
    from ...inspection.fitting import fit as fitted
    from ..fits import print_fit
    from ..ui import print_json

    options = FitOptions(
        context=ctx,
        cache_type=cache_type,
        cache_type_v=cache_type_v,
        parallel=parallel,
        ubatch=ubatch,
        margin=FitOptions.margin if margin is None else margin,
        mmproj=mmproj,
        cpu=cpu,
    )
    report = fitted(models, memory, options)
    if json:
        print_json(report)
    else:
        print_fit(report)

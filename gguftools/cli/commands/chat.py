"""Chat with a model; in a pipe, each line of stdin is a turn.

Ctrl-C stops an answer; Ctrl-D, or Ctrl-C twice at the prompt, leaves. /help lists the commands of a conversation.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..device_options import DEVICE_PANEL, DeviceChoice
from ..generation_options import SAMPLING_PANEL, CacheTypeName, Ctx, SamplingOptions

EXAMPLES = (
    "gguftools chat model.gguf",
    'gguftools chat model.gguf --system "Answer in one sentence." --temp 0',
    "gguftools chat model.gguf -q",
)
GROUP = "Run"
PANELS = {"Sampling": tuple(name for name in SAMPLING_PANEL["Sampling"] if name != "ignore_eos"), **DEVICE_PANEL}


def chat(
    model: Annotated[Path, Argument(help="GGUF model (of a split set, any shard).")],
    system: Annotated[str | None, "System message."] = None,
    n: Annotated[
        int | None, Option("--predict", "-n", min=1, help="Maximum number of tokens to generate: for each answer.")
    ] = None,
    ctx: Ctx = None,
    *,
    sampling: SamplingOptions,
    cache_type: CacheTypeName = "f32",
    threads: int | None = None,
    where: DeviceChoice,
) -> None:
    from runtime.kv_cache import as_cache_type

    from ...models.generation import GenerateOptions
    from ...models.model import opened_gguf
    from ..conversation import converse
    from ..streaming import prompt_progress
    from ..ui import note_before_running

    source = opened_gguf(model)
    parameters = sampling.parameters(source.metadata)
    note_before_running(source, threads, ctx)
    with prompt_progress() as progress:
        options = GenerateOptions(
            parameters,
            max_tokens=n,
            stop=sampling.stop or (),
            context=ctx,
            cache_type=as_cache_type(cache_type),
            threads=threads,
            device=where.chosen(),
            progress=progress,
            **sampling.rules(),
        )
        converse(source.chat(options, system=system))

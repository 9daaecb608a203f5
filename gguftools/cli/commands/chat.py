"""Chat with a model; in a pipe, each line of stdin is a turn.

Ctrl-C stops an answer; Ctrl-D, or Ctrl-C twice at the prompt, leaves. /help lists the commands of a conversation.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..generation_options import (
    SAMPLING_PANEL,
    BadWords,
    CacheTypeName,
    Ctx,
    FrequencyPenalty,
    GrammarFile,
    JsonSchema,
    MinP,
    PresencePenalty,
    RepeatLastN,
    RepeatPenalty,
    Samplers,
    SamplingOption,
    Seed,
    Stop,
    Temp,
    TopK,
    TopP,
)

EXAMPLES = (
    "gguftools chat model.gguf",
    'gguftools chat model.gguf --system "Answer in one sentence." --temp 0',
    "gguftools chat model.gguf -q",
)
GROUP = "Run"
PANELS = {"Sampling": tuple(name for name in SAMPLING_PANEL["Sampling"] if name != "ignore_eos")}


def chat(
    model: Annotated[Path, Argument(help="GGUF model (of a split set, any shard).")],
    system: Annotated[str | None, "System message."] = None,
    n: Annotated[
        int | None, Option("--predict", "-n", min=1, help="Maximum number of tokens to generate: for each answer.")
    ] = None,
    ctx: Ctx = None,
    temp: Temp = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    samplers: Samplers = None,
    sampling: SamplingOption = None,
    repeat_last_n: RepeatLastN = None,
    repeat_penalty: RepeatPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    seed: Seed = None,
    stop: Stop = None,
    bad_words: BadWords = None,
    grammar: GrammarFile = None,
    json_schema: JsonSchema = None,
    cache_type: CacheTypeName = "f32",
    threads: int | None = None,
) -> None:
    from runtime.kv_cache import as_cache_type

    from ...measurement.perplexity import context_warning
    from ...models.generation import GenerateOptions
    from ...models.model import opened_gguf
    from ..conversation import converse
    from ..generation_options import rules_of, sampling_of
    from ..streaming import prompt_progress
    from ..ui import note, note_differences, note_slow_products

    source = opened_gguf(model)
    given = {
        "temperature": temp,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "samplers": samplers,
        "seed": seed,
        "repeat_last_n": repeat_last_n,
        "repeat_penalty": repeat_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "bad_words": bad_words,
    }
    parameters = sampling_of(source.metadata, given, sampling, {})
    note_slow_products(threads)
    note_differences(source.metadata)
    if ctx is not None and (warning := context_warning(source, ctx)):
        note(f"warning: {warning}")
    with prompt_progress() as progress:
        options = GenerateOptions(
            parameters,
            max_tokens=n,
            stop=stop or (),
            context=ctx,
            cache_type=as_cache_type(cache_type),
            threads=threads,
            progress=progress,
            **rules_of(grammar, json_schema),
        )
        converse(source.chat(options, system=system))

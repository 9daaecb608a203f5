"""Generate text from a prompt.

Prints the text as it comes on standard output, speeds on standard error.
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
    'gguftools generate model.gguf -p "It is a truth" -n 64',
    'gguftools generate model.gguf --chat -p "Why is the sky blue?" --temp 0',
    "gguftools generate model.gguf --prompts prompts.txt -n 32 --seed 1 --json",
    "gguftools generate model.gguf -p - --draft small.gguf --draft-max 4",
    "gguftools generate m.gguf -p - --samplers kxt --sampling xtc_probability=0.5",
    'gguftools generate m.gguf --mmproj mmproj.gguf --image a.png --chat -p "What?"',
    'gguftools generate m.gguf --mmproj mmproj.gguf --audio a.wav --chat -p "Who?"',
)
GROUP = "Run"
PANELS = {
    **SAMPLING_PANEL,
    "Output": (
        "include_stop_str_in_output",
        "logprobs",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "special",
        "samples",
        "best_of",
        "beam_width",
        "length_penalty",
        "early_stopping",
        "parallel",
    ),
    "Speculative decoding": (
        "draft",
        "draft_lookup",
        "draft_mtp",
        "draft_max",
        "draft_min_p",
        "draft_tree",
        "draft_typical",
    ),
    "Images and audio": ("mmproj", "image", "audio", "image_tokens"),
}


def generate(
    model: Annotated[Path, Argument(help="GGUF model (of a split set, any shard).")],
    prompt: Annotated[str | None, Option("--prompt", "-p", help="Prompt (- for stdin).")] = None,
    prompts: Path | None = None,
    n: Annotated[
        int | None,
        Option(
            "--predict", "-n", min=0, help="Maximum number of tokens to generate: until the model ends if not given."
        ),
    ] = None,
    ctx: Ctx = None,
    chat: Annotated[bool, "Apply the file's chat template: prompts are messages of the user."] = False,
    system: Annotated[str | None, "System message: with --chat."] = None,
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
    include_stop_str_in_output: Annotated[bool, "Keep the stop text that ended the answer."] = False,
    bad_words: BadWords = None,
    ignore_eos: Annotated[bool, "Never generate a token that ends the text."] = False,
    grammar: GrammarFile = None,
    json_schema: JsonSchema = None,
    samples: Annotated[int, Option(min=1, help="Texts per prompt, with --seed and the numbers after it.")] = 1,
    best_of: Annotated[
        int | None, Option(min=1, metavar="N", help="Generate N texts, and print the --samples most likely ones.")
    ] = None,
    beam_width: Annotated[
        int | None, Option(min=1, metavar="N", help="Beam search with N beams, in place of sampling.")
    ] = None,
    length_penalty: Annotated[float, "With --beam-width: below 1, favour short texts; above, long ones."] = 1.0,
    early_stopping: Annotated[bool, "With --beam-width: stop as soon as N texts have ended."] = False,
    parallel: Annotated[int, Option("--parallel", "-np", min=1, metavar="N", help="Texts generated in one batch.")] = 4,
    logprobs: Annotated[
        int | None, Option(metavar="K", min=0, help="With --json: log-probability of each token, and of the top K.")
    ] = None,
    prompt_logprobs: Annotated[
        int | None, Option(metavar="K", min=0, help="With --json: the same for each token of the prompt.")
    ] = None,
    truncate_prompt_tokens: Annotated[
        int | None, Option(metavar="N", min=-1, help="Read only the last N tokens of a prompt (-1 = as many as fit).")
    ] = None,
    cache_type: CacheTypeName = "f32",
    special: Annotated[bool, "Include special tokens: print them by their names."] = False,
    draft: Annotated[
        Path | None, Option(metavar="FILE", help="Draft model for speculative decoding, with the same vocabulary.")
    ] = None,
    draft_lookup: Annotated[bool, "Draft by prompt lookup (n-grams of the text so far)."] = False,
    draft_mtp: Annotated[bool, "Draft with the model's own MTP layer."] = False,
    draft_max: Annotated[
        int | None, Option(min=1, metavar="N", help="Maximum number of drafted tokens: 3, or 15 with --draft-lookup.")
    ] = None,
    draft_min_p: Annotated[
        float | None, Option(min=0, max=1, help="Stop drafting below this probability (default 0).")
    ] = None,
    draft_tree: Annotated[
        int | None, Option(min=1, metavar="K", help="Candidates for each place of a draft (default 1).")
    ] = None,
    draft_typical: Annotated[bool, "Accept drafts by Medusa's typical acceptance, which is not exact."] = False,
    mmproj: Annotated[
        Path | None, Option(metavar="FILE", help="Vision/audio encoder (mmproj): what `convert --mmproj` writes.")
    ] = None,
    image: Annotated[
        list[Path] | None, "Image for the prompt: at <__media__> or <__image__>, or in front of it."
    ] = None,
    audio: Annotated[
        list[Path] | None, "WAV file for the prompt: at <__media__> or <__audio__>, or in front of it."
    ] = None,
    image_tokens: Annotated[
        int | None, Option(min=1, metavar="N", help="Tokens of an image at most, where its size is free.")
    ] = None,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from runtime.batched_generation import written_together
    from runtime.kv_cache import as_cache_type
    from runtime.speculation.parameters import Drafting

    from ...measurement.perplexity import context_warning
    from ...metadata.prompts import prompts_of
    from ...models.generation import GenerateOptions
    from ...models.model import Model, opened_gguf
    from ..generation_options import rules_of, sampling_of
    from ..streaming import prompt_progress, stream
    from ..ui import note, note_differences, note_slow_products
    from ..ui import usage as wrong_call

    if (prompt is None) == (prompts is None):
        wrong_call("give one of --prompt and --prompts", "the prompt, or a file of several")
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
    parameters = sampling_of(source.metadata, given, sampling, {"ignore_eos": ignore_eos, "logprobs": logprobs})
    rules = rules_of(grammar, json_schema)
    texts = prompts_of(prompt, prompts, chat, system)
    by: str | Model | None = "lookup" if draft_lookup else "mtp" if draft_mtp else None
    by = by if draft is None else opened_gguf(draft)
    drafting = None if by is None else Drafting(draft_max, draft_min_p or 0.0, draft_tree or 1, draft_typical)
    projector = None if mmproj is None else opened_gguf(mmproj)
    note_slow_products(threads)
    note_differences(source.metadata)
    if ctx is not None and (warning := context_warning(source, ctx)):
        note(f"warning: {warning}")
    with prompt_progress() as progress:
        options = GenerateOptions(
            parameters,
            max_tokens=n,
            stop=stop or (),
            include_stop_str_in_output=include_stop_str_in_output,
            skip_special_tokens=not special,
            n=samples,
            best_of=best_of,
            beam_width=beam_width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            parallel=1 if best_of is None else parallel,
            prompt_logprobs=prompt_logprobs,
            truncate_prompt_tokens=truncate_prompt_tokens,
            **rules,
            context=ctx,
            cache_type=as_cache_type(cache_type),
            threads=threads,
            progress=progress,
            draft=by,
            drafting=drafting,
            images=image or (),
            projector=projector,
            image_tokens=image_tokens,
            audio=audio or (),
        )
        one_by_one = (text for each in texts for text in source.generate_samples(each, options))
        stream(written_together(one_by_one, parallel), model, samples * len(texts), json)

"""Generate text from a prompt.

Prints the text as it comes on standard output, speeds on standard error.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

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
    ctx: Annotated[
        int | None,
        Option("--ctx", "-c", min=4, help="Context size in tokens: of prompt and answer (default: the model's own)."),
    ] = None,
    chat: Annotated[bool, "Apply the file's chat template: prompts are messages of the user."] = False,
    system: Annotated[str | None, "With --chat: the message that comes first."] = None,
    temp: Annotated[
        float | None, Option(help="Temperature, 0 for the likeliest token; the file's advice, or 0.8.")
    ] = None,
    top_k: Annotated[
        int | None, Option(metavar="K", help="Top-k: sample from the K most likely tokens (0 = all, default 40).")
    ] = None,
    top_p: Annotated[float | None, Option(help="Choose among the likeliest that sum to this; 0.95.")] = None,
    min_p: Annotated[float | None, Option(help="Choose among those this times as likely as the first; 0.05.")] = None,
    samplers: Annotated[str | None, "Samplers in their order, as top_k;temperature or kt."] = None,
    sampling: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Another parameter, as mirostat=2 or xtc_probability=0.5.")
    ] = None,
    repeat_last_n: Annotated[int | None, Option(min=0, help="How many of the latest tokens penalties see; 64.")] = None,
    repeat_penalty: Annotated[float | None, "Weaken tokens that came; 1 is off."] = None,
    presence_penalty: Annotated[float | None, "Taken from logits of tokens that came; 0."] = None,
    frequency_penalty: Annotated[float | None, "The same, as often as they came; 0."] = None,
    seed: Annotated[int | None, Option(min=0, max=2**32 - 1, help="Random seed: random if not given.")] = None,
    stop: Annotated[list[str] | None, "Text that ends the answer, and is left out."] = None,
    ignore_eos: Annotated[bool, "Bar tokens that end a text."] = False,
    grammar: Annotated[Path | None, Option(metavar="FILE", help="GBNF that the text must follow.")] = None,
    json_schema: Annotated[Path | None, Option(metavar="FILE", help="Schema of the JSON that must come.")] = None,
    samples: Annotated[int, Option(min=1, help="Texts for each prompt: drawn by --seed, the number after it, …")] = 1,
    parallel: Annotated[
        int, Option("--parallel", "-np", min=1, metavar="N", help="Texts written together, each with its own cache.")
    ] = 4,
    logprobs: Annotated[
        int | None, Option(metavar="K", min=0, help="With --json: logprobs of each token, and of the K likeliest.")
    ] = None,
    cache_type: Annotated[str, "What keys and values are kept as: f32, f16 or q8_0."] = "f32",
    special: Annotated[bool, "Include special tokens: print them by their names."] = False,
    draft: Annotated[
        Path | None, Option(metavar="FILE", help="A smaller model of its vocabulary, which drafts what it only checks.")
    ] = None,
    draft_lookup: Annotated[bool, "Draft by prompt lookup (n-grams of the text so far)."] = False,
    draft_mtp: Annotated[bool, "Draft with the model's own MTP layer."] = False,
    draft_max: Annotated[
        int | None, Option(min=1, metavar="N", help="Maximum number of drafted tokens: 3, or 15 with --draft-lookup.")
    ] = None,
    draft_min_p: Annotated[
        float | None, Option(min=0, max=1, help="Draft on while the likeliest token is at least this likely; 0.")
    ] = None,
    draft_tree: Annotated[
        int | None, Option(min=1, metavar="K", help="Candidates for each place of a draft; 1.")
    ] = None,
    draft_typical: Annotated[bool, "Accept what is likely enough (Medusa's rule), not what is exact."] = False,
    mmproj: Annotated[
        Path | None, Option(metavar="FILE", help="Vision/audio encoder (mmproj): what `convert --mmproj` writes.")
    ] = None,
    image: Annotated[
        list[Path] | None, "An image of the prompt: where <__media__> or <__image__> stands, or in front."
    ] = None,
    audio: Annotated[
        list[Path] | None, "A WAV file of the prompt: where <__media__> or <__audio__> stands, or in front."
    ] = None,
    image_tokens: Annotated[
        int | None, Option(min=1, metavar="N", help="Of an image at most, where its size or number is free.")
    ] = None,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from archs.bounded_files import GRAMMAR, JSON_SCHEMA, read_text
    from quants.errors import OptionError
    from quants.spelling import quote
    from runtime.batched_generation import written_together
    from runtime.kv_cache import as_cache_type
    from runtime.sampling.parameters import Sampling, advised, parse_parameters
    from runtime.speculation.parameters import Drafting

    from ..console.streaming import prompt_progress, stream
    from ..console.ui import note, note_differences, note_slow_products
    from ..console.ui import usage as wrong_call
    from ..measurement.perplexity import context_warning
    from ..metadata.prompts import prompts_of
    from ..model import Model, opened_gguf

    if (prompt is None) == (prompts is None):
        wrong_call("give one of --prompt and --prompts", "the text to go on with, or a file of several")
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
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    others = parse_parameters(sampling or ())
    if twice := sorted(chosen.keys() & others.keys()):
        raise OptionError(f"{twice[0]} is given twice: {quote(chosen[twice[0]])} and {quote(others[twice[0]])}")
    parameters = Sampling(**advised(source.metadata) | chosen | others, ignore_eos=ignore_eos, logprobs=logprobs)
    rules = None if grammar is None else read_text(grammar, GRAMMAR)
    schema = None if json_schema is None else read_text(json_schema, JSON_SCHEMA)
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
        made = (
            source.generate_samples(
                each,
                parameters,
                samples=samples,
                parallel=1,
                n=n,
                stop=stop or (),
                grammar=rules,
                json_schema=schema,
                context=ctx,
                special=special,
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
            for each in texts
        )
        one_by_one = (text for of_prompt in made for text in of_prompt)
        stream(written_together(one_by_one, parallel), model, samples * len(texts), json)

"""Generate text from a prompt.

Prints the text as it comes on standard output, speeds on standard error.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ..device_options import DEVICE_PANEL, DeviceChoice
from ..generation_options import SAMPLING_PANEL, CacheTypeName, Ctx, SamplingOptions

if TYPE_CHECKING:
    from runtime.speculation.parameters import Drafting

    from ...models.model import Model

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
        "samples",
        "best_of",
        "beam_width",
        "length_penalty",
        "early_stopping",
        "parallel",
        "logprobs",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "special",
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
    **DEVICE_PANEL,
}


@dataclass(frozen=True)
class OutputOptions:
    """Options for the number of texts per prompt, and the output for each."""

    include_stop_str_in_output: Annotated[bool, "Keep the stop text that ended the answer."] = False
    samples: Annotated[int, Option(min=1, help="Texts per prompt, with --seed and the numbers after it.")] = 1
    best_of: Annotated[
        int | None, Option(min=1, metavar="N", help="Generate N texts, and print the --samples most likely ones.")
    ] = None
    beam_width: Annotated[
        int | None, Option(min=1, metavar="N", help="Beam search with N beams, in place of sampling.")
    ] = None
    length_penalty: Annotated[float, "With --beam-width: below 1, favour short texts; above, long ones."] = 1.0
    early_stopping: Annotated[bool, "With --beam-width: stop as soon as N texts have ended."] = False
    parallel: Annotated[
        int, Option("--parallel", "-np", min=1, metavar="N", help="Sequences at once: texts generated in one batch.")
    ] = 4
    logprobs: Annotated[
        int | None, Option(metavar="K", min=0, help="With --json: log-probability of each token, and of the top K.")
    ] = None
    prompt_logprobs: Annotated[
        int | None, Option(metavar="K", min=0, help="With --json: the same for each token of the prompt.")
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None, Option(metavar="N", min=-1, help="Read only the last N tokens of a prompt (-1 = as many as fit).")
    ] = None
    special: Annotated[bool, "Include special tokens: print them by their names."] = False

    def library_options(self) -> dict[str, Any]:
        """Return them as options of the library."""
        return {
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "skip_special_tokens": not self.special,
            "n": self.samples,
            "best_of": self.best_of,
            "beam_width": self.beam_width,
            "length_penalty": self.length_penalty,
            "early_stopping": self.early_stopping,
            "parallel": 1 if self.best_of is None else self.parallel,
            "prompt_logprobs": self.prompt_logprobs,
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
        }


@dataclass(frozen=True)
class DraftOptions:
    """Options for speculative decoding."""

    draft: Annotated[
        Path | None, Option(metavar="FILE", help="Draft model for speculative decoding, with the same vocabulary.")
    ] = None
    draft_lookup: Annotated[bool, "Draft by prompt lookup (n-grams of the text so far)."] = False
    draft_mtp: Annotated[bool, "Draft with the model's own MTP layer."] = False
    draft_max: Annotated[
        int | None, Option(min=1, metavar="N", help="Maximum number of drafted tokens: 3, or 15 with --draft-lookup.")
    ] = None
    draft_min_p: Annotated[
        float | None, Option(min=0, max=1, help="Stop drafting below this probability (default 0).")
    ] = None
    draft_tree: Annotated[
        int | None, Option(min=1, metavar="K", help="Candidates for each place of a draft (default 1).")
    ] = None
    draft_typical: Annotated[bool, "Accept drafts by Medusa's typical acceptance, which is not exact."] = False

    def source(self) -> "str | Model | None":
        """Return the draft model, or the name of another way of drafting; None where nothing drafts."""
        from ...models.model import opened_gguf

        if self.draft is not None:
            return opened_gguf(self.draft)
        return "lookup" if self.draft_lookup else "mtp" if self.draft_mtp else None

    def parameters(self) -> "Drafting":
        from runtime.speculation.parameters import Drafting

        return Drafting(self.draft_max, self.draft_min_p or 0.0, self.draft_tree or 1, self.draft_typical)


@dataclass(frozen=True)
class MediaOptions:
    """Images and audio for the prompt, and what encodes them."""

    mmproj: Annotated[
        Path | None, Option(metavar="FILE", help="Vision/audio encoder (mmproj): what `convert --mmproj` writes.")
    ] = None
    image: Annotated[list[Path] | None, "Image for the prompt: at <__media__> or <__image__>, or in front of it."] = (
        None
    )
    audio: Annotated[
        list[Path] | None, "WAV file for the prompt: at <__media__> or <__audio__>, or in front of it."
    ] = None
    image_tokens: Annotated[
        int | None, Option(min=1, metavar="N", help="Tokens of an image at most, where its size is free.")
    ] = None

    def library_options(self) -> dict[str, Any]:
        """Return them as options of the library."""
        from ...models.model import opened_gguf

        return {
            "projector": None if self.mmproj is None else opened_gguf(self.mmproj),
            "images": self.image or (),
            "audio": self.audio or (),
            "image_tokens": self.image_tokens,
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
    *,
    sampling: SamplingOptions,
    ignore_eos: Annotated[bool, "Never generate a token that ends the text."] = False,
    output: OutputOptions,
    cache_type: CacheTypeName = "f32",
    drafting: DraftOptions,
    media: MediaOptions,
    threads: int | None = None,
    where: DeviceChoice,
    json: bool = False,
) -> None:
    from runtime.batched_generation import written_together
    from runtime.kv_cache import as_cache_type

    from ...metadata.prompts import prompts_of
    from ...models.generation import GenerateOptions
    from ...models.model import opened_gguf
    from ..streaming import prompt_progress, stream
    from ..ui import note_before_running, usage

    if (prompt is None) == (prompts is None):
        usage("give one of --prompt and --prompts", "the prompt, or a file of several")
    source = opened_gguf(model)
    parameters = sampling.parameters(source.metadata, ignore_eos=ignore_eos, logprobs=output.logprobs)
    rules = sampling.rules()
    texts = prompts_of(prompt, prompts, chat, system)
    drafts, encoded = drafting.source(), media.library_options()
    note_before_running(source, threads, ctx)
    with prompt_progress(f"read with {model.name}") as progress:
        options = GenerateOptions(
            parameters,
            max_tokens=n,
            stop=sampling.stop or (),
            **rules,
            **output.library_options(),
            context=ctx,
            cache_type=as_cache_type(cache_type),
            threads=threads,
            device=where.chosen(),
            progress=progress,
            draft=drafts,
            drafting=None if drafts is None else drafting.parameters(),
            **encoded,
        )
        one_by_one = (text for each in texts for text in source.generate_samples(each, options))
        stream(written_together(one_by_one, output.parallel), model, output.samples * len(texts), json)

"""Generate text from a prompt, and chat: the functions that take a file or a Model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quants.arguments import PathLike

from .devices import name_of_device
from .generation import GenerateOptions
from .model import Model, opened_gguf, path_of

if TYPE_CHECKING:
    from runtime.generation import Generation
    from runtime.sampling.parameters import Sampling

    from .chat import Conversation


@dataclass(frozen=True)
class GenerationReport:
    """A generated text.

    tokens: ids that were generated, with the one that ended the text. prompt_tokens: number of tokens of the prompt.
    stop_reason: "end", "stop" (a stop text, `stopped_by`), "length", "context" or "interrupted". Times are in seconds,
    speeds in tokens a second, cache_bytes is of the KV cache. logprobs, prompt_logprobs: if asked for, of each token.
    speculation: cycles, drafted, accepted: numbers of passes and tokens, only with a draft. device: its name, "" for
    the processor.
    """

    file: Path
    prompt_tokens: int
    tokens: list[int]
    text: str
    stop_reason: str | None
    stopped_by: str | int | None
    prefill_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    cache_bytes: int
    speculation: Mapping[str, int]
    logprobs: list[dict[str, Any]] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    device: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, without log-probabilities unless they were asked for."""
        data = asdict(self) | {"file": str(self.file)}
        counts = data.pop("speculation")
        logprobs = {name: data.pop(name) for name in ("logprobs", "prompt_logprobs")}
        return {**data, **counts, **{name: value for name, value in logprobs.items() if value is not None}}


def report_of(generation: Generation, file: Path, interrupted: bool = False) -> GenerationReport:
    """Describe a text as far as it was generated."""
    asked = generation.sampler.sampling.logprobs is not None
    prompt = [None if each is None else each.as_dict() for each in generation.prompt_logprobs or ()]
    return GenerationReport(
        file,
        generation.prompt_tokens,
        generation.tokens,
        generation.text,
        "interrupted" if interrupted else generation.stop_reason,
        generation.stopped_by,
        generation.prefill_seconds,
        generation.decode_seconds,
        generation.prefill_speed,
        generation.decode_speed,
        generation.cache_bytes,
        asdict(generation.speculated) if generation.speculated else {},
        [each.as_dict() for each in generation.logprobs] if asked else None,
        prompt or None,
        name_of_device(generation.model),
    )


def generate(
    source: PathLike | Model,
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
    options: GenerateOptions | Sampling | None = None,
    **changes: Any,
) -> GenerationReport:
    """Generate text from a prompt, to its end: `generate(file, "It is", max_tokens=20).text`.

    source: a GGUF file, any shard of a split set, its URL, or a Model. prompt: a text; token ids; or messages, such as
    {"role": "user", "content": "Hello"}, which the file's chat template renders. options: a `GenerateOptions`, or a
    `Sampling` alone. changes: fields of both by name. `Model.generate` gives the text piece by piece, and
    `Model.generate_samples` several texts.
    Raises as `Model.generate` does, and FileError.
    """
    generation = opened_gguf(source).generate(prompt, options, **changes)
    for _ in generation:
        pass
    return report_of(generation, path_of(source))


def chat(
    source: PathLike | Model,
    options: GenerateOptions | Sampling | None = None,
    *,
    system: str | None = None,
    **changes: Any,
) -> Conversation:
    """Start a conversation with a model: `ask(text)` yields the answer as it comes.

    source: a GGUF file, any shard of a split set, its URL, or a Model. system: the system message. options, changes: as
    of `generate`, for every answer. Raises as `Model.chat` does, and FileError.
    """
    return opened_gguf(source).chat(options, system=system, **changes)

"""Generating text: the options of `Model.generate`, and the texts of the runtime that they ask for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from archs.metadata import Metadata
from quants.arguments import as_count, wrong
from quants.errors import OptionError
from quants.spelling import did_you_mean, quote

from ..metadata.chat_templates import rendered
from .devices import DeviceOptions, as_device

if TYPE_CHECKING:
    from runtime.generation import Generation
    from runtime.images import EmbeddedImage
    from runtime.kv_cache import CacheType
    from runtime.model import RunningModel
    from runtime.prefill import Progress
    from runtime.prefix_cache import PrefixCache
    from runtime.sampling.grammar import Grammar, GrammarVocabulary
    from runtime.sampling.parameters import Sampling
    from runtime.sampling.sampler import Sampler
    from runtime.speculation.assistants import Assistant
    from runtime.speculation.blocks import BlockWriter
    from runtime.speculation.decoding import Speculation
    from runtime.speculation.parameters import Drafting
    from runtime.speculation.readers import Reader
    from runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Drafts:
    """Where drafts come from, if from anywhere. context: tokens that a model that drafts can look back at."""

    by: RunningModel | Reader | Assistant | BlockWriter | Literal["lookup", "mtp"] | None = None
    context: int | None = None
    drafting: Drafting | None = None


@dataclass(frozen=True)
class GenerateOptions:
    """How texts are generated; names are vLLM's where it has them.

    sampling: how tokens are chosen, a `runtime.sampling.parameters.Sampling`; or some of its fields by name, over what
    the file advises and llama.cpp's defaults. max_tokens: tokens to generate at most; None: to the end, or as many as
    the context has room for. stop: texts that end it, and are left out; include_stop_str_in_output: they, and a token
    that ends it, are part of it. skip_special_tokens: leave control tokens out of the text.
    n: how many texts; text i draws by the seed + i. best_of: write so many, and return the n that the model finds
    likeliest (`cumulative_logprob`), done, the likeliest first. parallel: texts that go through the model in one pass,
    each with its own cache; 1 for one after another.
    prompt_logprobs: report with each token of the prompt how likely it was, and so many of the likeliest.
    truncate_prompt_tokens: read the last so many tokens of the prompt; -1: as many as leave room for max_tokens.
    beam_width: search for the n likeliest texts by so many beams instead of drawing tokens; texts are scored by their
    log-probability over their length to the power of length_penalty. early_stopping: end when so many texts have
    ended. What is returned is done, the best first.
    grammar: GBNF that the text must follow; or json_schema (extra `grammar`).
    context: tokens of prompt and text together; None for the model's own. cache_type: what keys and values are kept as,
    "f32", "f16" or "q8_0". prefix: a `runtime.prefix_cache.PrefixCache` that earlier texts left, for one text alone.
    threads: default all processors. device: where the model and a draft model are computed, by name ("auto", "cuda",
    "cuda:1", "mps", "xpu", "cpu") or as `DeviceOptions`; None for the processor by our own kernels. Images and audio
    are encoded on the processor. progress(tokens read, of how many): called while the prompt is read.
    draft: where tokens come from that the model only checks: a smaller model of the same vocabulary (or its file),
    "lookup" for what stands in the text already, "mtp" for the model's own layer that predicts a token more. drafting:
    how much, a `runtime.speculation.parameters.Drafting`.
    images: images that the prompt has, files or arrays (height, width, 3) of uint8, where it has <__media__>, or else
    in front of it (extra `images`); projector: the mmproj file with their encoder; image_tokens: of each at most, where
    the encoder takes any size, or crops. audio: sounds likewise, WAV files of 16,000 samples a second or float32 arrays
    (samples,). A prompt with both has <__image__> and <__audio__> where they stand.

    Raises OptionError for a value that an option cannot have.
    """

    sampling: Sampling | Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    best_of: int | None = None
    parallel: int = 4
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool = False
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    context: int | None = None
    cache_type: CacheType = "f32"
    prefix: PrefixCache | None = None
    threads: int | None = None
    device: str | DeviceOptions | None = None
    progress: Progress | None = None
    draft: Any = None  # a Model, or what `gguftools.open` opens, or "lookup" or "mtp"
    drafting: Drafting | None = None
    images: Sequence[Any] = ()
    audio: Sequence[Any] = ()
    projector: Any = None
    image_tokens: int | None = None

    def __post_init__(self) -> None:
        as_device(self.device)
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if any(not isinstance(each, str) or not each for each in self.stop):
            raise OptionError("a stop string is empty")
        as_count(self.n, "n", 1)
        as_count(self.parallel, "parallel", 1)
        for name, minimum in MINIMUMS.items():
            if getattr(self, name) is not None:
                as_count(getattr(self, name), name, minimum)
        if self.best_of is not None:
            as_count(self.best_of, "best_of", self.n)
        self._check_beams()
        if self.truncate_prompt_tokens != -1 and self.truncate_prompt_tokens is not None:
            as_count(self.truncate_prompt_tokens, "truncate_prompt_tokens", 1)
        if self.grammar is not None and self.json_schema is not None:
            raise OptionError("grammar and json_schema are both given", "a text follows one of them")
        if self.prefix is not None and self.texts > 1:
            raise OptionError("a prefix is for one text alone", "give n=1 and no best_of")
        if self.has_media and (self.prompt_logprobs is not None or self.truncate_prompt_tokens is not None):
            raise OptionError("prompt_logprobs and truncate_prompt_tokens need a prompt of text alone")

    def _check_beams(self) -> None:
        length = self.length_penalty
        if isinstance(length, bool) or not isinstance(length, (int, float)) or not isfinite(length):
            raise OptionError(f"length_penalty is {quote(length)}: a finite number is needed")
        if self.beam_width is None:
            if length != 1 or self.early_stopping:
                raise OptionError("length_penalty and early_stopping mean nothing without beam_width")
            return
        as_count(self.beam_width, "beam_width", self.n)
        if self.best_of is not None or self.draft is not None or self.prefix is not None:
            raise OptionError("beams do not go with best_of, a draft or a prefix")

    @property
    def texts(self) -> int:
        """Return the number of texts."""
        if self.beam_width is not None:
            return 1  # at first
        return self.n if self.best_of is None else self.best_of

    @property
    def has_media(self) -> bool:
        """Return whether images or audio are given."""
        return bool(self.images or self.audio) or self.projector is not None or self.image_tokens is not None

    def sampling_for(self, metadata: Metadata) -> Sampling:
        """Return how tokens are chosen with a file's advice. Raises OptionError, ModelError for the file's."""
        from runtime.sampling.parameters import Sampling, advised

        chosen = self.sampling
        if not isinstance(chosen, Sampling):
            known = {each.name for each in fields(Sampling)}
            for name in chosen.keys() - known:
                raise OptionError(f"no parameter of sampling is called {quote(name)}", did_you_mean(name, known))
            chosen = Sampling(**advised(metadata) | dict(chosen))
        return replace(chosen, logprobs=0) if self.best_of is not None and chosen.logprobs is None else chosen


MINIMUMS = {"max_tokens": 0, "context": 1, "prompt_logprobs": 0}


def options_of(given: GenerateOptions | Sampling | None, changes: Mapping[str, Any]) -> GenerateOptions:
    """Return options with changes: fields of GenerateOptions or of Sampling by name.

    Raises OptionError for a name that is neither's.
    """
    from runtime.sampling.parameters import Sampling

    if given is not None and not isinstance(given, (GenerateOptions, Sampling)):
        raise wrong("options", given, "GenerateOptions, or a Sampling")
    options = given if isinstance(given, GenerateOptions) else GenerateOptions(sampling=given or {})
    if not changes:
        return options
    own, of_sampling = ({each.name for each in fields(cls)} for cls in (GenerateOptions, Sampling))
    for name in changes.keys() - own - of_sampling:
        raise OptionError(f"no option is called {quote(name)}", did_you_mean(name, own | of_sampling))
    chosen: Any = changes.get("sampling", options.sampling)
    if parts := {name: value for name, value in changes.items() if name not in own}:
        chosen = replace(chosen, **parts) if isinstance(chosen, Sampling) else {**chosen, **parts}
    return replace(options, **{k: v for k, v in changes.items() if k in own} | {"sampling": chosen})


def truncated(ids: list[int], options: GenerateOptions, context: int | None) -> list[int]:
    """Return the last tokens of a prompt, as many as `truncate_prompt_tokens` asks for."""
    limit = options.truncate_prompt_tokens
    if limit == -1:
        if context is None:
            raise OptionError("truncate_prompt_tokens is -1, but the file names no context length", "give context")
        limit = max(1, context - (1 if options.max_tokens is None else max(1, options.max_tokens)))
    return ids if limit is None else ids[-limit:]


def prompt_tokens(
    tokenizer: Tokenizer, metadata: Metadata, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return the ids of a text, of messages that the file's chat template renders, or those that were given.

    Raises OptionError for what is none of these.
    """
    from runtime.generation import prompt_ids

    if isinstance(prompt, str):
        return prompt_ids(tokenizer, prompt)
    if not isinstance(prompt, Iterable):
        raise wrong("prompt", prompt, "a text, messages, or token ids,")
    if messages := [dict(each) for each in prompt if isinstance(each, Mapping)]:
        return prompt_ids(tokenizer, rendered(metadata, messages), rendered=True)
    return [as_count(token, "a token of prompt", 0) for token in prompt]


def generations(
    model: RunningModel,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    options: GenerateOptions,
    grammar: Grammar | None,
    drafts: Drafts,
    images: Sequence[EmbeddedImage] = (),
) -> list[Generation]:
    """Return the texts that options ask for; the prompt is read once, when the first of them is asked for.

    options: with a Sampling, and a context if there is any limit.
    """
    from runtime.generation import Generation, TextOptions, known_tokens, sampler_of
    from runtime.prefill import Prefill, PrefillOptions
    from runtime.sampling.parameters import Sampling, of_sample

    assert isinstance(options.sampling, Sampling)
    samplings = [of_sample(options.sampling, i) for i in range(options.texts)]
    samplers = [sampler_of(tokenizer, model.metadata, each, grammar) for each in samplings]
    speculations = _speculations(model, tokenizer, samplers, drafts)
    first, max_tokens, context = speculations[0], options.max_tokens, options.context
    count = options.prompt_logprobs
    if count is not None and (model.encoder_decoder or (first is not None and first.drafter.reads_states)):
        raise OptionError("prompt_logprobs is not possible with an encoder, or a draft that reads the model's states")
    wanted = PrefillOptions(
        options.cache_type,
        texts=len(samplers),
        progress=options.progress,
        more=max_tokens if max_tokens is None or context is None else max(0, min(max_tokens, context - len(ids))),
        back=first.max_tokens if first else 0,
        keep_states=first is not None and first.drafter.reads_states,
        layers=first.drafter.layers if first else (),
        logprobs=None if count is None else (count, known_tokens(model, tokenizer)),
        prefix=options.prefix,
    )
    prefill = Prefill(model, ids, wanted, images)
    limits = TextOptions(
        max_tokens,
        options.stop,
        context,
        options.skip_special_tokens,
        options.include_stop_str_in_output,
        options.cache_type,
    )
    return [
        Generation(model, tokenizer, ids, sampler, limits, prefill=prefill, speculation=speculation)
        for sampler, speculation in zip(samplers, speculations, strict=True)
    ]


def by_beams(first: Generation, options: GenerateOptions) -> list[Generation]:
    """Return the n likeliest texts that a beam search finds. first: a text of the prompt, not begun."""
    from runtime.beam_search import BeamOptions, beam_search
    from runtime.generation import Generation

    assert options.beam_width is not None
    start = time.perf_counter()
    beams = beam_search(first, BeamOptions(options.beam_width, options.length_penalty, options.early_stopping))
    first.add_decode_seconds(time.perf_counter() - start - first.prefill_seconds)
    made = [first]
    for _ in beams[1 : options.n]:
        made.append(
            Generation(
                first.model, first.tokenizer, first.prompt, first.sampler.fork(), first.options, prefill=first.prefill
            )
        )
    for each, beam in zip(made, beams, strict=False):
        each.adopt(beam.tokens, beam.logprobs)
        for _ in each:
            pass
    return made


def _speculations(
    model: RunningModel, tokenizer: Tokenizer, samplers: Sequence[Sampler], drafts: Drafts
) -> Sequence[Speculation | None]:
    """Return how each text is drafted."""
    if drafts.by is None:
        if drafts.drafting is not None:
            raise OptionError("drafting is given, and nothing that drafts", "give draft, too")
        return [None] * len(samplers)
    from runtime.generation import known_tokens
    from runtime.speculation.decoding import speculation_of

    vocabulary = known_tokens(model, tokenizer)
    return [speculation_of(model, each, drafts.by, vocabulary, drafts.drafting, drafts.context) for each in samplers]


def grammar_of(vocabulary: GrammarVocabulary, gbnf: str | None, schema: str | Mapping[str, Any] | None) -> Grammar:
    """Return the grammar of one of both: a GBNF text, or a JSON schema."""
    from runtime.sampling.grammar import grammar_from_gbnf, grammar_from_json_schema

    if schema is not None:
        return grammar_from_json_schema(schema, vocabulary)
    assert gbnf is not None
    return grammar_from_gbnf(gbnf, vocabulary)

"""Texts that a running model goes on with: what was asked for, as generations of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from archs.metadata import Metadata
from quants.errors import OptionError

from .metadata.chat_templates import rendered

if TYPE_CHECKING:
    from runtime.generation import Generation
    from runtime.images import EmbeddedImage
    from runtime.kv_cache import CacheType
    from runtime.model import Model as RunningModel
    from runtime.prefill import Progress
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
class Wanted:
    """What is asked for of every text, as `Model.generate` has it; grammar: that it follows."""

    n: int | None
    stop: Sequence[str]
    context: int | None
    special: bool
    cache_type: CacheType
    progress: Progress | None
    grammar: Grammar | None


def prompt_tokens(
    tokenizer: Tokenizer, metadata: Metadata, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]
) -> list[int]:
    """Ids of a text, of messages that the file's chat template renders, or those that were given."""
    from runtime.generation import prompt_ids

    if isinstance(prompt, str):
        return prompt_ids(tokenizer, prompt)
    if messages := [dict(each) for each in prompt if isinstance(each, Mapping)]:
        return prompt_ids(tokenizer, rendered(metadata, messages), rendered=True)
    return [int(token) for token in prompt if not isinstance(token, Mapping)]


def generations(
    model: RunningModel,
    tokenizer: Tokenizer,
    metadata: Metadata,
    ids: Sequence[int],
    samplings: Sequence[Sampling],
    wanted: Wanted,
    drafts: Drafts,
    images: Sequence[EmbeddedImage] = (),
) -> list[Generation]:
    """A text for each of the samplings; the prompt is read once, when the first of them is asked for."""
    from runtime.generation import Generation, sampler_of
    from runtime.prefill import Prefill

    samplers = [sampler_of(tokenizer, metadata, each, wanted.grammar) for each in samplings]
    speculations = _speculations(model, tokenizer, samplers, drafts)
    first, n, context = speculations[0], wanted.n, wanted.context
    prefill = Prefill(
        model,
        ids,
        wanted.cache_type,
        texts=len(samplers),
        progress=wanted.progress,
        more=n if n is None or context is None else max(0, min(n, context - len(ids))),
        back=first.most if first else 0,
        keep_states=first is not None and first.drafter.reads_states,
        layers=first.drafter.layers if first else (),
        images=images,
    )
    return [
        Generation(
            model,
            tokenizer,
            ids,
            sampler,
            n=n,
            stop=wanted.stop,
            context=context,
            special=wanted.special,
            prefill=prefill,
            speculation=speculation,
        )
        for sampler, speculation in zip(samplers, speculations, strict=True)
    ]


def _speculations(
    model: RunningModel, tokenizer: Tokenizer, samplers: Sequence[Sampler], drafts: Drafts
) -> Sequence[Speculation | None]:
    """How each text is drafted."""
    if drafts.by is None:
        if drafts.drafting is not None:
            raise OptionError("drafting is given, and nothing that drafts", "give draft, too")
        return [None] * len(samplers)
    from runtime.generation import known_tokens
    from runtime.speculation.decoding import speculation_of

    vocabulary = known_tokens(model, tokenizer)
    return [speculation_of(model, each, drafts.by, vocabulary, drafts.drafting, drafts.context) for each in samplers]


def grammar_of(vocabulary: GrammarVocabulary, gbnf: str | None, schema: str | Mapping[str, Any] | None) -> Grammar:
    """The grammar of one of both: a GBNF text, or a JSON schema."""
    from runtime.sampling.grammar import grammar_from_gbnf, grammar_from_json_schema

    if schema is not None:
        return grammar_from_json_schema(schema, vocabulary)
    assert gbnf is not None
    return grammar_from_gbnf(gbnf, vocabulary)

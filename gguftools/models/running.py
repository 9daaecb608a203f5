"""Make a model run: its weights loaded, grammars, encoders of images and audio, draft models."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quants.arguments import as_count, thread_count
from quants.errors import OptionError, VocabularyError

from .contents import Contents
from .devices import DeviceOptions, as_device, running_on
from .generation import Drafts, GenerateOptions, grammar_of

if TYPE_CHECKING:
    from runtime.model import RunningModel
    from runtime.sampling.grammar import Grammar
    from runtime.speculation.assistants import Assistant
    from runtime.speculation.blocks import BlockWriter
    from runtime.speculation.readers import Reader

    from ..metadata.images import Sight


def running_model(
    contents: Contents, threads: int | None = None, device: str | DeviceOptions | None = None
) -> RunningModel:
    """Return what computes logits, kept until something of the model, or the device, changes. Raises ModelError,
    OptionError.
    """
    metadata, options = contents.metadata, as_device(device)
    where = sys.intern("" if options is None else repr(options))
    parts = [threads, where, *map(metadata.value, metadata), *contents.tensors.data.values()]
    return contents._made("running", parts, lambda: running_on(options, metadata, contents.tensors, threads=threads))


def check_fits(*nets: RunningModel) -> None:
    """Raise OptionError if models that run together do not fit on their device: each token would read weights anew."""
    from runtime.prefill import CHUNK

    device = nets[0].device
    if device is None or device.memory is None:
        return
    needed = sum(net.bytes_on_device(CHUNK) for net in nets)
    if needed > device.memory:
        what = "the model needs" if len(nets) == 1 else "model and draft need"
        raise OptionError(
            f"{what} {needed:,} bytes on {device.title}, which has {device.memory:,} bytes for them",
            "take a smaller model, or one in F16 (2 bytes a weight; other formats are decoded to 4), or no device",
        )


def grammar_for(contents: Contents, gbnf: str | None, schema: str | Mapping[str, Any] | None) -> Grammar | None:
    """Return the grammar of a GBNF text or a JSON schema over the model's vocabulary; None where neither is given."""
    if gbnf is None and schema is None:
        return None
    from runtime.generation import grammar_vocabulary

    tokenizer = contents.tokenizer
    vocabulary = contents._made("vocabulary", [tokenizer], lambda: grammar_vocabulary(tokenizer))
    return grammar_of(vocabulary, gbnf, schema)


def check_media(options: GenerateOptions) -> None:
    """Raise OptionError where images, audio and their projector do not go together."""
    images, audio, projector = options.images, options.audio, options.projector
    if not (images or audio) or projector is None:
        media = "audio" if audio and not images else "images"
        given, absent = (media, "projector") if images or audio else ("projector", "images")
        none = not (images or audio or projector)
        raise OptionError("there are no images" if none else f"{given} is given without {absent}")
    if options.draft not in (None, "lookup"):
        media = "images" if images else "audio"
        raise OptionError("drafts do not see images or hear sounds", f'none, or "lookup", go with {media}')
    if options.image_tokens is not None and not images:
        raise OptionError("image_tokens is given without images")
    if options.image_tokens is not None:
        as_count(options.image_tokens, "image_tokens", 1)


def media_encoders(
    contents: Contents, projector: Contents, options: GenerateOptions
) -> list[tuple[Sight, Sequence[Any]]]:
    """Return what encodes images and audio for this model, with these; kept as long as the projector is the same."""
    parts = (("images", options.images, options.image_tokens), ("audio", options.audio, None))
    return [
        (_encoder(contents, part, projector, max_tokens, options.threads), given)
        for part, given, max_tokens in parts
        if given
    ]


def _encoder(contents: Contents, part: str, projector: Contents, max_tokens: int | None, threads: int | None) -> Sight:
    from runtime.multimodal.audio import AudioEncoder
    from runtime.multimodal.vision import VisionEncoder

    from ..metadata.images import Sight

    def make() -> Sight:
        type_: type[AudioEncoder | VisionEncoder] = AudioEncoder if part == "audio" else VisionEncoder
        encoder = type_(projector.metadata, projector.tensors, thread_count(threads))
        return Sight(encoder, contents.metadata, contents.tokenizer, max_tokens)

    return contents._made(part, [projector, max_tokens, threads, contents.tokenizer], make)


def draft_reader(draft: Contents, target: RunningModel) -> Reader | Assistant | BlockWriter | None:
    """Return what drafts for a target by reading its states, where this is such a draft's file. Raises ModelError."""
    from runtime.speculation.draft_files import reader_of

    return reader_of(target, draft.metadata, draft.tensors)


def drafts_of(contents: Contents, draft: Contents, options: GenerateOptions) -> Drafts:
    """Return a draft model for a model, on the same device. Raises OptionError, VocabularyError for one that does not
    fit, ModelError.
    """
    _check_draft(contents, draft)
    target = running_model(contents, options.threads, options.device)
    reader = draft_reader(draft, target)
    if reader is not None:
        return Drafts(reader, draft.context_length, options.drafting)
    smaller = running_model(draft, options.threads, options.device)
    check_fits(target, smaller)
    return Drafts(smaller, draft.context_length, options.drafting)


def _check_draft(contents: Contents, draft: Contents) -> None:
    from ..metadata.vocabularies import compare_vocabularies

    files = [each.file for each in (contents, draft) if each.file is not None and each.is_as_opened]
    if len(files) == 2 and list(files[0].states.values()) == list(files[1].states.values()):
        raise OptionError(f"the draft {draft.path} is the model itself", "a smaller one is needed")
    comparison = compare_vocabularies(
        (contents.path, draft.path), (contents.metadata, draft.metadata), (contents.tokenizer, draft.tokenizer)
    )
    if comparison.obstacles:
        hint = f"`gguftools diff {contents.path} {draft.path} --vocab` says more"
        if comparison.edits:
            hint = f"`gguftools set-metadata {draft.path} {' '.join(comparison.edits)}` mends it"
        raise VocabularyError(f"{draft.path} can't draft for {contents.path}: {comparison.obstacles[0]}", hint)

"""Prompts with images or sounds: files are decoded, run through an encoder, and put where the text has them."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from quants.errors import ModelError, OptionError, VocabularyError
from runtime.generation import prompt_ids
from runtime.images import EmbeddedImage
from runtime.multimodal.assembly import assembled
from runtime.multimodal.audio import AudioEncoder
from runtime.multimodal.gemma3n_audio import HARD, hard_words
from runtime.multimodal.places import Embedded
from runtime.multimodal.preprocessing import PREPARED, tiles
from runtime.multimodal.prompts import (
    AUDIO_WORDINGS,
    MARKER,
    MARKS,
    Media,
    Seen,
    marked,
    placeholder,
    with_media,
    wording_of,
)
from runtime.multimodal.vision import VisionEncoder
from runtime.tokenizer import Tokenizer

from ..io.images import Source, open_image
from ..io.wav import read_wav
from .chat_templates import rendered

Progress = Callable[[int, int], None]
Message = dict[str, Any]


class Sight:
    """An encoder for images or sounds beside its text model. These are run once, however many prompts have them."""

    def __init__(
        self,
        encoder: VisionEncoder | AudioEncoder,
        metadata: Mapping[str, Any],
        tokenizer: Tokenizer,
        max_tokens: int | None = None,
    ) -> None:
        """metadata: of the text model. max_tokens: of an image, where the encoder takes images of any size.

        Raises ModelError for an encoder of another model, or one whose images we do not know to prepare.
        """
        prepared = AUDIO_WORDINGS if isinstance(encoder, AudioEncoder) else PREPARED
        self.part, self.what = ("audio", "sounds") if isinstance(encoder, AudioEncoder) else ("image", "images")
        if encoder.projector not in prepared:
            known = f"those that are: {', '.join(prepared)}"
            raise ModelError(f"{self.what} for encoders of the type {encoder.projector!r} are not prepared", known)
        width = metadata.get(f"{metadata.get('general.architecture')}.embedding_length")
        if encoder.width != width:
            problem = f"the encoder's embeddings are {encoder.width} wide, those of the model {width}"
            raise ModelError(problem, "the mmproj file is of another model")
        self.encoder, self.metadata, self.tokenizer, self.max_tokens = encoder, metadata, tokenizer, max_tokens
        audible = isinstance(encoder, AudioEncoder)
        self.wording = (
            AUDIO_WORDINGS[encoder.projector] if audible else wording_of(encoder.projector, encoder.metadata, tokenizer)
        )
        self._seen: dict[Any, Seen] = {}

    def see(self, image: Source, progress: Progress | None = None) -> Seen:
        """Return the embeddings of an image or of audio. progress(layers done, of how many).

        Raises FileError, OptionError, ModelError.
        """
        key = os.fspath(image) if isinstance(image, (str, os.PathLike)) else None
        if key is not None and key in self._seen:
            return self._seen[key]
        run = self._heard if isinstance(self.encoder, AudioEncoder) else self._looked_at
        seen = run(image, progress)
        if key is not None:
            self._seen[key] = seen
        return seen

    def _heard(self, sound: Source, progress: Progress | None) -> Seen:
        assert isinstance(self.encoder, AudioEncoder)
        samples = read_wav(os.fspath(sound), self.encoder.rate) if isinstance(sound, (str, os.PathLike)) else sound
        return Seen((Embedded(self.encoder.embed_waveform(samples, progress)),))

    def own_words(self, ids: Sequence[int], token: int, placed: Sequence[EmbeddedImage]) -> list[EmbeddedImage]:
        """Return what stands for words whose embeddings the encoder's file has (Gemma 3n's `<end_of_audio>`).

        token: what stands for an image or a sound. placed: what has its place already.
        """
        if self.encoder.projector not in HARD:
            return []
        return hard_words(self.encoder.weights, ids, len(self.metadata["tokenizer.ggml.tokens"]), placed, token)

    def _looked_at(self, image: Source, progress: Progress | None) -> Seen:
        assert isinstance(self.encoder, VisionEncoder)
        cut = tiles(self.encoder, open_image(image), self.max_tokens)
        embedded = []
        for i, pixels in enumerate(cut.pixels):
            tile_progress = partial(_tell, progress, i, len(cut.pixels)) if progress else None
            embedded.append(self.encoder.embedded(pixels, tile_progress))
        if progress is not None:
            layers = len(cut.pixels) * int(self.encoder.key("block_count"))
            progress(layers, layers)
        return Seen(assembled(self.encoder, cut, embedded), cut.rows, cut.columns)


Given = Sequence[tuple[Sight, Sequence[Source]]]  # what sees images or hears sounds, and these


def read_prompt(
    prompt: str | Sequence[Any], given: Given, progress: Progress | None = None
) -> tuple[list[int], list[EmbeddedImage]]:
    """Return the ids of a prompt with images and audio, and where these stand. prompt: a text, or messages.

    given: of one tokenizer. Raises FileError, OptionError, ModelError, VocabularyError.
    """
    if not isinstance(prompt, str) and not all(isinstance(each, Mapping) for each in prompt):
        what = " and ".join(sight.what for sight, _ in given)
        raise OptionError(f"{what} stand in a text or in messages, not in token ids")
    tokenizer = given[0][0].tokenizer
    tokens = [placeholder(sight.wording, tokenizer) for sight, _ in given]
    text = prompt if isinstance(prompt, str) else _rendered(prompt, given)
    _check_marks(text, given)
    for sight, sources in reversed(given):  # what is wrong shows before encoders run
        text = marked(text, sight.wording, len(sources), sight.what, (MARKER, MARKS[sight.part]))
    media = [
        Media(sight.wording, token, [sight.see(each, progress) for each in sources])
        for (sight, sources), token in zip(given, tokens, strict=True)
    ]
    ids, embedded = with_media(text, media, partial(prompt_ids, tokenizer, rendered=not isinstance(prompt, str)))
    for (sight, _), token in zip(given, tokens, strict=True):
        embedded += sight.own_words(ids, token, embedded)
    return ids, sorted(embedded, key=lambda each: each.start)


def _check_marks(text: str, given: Given) -> None:
    if len(given) > 1 and MARKER in text:
        raise OptionError(
            f"{MARKER} may be an image or a sound of this prompt", f"mark them by {' and '.join(MARKS.values())}"
        )


def _rendered(messages: Sequence[Any], given: Given) -> str:
    """Render messages with the chat template, which marks the parts, or whose text has the marks."""
    placed = list(messages)
    for sight, sources in reversed(given):
        marks = (MARKS[sight.part], *((MARKER,) if len(given) == 1 else ()))
        placed = _placed(placed, sight, len(sources), marks)
    for message in placed:
        _check_marks("".join(str(part.get("text", "")) for part in message["content"]), given)
    metadata = given[0][0].metadata
    try:
        text = rendered(metadata, placed)  # type: ignore[arg-type]
    except VocabularyError:
        text = ""
    if all(text.count(sight.wording.marker) == len(sources) for sight, sources in given):
        return text
    return rendered(metadata, [_as_text(each) for each in placed])  # type: ignore[arg-type]


def _tell(progress: Progress, tile: int, count: int, layer: int, layers: int) -> None:
    progress(tile * layers + layer, count * layers)


def _placed(messages: Sequence[Message], sight: Sight, count: int, marks: Sequence[str]) -> list[Message]:
    """Return messages with images or audio as parts: where they are marked, or first in the user's last message."""
    split = [dict(each) | {"content": _parts(each.get("content"), sight.part, marks)} for each in messages]
    marked_count = sum(part.get("type") == sight.part for each in split for part in each["content"])
    if marked_count not in (0, count):
        raise OptionError(f"{marked_count} {sight.what} are marked in the messages; {count} are given")
    users = [each for each in split if each.get("role") == "user"]
    if not marked_count and not users:
        raise OptionError(f"no message is a user's: the {sight.what} have no place", f"mark it by {marks[-1]}")
    if not marked_count:
        users[-1]["content"] = [{"type": sight.part}] * count + users[-1]["content"]
    return split


def _parts(content: Any, part_type: str, marks: Sequence[str]) -> list[Message]:
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts: list[Message] = []
    for each in given if isinstance(given, list) else []:
        if not isinstance(each, Mapping):
            continue
        if each.get("type") != "text":
            parts.append(dict(each))
            continue
        for i, text in enumerate(re.split("|".join(map(re.escape, marks)), str(each.get("text", "")))):
            parts += [{"type": part_type}] if i else []
            parts += [{"type": "text", "text": text}] if text else []
    return parts


def _as_text(message: Message) -> Message:
    texts = [MARKS.get(str(part.get("type"))) or str(part.get("text", "")) for part in message["content"]]
    return message | {"content": "".join(texts)}

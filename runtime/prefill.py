"""Read a prompt into a cache: in pieces, so that memory does not grow with it, and once for all texts that share it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .arrays import Floats
from .images import EmbeddedImage, pieces, within
from .kv_cache import CacheType, KVCache
from .model import Model

CHUNK = 1024  # tokens: enough that decoding weights anew for each piece takes a few per cent of its time
ROOM_AT_ONCE = 1 << 16  # tokens that a cache makes room for in advance

Progress = Callable[[int, int], None]


class Prefill:
    """A prompt that is read when the first text needs it; each text gets a cache of its own.

    tokens: ids. texts: how many will need it. more: tokens that each of them may have; None if unknown. progress(tokens
    read, of how many) is called before each piece and at the end. back: how many tokens the texts may be rolled back
    by. states: the model's output of each token, (tokens, width), if requested; for layers, their inputs. images: in
    place of some of the tokens.
    """

    def __init__(
        self,
        model: Model,
        tokens: Sequence[int],
        cache_type: CacheType = "f32",
        *,
        texts: int = 1,
        more: int | None = None,
        progress: Progress | None = None,
        back: int = 0,
        keep_states: bool = False,
        layers: Sequence[int] = (),
        images: Sequence[EmbeddedImage] = (),
    ) -> None:
        """Raise OptionError for an unknown type of cache."""
        expected = 0 if more is None else len(tokens) + min(more, ROOM_AT_ONCE)
        self.model, self.tokens, self.cache_type, self.progress = model, list(tokens), cache_type, progress
        self._cache, self._left = model.new_cache(cache_type, expected), texts
        self._cache.memory, self._keep_states, self.states = back, keep_states, np.empty((0, 0), np.float32)
        self._layers = layers
        self._logits: Floats | None = None
        self.images = images
        self.is_quiet = False  # while another text is shown, no progress is reported

    def read(self) -> tuple[KVCache, Floats, float]:
        """Return a cache with the prompt, the logits after it, (1, vocabulary), and the seconds that reading took.

        The seconds are 0 for all texts but the first. Raises ModelError as `Model.forward` does, ValueError when more
        texts ask than there are.
        """
        if self._left < 1:
            raise ValueError("more texts ask for the prompt than were to come")
        start, seconds = time.perf_counter(), 0.0
        if self._logits is None:
            self._logits = self._through()
            seconds = time.perf_counter() - start
        self._left -= 1
        if self._left:
            return self._cache.copy(), self._logits, seconds
        cache, self._cache = self._cache, KVCache()  # the last text owns it, and can release it
        return cache, self._logits, seconds

    def _through(self) -> Floats:
        self._cache.reset()  # after an interruption
        size, logits = chunk_size(self.model, len(self.tokens)), np.empty((0, 0), np.float32)
        made: list[Floats] = []
        for start, stop in pieces(len(self.tokens), size, self.images):
            if self.progress is not None and not self.is_quiet:
                self.progress(start, len(self.tokens))
            piece, images = self.tokens[start:stop], within(self.images, start, stop)
            if self._keep_states and self._layers:
                run, states = self.model.forward_with_inputs(piece, self._layers, self._cache)
                made.append(states)
                logits = replace(run, x=run.x[-1:]).float32()
            elif self._keep_states:
                run = self.model.lazy_forward(piece, self._cache, images=images)
                made.append(run.states)
                logits = replace(run, x=run.x[-1:]).float32()
            else:
                logits = self.model.forward(piece, self._cache, len(piece) - 1, images)
        if made:
            self.states = np.concatenate(made)
        if self.progress is not None and not self.is_quiet:
            self.progress(len(self.tokens), len(self.tokens))
        return logits


def chunk_size(model: Model, tokens: int) -> int:
    """Return how many tokens of a prompt run at a time: all if its length decides how each one is rotated."""
    scaling = model.network.scaling
    if scaling is not None and (
        scaling.kind == "dynamic" or (scaling.kind == "longrope" and tokens > scaling.original_context)
    ):
        return tokens
    return CHUNK

"""Read a prompt into a cache: in pieces, so that memory does not grow with it, and once for all texts that share it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .arrays import Floats
from .images import EmbeddedImage, pieces, within
from .kv_cache import CacheType, KVCache
from .model import RunningModel
from .prefix_cache import PrefixCache
from .sampling.logprobs import TokenLogprobs, token_logprobs

CHUNK = 1024  # tokens: enough that decoding weights anew for each piece takes a few per cent of its time
LOGITS_AT_ONCE = 1 << 25  # numbers, where those of all tokens are needed
ROOM_AT_ONCE = 1 << 16  # tokens of text that a cache gets room for before they are there

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PrefillOptions:
    """How a prompt is read.

    texts: how many texts continue the prompt. more: tokens that each of them may add, None if unknown. progress(tokens
    read, of how many): called before each piece and at the end. back: by how many tokens the texts may be rolled back.
    keep_states: keep each token's last hidden state, or the inputs of `layers`. logprobs: number of likeliest tokens to
    report for each token of the prompt, of a vocabulary of that size. prefix: a cache left by an earlier text, for one
    text only.
    """

    cache_type: CacheType = "f32"
    texts: int = 1
    more: int | None = None
    progress: Progress | None = None
    back: int = 0
    keep_states: bool = False
    layers: Sequence[int] = ()
    logprobs: tuple[int, int] | None = None
    prefix: PrefixCache | None = None


DEFAULTS = PrefillOptions()


class Prefill:
    """A prompt that is read when the first text needs it; each text gets its own cache.

    tokens: ids. images: those among the tokens. states: each token's last hidden state, (tokens, width), or the inputs
    of `layers`, if they are kept. logprobs: of each token of the prompt, None for the first, if requested, once the
    prompt is read.
    """

    def __init__(
        self,
        model: RunningModel,
        tokens: Sequence[int],
        options: PrefillOptions = DEFAULTS,
        images: Sequence[EmbeddedImage] = (),
    ) -> None:
        """Raise OptionError for an unknown cache type."""
        self.model, self.tokens, self.options, self.images = model, list(tokens), options, images
        self.progress = options.progress
        self._expected = 0 if options.more is None else len(tokens) + min(options.more, ROOM_AT_ONCE)
        self._cache, self._left = model.new_cache(options.cache_type, self._expected), options.texts
        self._cache.memory, self.states = options.back, np.empty((0, 0), np.float32)
        self.logprobs: list[TokenLogprobs | None] = []
        self._logits: Floats | None = None
        self.is_quiet = False  # while another text is shown, nobody hears of progress

    def read(self) -> tuple[KVCache, Floats, float]:
        """Return a cache with the prompt, the logits after it, (1, vocabulary), and the seconds that reading took.

        The seconds are 0 for all texts but the first. Raises ModelError as `RunningModel.forward` does, ValueError if
        more texts ask than `texts`.
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
        options, seen = self.options, self._begin()
        size, logits = chunk_size(self.model, len(self.tokens)), np.empty((0, 0), np.float32)
        if options.logprobs is not None:
            size, self.logprobs = min(size, max(1, LOGITS_AT_ONCE // self.model.vocabulary_size)), [None]
        made: list[Floats] = []
        for start, stop in pieces(len(self.tokens), size, self.images):
            start = max(start, seen)
            if start >= stop:
                continue
            if self.progress is not None and not self.is_quiet:
                self.progress(start, len(self.tokens))
            piece, images = self.tokens[start:stop], within(self.images, start, stop)
            if options.logprobs is not None:
                logits = self._with_logprobs(self.model.forward(piece, self._cache, 0, images), start)
            elif options.keep_states and options.layers:
                run, states = self.model.forward_with_inputs(piece, options.layers, self._cache)
                made.append(states)
                logits = replace(run, x=run.x[-1:]).float32()
            elif options.keep_states:
                run = self.model.lazy_forward(piece, self._cache, images=images)
                made.append(run.states)
                logits = replace(run, x=run.x[-1:]).float32()
            else:
                logits = self.model.forward(piece, self._cache, len(piece) - 1, images)
        if made:
            self.states = np.concatenate(made)
        if options.prefix is not None:
            options.prefix.mark(self._cache)
        if self.progress is not None and not self.is_quiet:
            self.progress(len(self.tokens), len(self.tokens))
        return logits

    def _begin(self) -> int:
        """Prepare the cache; return how many tokens it already holds."""
        options = self.options
        if options.prefix is None or options.keep_states or options.logprobs is not None or self.images:
            self._cache.reset()  # of what an interruption left
            return 0
        self._cache = options.prefix.take(self.model, self.tokens, self._cache.cache_type)
        self._cache.expected, self._cache.memory = self._expected, options.back
        return options.prefix.reused

    def _with_logprobs(self, logits: Floats, start: int) -> Floats:
        """Record log-probabilities of the tokens after these positions; return the last logits."""
        assert self.options.logprobs is not None
        count, vocabulary = self.options.logprobs
        for row, token in zip(logits, self.tokens[start + 1 : start + 1 + len(logits)], strict=False):
            self.logprobs.append(token_logprobs(row[:vocabulary], token, count))
        return logits[-1:]


def chunk_size(model: RunningModel, tokens: int) -> int:
    """Return how many tokens of a prompt run at a time: all if its length decides how each one is rotated."""
    scaling = model.network.scaling
    if scaling is not None and (
        scaling.type == "dynamic" or (scaling.type == "longrope" and tokens > scaling.original_context)
    ):
        return tokens
    return CHUNK

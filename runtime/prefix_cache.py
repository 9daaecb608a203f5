"""A KV cache that one text leaves to the next, which then reads only the tokens that differ."""

from collections.abc import Sequence

from .kv_cache import CacheType, KVCache
from .model import RunningModel


class PrefixCache:
    """Keeps a KV cache between texts, with the tokens that it was computed from. Only one text uses it at a time.

    reused: how many tokens of the latest prompt were in the cache.
    """

    def __init__(self) -> None:
        self.reused = 0
        self._model: RunningModel | None = None
        self._cache: KVCache | None = None
        self._tokens: list[int] = []  # of the cache, and perhaps more
        self._mark: tuple[list[int], KVCache] | None = None  # of recurrent layers, which can't go back: after a prompt

    def take(self, model: RunningModel, tokens: Sequence[int], cache_type: CacheType) -> KVCache:
        """Return a cache with the longest common beginning of the tokens, but at least one token less than all."""
        cache = self._cache
        if (
            cache is None
            or self._model is not model
            or cache.cache_type != cache_type
            or _rotates_by_length(model, tokens)
        ):
            cache, self._mark = model.new_cache(cache_type), None
        else:
            cache = self._shortened(cache, tokens)
        self._model, self._cache, self._tokens, self.reused = model, cache, list(tokens), cache.length
        return cache

    def mark(self, cache: KVCache) -> None:
        """Record that the prompt has been read: states of recurrent layers are kept for a text that begins like it."""
        if cache.keeps_states:
            self._mark = list(self._tokens), cache.copy()

    def leave(self, tokens: Sequence[int]) -> None:
        """Record the tokens of prompt and text at the end of a text."""
        self._tokens = list(tokens)

    def interrupt(self) -> None:
        """Drop states that an interrupted pass may have left incomplete."""
        if self._cache is not None and self._cache.keeps_states:
            self._cache.reset()

    def clear(self) -> None:
        """Forget everything."""
        self._cache, self._mark, self._tokens = None, None, []

    def _shortened(self, cache: KVCache, tokens: Sequence[int]) -> KVCache:
        held = min(cache.length, len(self._tokens))
        same = shared_length(self._tokens[:held], tokens[:-1])
        try:
            cache.truncate(same)
            return cache
        except ValueError:  # states of recurrent layers go forward only
            pass
        if (
            self._mark is not None
            and len(self._mark[0]) < len(tokens)
            and self._mark[0] == [*tokens[: len(self._mark[0])]]
        ):
            return self._mark[1].copy()
        cache.reset()
        return cache


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (mine, its) in pairs if mine != its), min(len(one), len(other)))


def _rotates_by_length(model: RunningModel, tokens: Sequence[int]) -> bool:
    """Return whether the rotation of tokens depends on the text's length, so that no prefix can be reused."""
    scaling = model.network.scaling
    return model.encoder_decoder is not None or (scaling is not None and scaling.type in ("dynamic", "longrope"))

"""Metadata + tensors → a model that runs: `forward(tokens, cache)` gives logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from archs.hyper import Hyper, Keys, hyper
from archs.powerinfer import THRESHOLD
from archs.registry import by_gguf_name
from archs.shapes import by_layer, check_model
from quants import Tensor
from quants.errors import ModelError

from . import encoder_decoder
from .cache import KVCache
from .graph import DAMAGED, Layer, Pass, decode, embed, head
from .importance import Observe
from .rope import RopeScaling, attention_factor
from .scoring import Logits
from .sparse import Sparsity

Floats = NDArray[np.float32]


class Model:
    """A model ready to run; weights stay as they are stored.

    observe: called with a weight's name, the float32 rows it is multiplied with, and which of how many experts it is,
    where somebody wants to know.
    """

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raises ModelError for an architecture we can't run, or a file whose keys and tensors don't make a model."""
        name = metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelError("the file has no 'general.architecture': it is not a model that can run")
        self.architecture = by_gguf_name(name)
        self.metadata = metadata
        self.tensors = tensors
        check_model(self.architecture, metadata, tensors)
        _check_finite(tensors)
        self.hyper: Hyper = hyper(self.architecture, metadata)
        grouped = {prefix: Layer(prefix, roles) for prefix, roles in by_layer(tensors).items()}
        self.layers = tuple(grouped.get(f"blk.{i}.", Layer(f"blk.{i}.", {})) for i in range(len(self.hyper.layers)))
        self.whole = grouped[""]
        self.scaling = _scaling(Keys(name, metadata), self.whole)
        self.sides = encoder_decoder.sides(Keys(name, metadata), grouped)
        self.observe: Observe | None = None
        self.sparsity: Sparsity | None = None  # set by `use_predictor`
        if "blk.0.ffn_down_t.weight" in tensors:  # PowerInfer's files don't say that theirs are ReLU models
            self.hyper = replace(self.hyper, activation="relu")

    @property
    def vocabulary_size(self) -> int:
        return self.whole.tensors["token_embd.weight"].shape[0]

    def use_predictor(self) -> Sparsity:
        """From now on compute the neurons that the file's predictor marks, and count them in what is returned.

        Raises ModelError for a file without a predictor.
        """
        if "blk.0.fc1.weight" not in self.tensors:
            raise ModelError(
                "the file has no predictor ('blk.0.fc1.weight')",
                hint="`gguftools convert --predictor` writes such files",
            )
        self.sparsity = Sparsity(float(self.metadata.get(THRESHOLD, 0.0)))
        return self.sparsity

    def new_cache(self) -> KVCache:
        """An empty cache, to hand to `forward` again and again while a text grows."""
        return KVCache()

    def logits(self, tokens: Sequence[int], decoder_tokens: Sequence[int] = ()) -> Floats:
        """The text's logits from an empty cache: float32 (tokens, vocabulary).

        Of an encoder: the text's last hidden states, (tokens, width). Of a model with both sides: the logits of
        decoder_tokens, which follow on the text that is read.
        """
        return self.forward(tokens) if self.sides is None else self.forward(decoder_tokens, self.encode(tokens))

    def encode(self, tokens: ArrayLike) -> KVCache:
        """Read a text (n,) with the encoder: a cache for `forward` to run the decoder's tokens from.

        Raises ModelError for a model without an encoder, or an id outside the vocabulary.
        """
        if self.sides is None:
            raise ModelError(f"{self.architecture.name} models have no encoder to read a text with")
        cache = self.new_cache()
        cache.context = encoder_decoder.encode(self, self.sides, self._checked(tokens).reshape(-1))
        return cache

    def _checked(self, tokens: ArrayLike) -> NDArray[np.int64]:
        ids = np.asarray(tokens, np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocabulary_size):
            raise ModelError(f"token id {int(ids.max())} is outside the vocabulary of {self.vocabulary_size}")
        return ids

    def forward(self, tokens: ArrayLike, cache: KVCache | None = None, first: int = 0) -> Floats:
        """Logits of tokens that follow those in the cache: float32 (tokens - first, vocabulary).

        tokens: ids (n,); or (texts, n), equal texts that don't see each other, for (texts, n - first, vocabulary).
        first: the first position (within these tokens) whose logits are wanted.
        Raises ModelError for an id outside the vocabulary, for a cache where tokens see those after them, and where
        numbers stop being finite.
        """
        ids = self._checked(tokens)
        if ids.size == 0:
            return np.empty((*ids.shape[:-1], 0, self.vocabulary_size), np.float32)
        if cache is not None and not self.architecture.block.causal:
            raise ModelError(f"{self.architecture.name} reads a text as a whole: it cannot go on from a cache")
        texts = ids.reshape(-1, ids.shape[-1])
        if cache is not None and self.scaling is not None and self.scaling.kind == "longrope":
            seen, cache.tokens = cache.length, np.concatenate([cache.tokens, texts[0]])
            if 0 < seen <= self.scaling.original_context < len(cache.tokens):
                # The text grows past the short factors: all of it is computed anew with the long ones, as transformers
                # does when it generates.
                again = cache.tokens
                cache.reset()
                return self.forward(again, cache, seen + first)
        result = self._evaluate(texts, cache, first)
        array = result.float32() if isinstance(result, Logits) else result
        if np.isnan(array).any():
            raise ModelError("logits are not finite, though all layers are: the output's weights are damaged", DAMAGED)
        return array.reshape(*ids.shape[:-1], texts.shape[1] - first, -1)

    def scorable(self, tokens: ArrayLike, first: int = 0) -> Logits:
        """As `forward` without a cache, but the logits are computed as far as they are asked for.

        Raises ModelError for a model that ends in hidden states.
        """
        ids = self._checked(tokens)
        result = self._evaluate(ids.reshape(-1, ids.shape[-1]), None, first)
        if not isinstance(result, Logits):
            raise ModelError(f"{self.architecture.name} gives no logits: it ends in hidden states")
        return replace(result, x=result.x.reshape(*ids.shape[:-1], -1, result.x.shape[-1]))

    def _evaluate(self, texts: NDArray[np.int64], cache: KVCache | None, first: int) -> Logits | Floats:
        """What `head` gives for positions `first` and on of each text, one after the other."""
        run = Pass(self, len(texts), texts.shape[1], cache)
        x = run.finite("token_embd.weight", embed(run, texts.reshape(-1)))
        x = decode(run, x) if self.sides is None else encoder_decoder.decode(run, self.sides, x)
        wanted = x.reshape(len(texts), texts.shape[1], -1)[:, first:]
        return head(run, np.ascontiguousarray(wanted).reshape(-1, x.shape[-1]))


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Norms and biases are few enough to be looked at before anything runs; matrices show in what comes out of them."""
    for name, tensor in tensors.items():
        if len(tensor.shape) != 1 or tensor.format.is_quantized:
            continue
        values = tensor.float32()
        wrong = np.flatnonzero(~np.isfinite(values))
        # a bias of -infinity says that a token never comes
        if len(wrong) and not (name == "output.bias" and np.isneginf(values[wrong]).all()):
            raise ModelError(f"{name!r} holds {values[wrong[0]]} at {wrong[0]}; all have to be finite", hint=DAMAGED)


def _scaling(keys: Keys, whole: Layer) -> RopeScaling | None:
    kind = keys.get("rope.scaling.type", "none")
    context = int(keys.get("rope.scaling.original_context_length", keys.get("context_length", 0)))
    if keys.get("rope.scaling.dynamic_factor"):
        return RopeScaling("dynamic", float(keys.get("rope.scaling.dynamic_factor")), context)
    if "rope_factors_long.weight" in whole:
        return RopeScaling("longrope", 1.0, context, float(keys.get("rope.scaling.attn_factor", 1.0)))
    if kind == "none":
        return None
    temperature = 10 * float(keys.get("rope.scaling.yarn_log_multiplier", 0.0))  # 0: yarn's own
    found = RopeScaling(
        kind=kind,
        factor=float(keys.get("rope.scaling.factor", 1.0)),
        original_context=context,
        attn_factor=float(keys.get("rope.scaling.attn_factor", 1.0)),
        beta_fast=float(keys.get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(keys.get("rope.scaling.yarn_beta_slow", 1.0)),
        truncate=bool(keys.get("rope.scaling.yarn_truncate", True)),
        mscale=temperature,
        mscale_all_dim=temperature,
    )
    given = keys.get("rope.scaling.yarn_attn_factor")  # what cos and sin are multiplied by in all
    if kind != "yarn" or given is None:
        return found
    return replace(found, attn_factor=float(given) / attention_factor(replace(found, attn_factor=1.0)))


Forward = Callable[[NDArray[np.int64], int], Floats]

"""Metadata + tensors → a runnable model: `forward(tokens, cache)` gives logits."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams, LayerHParams, read_hparams
from archs.layered import by_layer
from archs.mtp import has_only_mtp
from archs.powerinfer import THRESHOLD
from archs.registry import of_file
from archs.validation.model_validators import check_model
from quants import Tensor
from quants.arguments import thread_count
from quants.errors import ModelError, OptionError
from quants.tensor import all_readable

from . import decoder, encoder_decoder
from .ahead import Ahead, AheadBatch, AheadOptions, groups_of
from .arrays import Floats, Ids
from .audio_codec import decode_audio_codes, spectra
from .branches import Branches, TokenTree
from .embedding import embed
from .graph.compiled import CompiledGraph, Text
from .graph.placement import bytes_between, bytes_of_values, weights_of
from .head import LazyLogits, head, in_shape, output_of
from .images import EmbeddedImage, check_images
from .importance import Observe, ObserveExperts
from .kernels.blas import one_thread
from .kernels.memory import keep_freed
from .kv_cache import CacheType, KVCache
from .layer import DAMAGED, Device, ForwardContext, Layer, Network, Sparsity
from .mixers.self_attention import supports_branches, supports_trees
from .mtp import mtp_forward, next_token_network, one_stream
from .products.gemv import MAX_TOKENS
from .products.precision import Precision, precision_named
from .profile import Profile
from .rope import rope_scaling

MAX_STEPS = 3  # of MAX_TOKENS each: from there on it is faster to decode weights once for all


class Batch(NamedTuple):
    """Arguments of `RunningModel.lazy_logits`: equally long texts, ids (n,) or (texts, n)."""

    tokens: ArrayLike
    first: int = 0
    exact: bool = False


class RunningModel:
    """A model ready to run; weights stay as they are stored.

    metadata: key → value; tensors: name → Tensor, as a GGUF file has them. threads: None for all processors. precision:
    how products are computed (see `runtime.products.precision`). observe: called with a weight's name, its float32
    input rows, and which of how many experts it is. All three belong to this model: others in the same process, in
    other threads, have their own.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        *,
        threads: int | None = None,
        precision: Precision = "float32",
        observe: Observe | None = None,
    ) -> None:
        """Load a model. Raises ModelError for an unsupported architecture, or a file whose keys and tensors don't make
        a model; OptionError for fewer threads than one, or an unknown precision.
        """
        keep_freed()
        name = metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelError("the file has no 'general.architecture': it is not a model that can run")
        self.threads, self.precision, self.observe = thread_count(threads), precision_named(precision), observe
        self.architecture = of_file(name, metadata)
        self.metadata = metadata
        self.tensors = tensors = all_readable(tensors)
        if has_only_mtp(metadata, tensors):
            problem = "the file has only the MTP layers: a draft, no model"
            raise ModelError(problem, "run it with the model: `gguftools generate MODEL --draft FILE`")
        check_model(self.architecture, metadata, tensors)
        _check_finite(tensors)
        keys, numbers = Keys.of(self.architecture, metadata), read_hparams(self.architecture, metadata, tensors)
        if "blk.0.ffn_down_t.weight" in tensors:  # PowerInfer's files don't mark theirs as ReLU models
            numbers = replace(numbers, activation="relu")
        grouped = {prefix: Layer(prefix, roles) for prefix, roles in by_layer(tensors).items()}
        self.network = Network(
            block=self.architecture.block,
            keys=keys,
            hparams=numbers,
            layers=_layers(grouped, numbers),
            global_tensors=grouped[""],
            scaling=rope_scaling(keys, two_lists="rope_factors_long.weight" in grouped[""]),
        )
        self.encoder_decoder = encoder_decoder.encoder_decoder(keys, grouped)
        self.encoder = encoder_decoder.encoder_alone(keys, grouped)
        self.codes = decode_audio_codes(keys, grouped) if self.architecture.block.convolutions else None
        self.sparsity: Sparsity | None = None  # set by `use_predictor`
        self.device: Device | None = None  # set to compute passes elsewhere (see `runtime.device`)
        self._ahead: Ahead | None = None  # what `prepare` was given
        self.observe_experts: ObserveExperts | None = None  # set to observe each expert's output
        self.profile: Profile | None = None  # set to time each category of operations

    @property
    def vocabulary_size(self) -> int:
        return self.tensors["token_embd.weight"].shape[0]

    def check_predictor(self) -> None:
        """Raise ModelError for a file without a predictor of neurons."""
        if "blk.0.fc1.weight" not in self.tensors:
            raise ModelError(
                "the file has no predictor ('blk.0.fc1.weight')",
                hint="`gguftools convert --predictor` writes such files",
            )

    def use_predictor(self) -> Sparsity:
        """Compute from now on only the neurons that the file's predictor selects; return their counter.

        Raises ModelError for a file without a predictor.
        """
        self.check_predictor()
        self.sparsity = Sparsity(float(self.metadata.get(THRESHOLD, 0.0)))
        return self.sparsity

    def new_cache(self, cache_type: CacheType = "f32", expected: int = 0) -> KVCache:
        """Return an empty cache, to pass to `forward` repeatedly while a text grows.

        cache_type: the type of keys and values. expected: tokens to make room for. Raises OptionError for an unknown
        type.
        """
        return KVCache(cache_type, expected) if self.device is None else self.device.new_cache(cache_type, expected)

    def new_pass(
        self,
        texts: int,
        length: int,
        cache: KVCache | None = None,
        branches: Branches | None = None,
        tree: TokenTree | None = None,
        images: Sequence[EmbeddedImage] = (),
        exact: bool = False,
    ) -> ForwardContext:
        """Return a pass of `texts` texts of `length` tokens each, which follow those in the cache.

        exact: with the precision "exact" instead of the model's.
        """
        return ForwardContext(
            self.network,
            texts,
            length,
            cache,
            self.threads,
            "exact" if exact else self.precision,
            self.observe,
            self.sparsity,
            self.profile,
            branches=branches,
            tree=tree,
            observe_experts=self.observe_experts,
            images=images,
            device=self.device,
        )

    def logits(self, tokens: Sequence[int], decoder_tokens: Sequence[int] = ()) -> Floats:
        """Return the text's logits from an empty cache: float32 (tokens, vocabulary). Raises ModelError as `forward`
        does.

        Of an encoder: the text's last hidden states, (tokens, width). Of an encoder-decoder model: the logits of
        decoder_tokens after the encoded text.
        """
        return self.forward(decoder_tokens, self.encode(tokens)) if self.encoder_decoder else self.forward(tokens)

    def encode(self, tokens: ArrayLike, cache: KVCache | None = None) -> KVCache:
        """Encode a text (n,). Returns a cache for `forward` to run the decoder's tokens with, or the given one.

        Raises ModelError for a model without an encoder, or an id outside the vocabulary.
        """
        if self.encoder_decoder is None:
            raise ModelError(f"{self.architecture.name} models have no encoder to read a text with")
        ids, cache = self._checked(tokens).reshape(-1), cache or self.new_cache()
        with one_thread():
            cache.context = encoder_decoder.encode(self.new_pass(1, len(ids)), self.encoder_decoder, ids)
        return cache

    def checked_tokens(self, tokens: Sequence[int]) -> Ids:
        """Return the ids of a text. Raises ModelError for one outside the vocabulary, OptionError for none."""
        ids = self._checked(tokens).reshape(-1)
        if not ids.size:
            raise OptionError("there are no tokens to run")
        return ids

    def _checked(self, tokens: ArrayLike) -> Ids:
        ids = np.asarray(tokens, np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.vocabulary_size):
            raise ModelError(f"token id {int(ids.max())} is outside the vocabulary of {self.vocabulary_size}")
        return ids

    def forward(
        self, tokens: ArrayLike, cache: KVCache | None = None, first: int = 0, images: Sequence[EmbeddedImage] = ()
    ) -> Floats:
        """Return logits of tokens that follow those in the cache: float32 (tokens - first, vocabulary).

        tokens: ids (n,); or (texts, n), equally long independent texts, for (texts, n - first, vocabulary). first: the
        first position (within these tokens) whose logits are needed. images: in place of some tokens of a single text
        (see `runtime.multimodal.places`). Raises ModelError for an id outside the vocabulary, for a cache in a
        bidirectional model, for images of another model, and if numbers stop being finite; OptionError for images
        outside of the tokens.
        """
        ids = self._checked(tokens)
        if ids.size == 0:
            return np.empty((*ids.shape[:-1], 0, self.vocabulary_size), np.float32)
        if cache is not None and not self.network.block.causal:
            raise ModelError(f"{self.architecture.name} reads a text as a whole: it cannot go on from a cache")
        texts, scaling = ids.reshape(-1, ids.shape[-1]), self.network.scaling
        if cache is not None and scaling is not None and scaling.type == "longrope":
            seen, cache.tokens = cache.length, np.concatenate([cache.tokens, texts[0]])
            if 0 < seen <= scaling.original_context < len(cache.tokens):
                # The text grows past the short factors: all of it is recomputed with the long ones, as transformers
                # does when it generates.
                again = cache.tokens
                cache.reset()
                return self.forward(again, cache, seen + first)
        if cache is not None and len(texts) == 1 and not images and (steps := self._steps_for(texts.size, cache)):
            parts = [steps.run([Text(piece, cache)])[0] for piece in _pieces(texts[0])]
            array = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return array[first:].reshape(*ids.shape[:-1], texts.shape[1] - first, array.shape[-1])
        result = self._evaluate(texts, cache, first, images=images)
        array = result.float32() if isinstance(result, LazyLogits) else result
        if np.isnan(array).any():
            raise ModelError("logits are not finite, though all layers are: the output's weights are damaged", DAMAGED)
        return array.reshape(*ids.shape[:-1], texts.shape[1] - first, array.shape[-1])

    def forward_together(self, tokens: Sequence[ArrayLike], caches: Sequence[KVCache]) -> list[Floats | ModelError]:
        """Return logits of tokens (n,) of several texts, which follow those in each one's cache: float32 (n,
        vocabulary) each, the same as `forward` gives of it alone; or the error that it raises.

        Texts of few tokens go through the model together, up to MAX_TOKENS in one pass: weights are read once for all
        of them. If `runs_together` is False, one goes after another.
        """
        results: list[Floats | ModelError] = [np.empty((0, 0), np.float32)] * len(caches)
        few = list[int]()
        for number, (ids, cache) in enumerate(zip(tokens, caches, strict=True)):
            if self.runs_together and not cache.memory and 0 < np.size(ids) <= MAX_TOKENS:
                few.append(number)
            else:
                results[number] = _attempted(partial(self.forward, ids, cache))
        for group in _groups(few, [np.size(ids) for ids in tokens], [cache.cache_type for cache in caches]):
            self._run_group(group, tokens, caches, results)
        return results

    def _run_group(
        self,
        group: Sequence[int],
        tokens: Sequence[ArrayLike],
        caches: Sequence[KVCache],
        results: list[Floats | ModelError],
    ) -> None:
        """Write the logits of the texts with these numbers."""
        texts = dict[int, Text]()
        for number in group:
            try:
                texts[number] = Text(self._checked(tokens[number]).reshape(-1), caches[number])
            except ModelError as error:
                results[number] = error
        steps = self._compiled
        if not texts or steps is None:
            return
        for number, logits in zip(texts, steps.run_each([*texts.values()]), strict=True):
            results[number] = logits

    @property
    def runs_together(self) -> bool:
        """Return whether `forward_together` runs several texts in one pass."""
        scaling = self.network.scaling
        return self._is_plain and self._compiles and (scaling is None or scaling.type not in ("longrope", "dynamic"))

    def forward_with_states(
        self, tokens: ArrayLike, layers: Sequence[int], cache: KVCache, parents: Sequence[int] | None = None
    ) -> tuple[Floats, Floats]:
        """Return logits of tokens (n,) as `forward` does, and inputs of layers as `forward_with_inputs` does; without
        layers the last norm's output. parents: of `lazy_forward`. Raises ModelError as that does.
        """
        ids = self._checked(tokens)
        if parents is None and ids.size and (steps := self._steps_for(ids.size, cache)):
            parts = [steps.run([Text(piece, cache)], layers) for piece in _pieces(ids)]
            return np.concatenate([each for each, _ in parts]), np.concatenate([states for _, states in parts])
        if layers:
            run, states = self.forward_with_inputs(ids, layers, cache, parents)
            return run.float32(), states
        run = self.lazy_forward(ids, cache, parents)
        return run.float32(), run.states

    def lazy_forward(
        self,
        tokens: ArrayLike,
        cache: KVCache | None = None,
        parents: Sequence[int] | None = None,
        images: Sequence[EmbeddedImage] = (),
    ) -> LazyLogits:
        """Return `forward` of one text (n,), with logits computed on demand.

        parents: each token's parent, -1 for the text in the cache; None for the token before it. Raises ModelError as
        `forward` does, and for a model that ends in hidden states.
        """
        tree = None if parents is None else TokenTree(tuple(parents))
        result = self._evaluate(self._checked(tokens).reshape(1, -1), cache, 0, tree=tree, images=images)
        if not isinstance(result, LazyLogits):
            raise ModelError(f"{self.architecture.name} gives no logits: it ends in hidden states")
        return result

    def forward_with_inputs(
        self,
        tokens: ArrayLike,
        layers: Sequence[int],
        cache: KVCache | None = None,
        parents: Sequence[int] | None = None,
    ) -> tuple[LazyLogits, Floats]:
        """Return `lazy_forward` (without a cache of texts (texts, n), too), and the inputs of these layers.

        layers: their numbers; the one after the last stands for the last one's output. The inputs are side by side: (n,
        layers * width), or (texts, n, …). Raises ModelError as `lazy_forward` does.
        """
        ids, noted = self._checked(tokens), dict.fromkeys(layers, np.empty((0, 0), np.float32))
        tree = None if parents is None else TokenTree(tuple(parents))
        result = self._evaluate(ids.reshape(-1, ids.shape[-1]), cache, 0, tree=tree, noted=noted)
        if not isinstance(result, LazyLogits):
            raise ModelError(f"{self.architecture.name} gives no logits: it ends in hidden states")
        inputs = np.concatenate([noted[layer] for layer in layers], axis=1)
        shape = ids.shape
        return replace(result, x=result.x.reshape(*shape, -1)), inputs.reshape(*shape, inputs.shape[-1])

    @property
    def gives_inputs(self) -> bool:
        """Return whether `forward_with_inputs` supports the model."""
        several = self.network.keys.get("hyper_connection.count") is not None
        several &= self.architecture.name != "deepseek4"  # draft models read the mean of its streams
        several |= "altup_proj.weight" in self.tensors
        return self.encoder_decoder is None and not several

    def draftable(self, seen: int, max_tokens: int) -> int:
        """Return how many of `max_tokens` tokens after the next one can run in a pass with it, after `seen` tokens, and
        be dropped again.

        If a text's length decides how it is rotated, some of them would be rotated differently than one by one.
        """
        scaling = self.network.scaling
        if scaling is None or scaling.type not in ("longrope", "dynamic"):
            return max_tokens
        left = scaling.original_context - seen - 1
        return max_tokens if scaling.type == "longrope" and left < -1 else max(0, min(max_tokens, left))

    @property
    def _compiles(self) -> bool:
        """Return whether there is an executor for a few tokens: not for models that end in hidden states or have an
        encoder.
        """
        block, other = self.network.block, self.encoder_decoder or self.encoder or self.codes
        runs_here = self.device is None and not other
        return runs_here and not block.hidden_states and block.causal and bool(self.network.layers)

    @property
    def _is_plain(self) -> bool:
        """Return whether nothing is observed, and products are exact."""
        plain = self.precision == "float32" and self.observe is None and self.sparsity is None
        return plain and self.profile is None and self.observe_experts is None

    @cached_property
    def _compiled(self) -> CompiledGraph | None:
        """Return the executor for a few tokens, if the model has one."""
        if not self._compiles:
            return None
        return CompiledGraph(self.network, decoder.graph_of(self.network), self.threads)

    def _steps_for(self, tokens: int, cache: KVCache) -> CompiledGraph | None:
        """Return the compiled graph for this many tokens of a text, if they are few and nothing is observed."""
        plain, scaling = self._is_plain and not cache.memory, self.network.scaling
        if scaling is not None and scaling.type in ("longrope", "dynamic") and tokens > MAX_TOKENS:
            return None  # the text's length decides how it is rotated: all of these tokens at once
        return self._compiled if plain and tokens <= MAX_STEPS * MAX_TOKENS else None

    def lazy_logits(self, tokens: ArrayLike, first: int = 0, exact: bool = False) -> LazyLogits:
        """Return `forward` without a cache, with logits computed on demand.

        exact: with the precision "exact" instead of the model's. Raises ModelError for a model that ends in hidden
        states.
        """
        ids = self._checked(tokens)
        result = self._evaluate(ids.reshape(-1, ids.shape[-1]), None, first, exact=exact)
        if not isinstance(result, LazyLogits):
            raise ModelError(f"{self.architecture.name} gives no logits: it ends in hidden states")
        return in_shape(result, *ids.shape[:-1])

    def hidden_states(self, tokens: ArrayLike) -> Floats:
        """Return the last norm's output for equally long independent texts: (texts, n, width).

        tokens: ids (texts, n). Of an encoder-decoder model: the encoder's. Raises ModelError as `forward` does.
        """
        ids = self._checked(tokens)
        if self.encoder_decoder is not None:
            with one_thread():
                read = [encoder_decoder.read(self.new_pass(1, len(each)), self.encoder_decoder, each) for each in ids]
            return np.stack(read)
        result = self._evaluate(ids, None, 0)
        states = result.x if isinstance(result, LazyLogits) else result
        if not np.isfinite(states).all():
            raise ModelError("hidden states are not finite: the file's weights are damaged", DAMAGED)
        return states.reshape(*ids.shape, -1)

    @cached_property
    def branches(self) -> bool:
        """Return whether `branched_logits` supports the model: only plain attention mixes tokens."""
        plain = self.encoder_decoder is None and "altup_proj.weight" not in self.tensors and self.observe is None
        return plain and supports_branches(self.network)

    @cached_property
    def trees(self) -> bool:
        """Return whether `lazy_forward` supports trees of tokens."""
        plain = self.encoder_decoder is None and "altup_proj.weight" not in self.tensors
        return plain and supports_trees(self.network)

    def branched_logits(self, branches: Branches) -> LazyLogits:
        """Return logits of texts with common beginnings: x (tokens, width) in their order. Raises ModelError as
        `forward` does.
        """
        result = self._evaluate(self._checked(branches.tokens).reshape(1, -1), None, 0, branches)
        if not isinstance(result, LazyLogits):
            raise ModelError(f"{self.architecture.name} gives no logits: it ends in hidden states")
        return result

    @cached_property
    def next_tokens(self) -> Network:
        """Return the MTP layer's network. Raises ModelError if there is none, or an unsupported one."""
        return next_token_network(self.network, self.architecture, self.metadata, self.tensors)

    def mtp_logits(self, tokens: ArrayLike, hidden: Floats) -> LazyLogits:
        """Return the MTP layer's output for texts: x (texts, n - 1, width).

        tokens: ids (texts, n). hidden: `LazyLogits.states` of them, (texts, n, width or streams * width). The logits of
        position i are of token i + 2. Raises ModelError for a model without such a layer, and if numbers stop being
        finite.
        """
        ids = self._checked(tokens)
        forward = ForwardContext(
            self.next_tokens,
            len(ids),
            ids.shape[1] - 1,
            None,
            self.threads,
            self.precision,
            self.observe,
            profile=self.profile,
            observe_experts=self.observe_experts,
            device=self.device,
        )
        rows = self.mtp_input(np.ascontiguousarray(hidden[:, :-1]).reshape(-1, hidden.shape[-1]))
        with one_thread():
            result = mtp_forward(forward, rows, np.ascontiguousarray(ids[:, 1:]).reshape(-1))
        return in_shape(result, len(ids))

    def mtp_input(self, states: Floats, reader: Network | None = None) -> Floats:
        """Return an MTP layer's input from `LazyLogits.states`, (tokens, streams * width): one stream if it reads one.

        reader: of another file, None for the model's own.
        """
        count, reader = "hyper_connection.count", reader or self.next_tokens
        if self.network.keys.get(count) is None or reader.keys.get(count) is not None:
            return states
        with one_thread():
            forward = ForwardContext(
                self.network, 1, len(states), None, self.threads, self.precision, device=self.device
            )
            return one_stream(forward, states)

    def mtp_forward(self, hidden: Floats, following: Sequence[int], cache: KVCache | None) -> LazyLogits:
        """Return `mtp_logits` of one text as it grows: x (n, width). hidden (n, width): of its next positions.
        following: the token after each of these.
        """
        ids = self._checked(following)
        forward = ForwardContext(
            self.next_tokens, 1, len(ids), cache, self.threads, self.precision, profile=self.profile, device=self.device
        )
        with one_thread():
            return mtp_forward(forward, hidden, ids)

    def _evaluate(
        self,
        texts: Ids,
        cache: KVCache | None,
        first: int,
        branches: Branches | None = None,
        tree: TokenTree | None = None,
        images: Sequence[EmbeddedImage] = (),
        noted: dict[int, Floats] | None = None,
        exact: bool = False,
    ) -> LazyLogits | Floats:
        """Return `head` for positions `first` and on of each text, one after the other.

        noted: of `ForwardContext`. exact: of `lazy_logits`.
        """
        if images:
            self._check_images(images, texts)
        if self.encoder is not None:
            with one_thread():
                read = [encoder_decoder.read(self.new_pass(1, len(each)), self.encoder, each) for each in texts]
            return np.concatenate([states[first:] for states in read])
        if self.codes is not None:
            with one_thread():
                made = [spectra(self.new_pass(1, len(each)), self.codes, each) for each in texts]
            return np.concatenate([frames[first:] for frames in made])
        plain = cache is None and branches is None and tree is None and noted is None
        if (
            plain
            and self._ahead is not None
            and (result := self._ahead.take(AheadBatch(texts, first, exact))) is not None
        ):
            return self._headed(*result, first)
        forward = self.new_pass(len(texts), texts.shape[1], cache, branches, tree, images, exact)
        forward.noted = {} if noted is None else noted
        forward.tokens = texts.reshape(-1)
        with one_thread():  # for the same bits whatever threads others use
            x = forward.finite("token_embd.weight", embed(forward, texts.reshape(-1)))
            if self.encoder_decoder is not None:
                x = forward.from_position(first, encoder_decoder.decode(forward, self.encoder_decoder, x))
            else:  # observers get the inputs at all positions
                x = decoder.decode(forward, x, 0 if self.observe else first)
                return self._headed(forward, x, first, cache)
            if cache is not None and forward.next_position is not None:
                cache.shift_to(forward.next_position)
            return head(forward, x)

    def _headed(
        self, forward: ForwardContext, x: Floats, first: int, cache: KVCache | None = None
    ) -> LazyLogits | Floats:
        """Return `head` for x, the last layer's output at positions `first` and on, or at all if there are
        observers.
        """
        if self.observe is not None:
            x = forward.from_position(first, x)
            forward.streams = None if first else forward.streams
        if cache is not None and forward.next_position is not None:
            cache.shift_to(forward.next_position)
        with one_thread():
            return head(forward, x)

    def bytes_on_device(self, tokens: int) -> int:
        """Return the bytes that the model's device needs for all weights and for a pass of so many tokens."""
        assert self.device is not None
        if self.encoder_decoder or self.encoder or self.codes:
            return self.device.bytes_of(self.tensors.values())
        graph = decoder.graph_of(self.network, self.sparsity is not None)
        weights = [*weights_of(graph), output_of(self.network).weight]
        return self.device.bytes_of(weights) + bytes_of_values(graph, 1, tokens)

    def tokens_at_once(self, length: int) -> int:
        """Return how many tokens, of whole texts of this length, the model's device best computes together."""
        assert self.device is not None
        if self.encoder_decoder or self.encoder or self.codes:
            return length
        graph = decoder.graph_of(self.network, self.sparsity is not None)
        return self.device.tokens_at_once(graph, length, [output_of(self.network).weight])

    def prepare(self, batches: Iterable[Batch | tuple[ArrayLike, int]], options: AheadOptions | None = None) -> Ahead:
        """Say what `lazy_logits` will be asked for, in which order; a device that reads weights layer by layer then
        computes many batches at once, when the first of them is asked for.

        batches: its arguments. Observers have to be set before, and get all that batches make
        when they are computed. Changes nothing where one batch after another is as good. What is not asked for is
        dropped by the next call, or at the end of the block: `with model.prepare(batches): ...`. Raises ModelError for
        an id outside the vocabulary; `lazy_logits` raises what computing a group raises.
        """
        options = options or AheadOptions()
        self._ahead = None
        ahead = Ahead(self._groups_ahead(batches, options), partial(self._compute_ahead, options), options)
        self._ahead = ahead
        return ahead

    def _groups_ahead(
        self, batches: Iterable[Batch | tuple[ArrayLike, int]], options: AheadOptions
    ) -> list[list[AheadBatch]]:
        """Return batches in groups that are computed together; none if each is as well computed alone."""
        if self.device is None or self.encoder_decoder or self.encoder or self.codes:
            return []
        shaped = []
        for given in batches:
            batch = Batch(*given)
            ids = self._checked(batch.tokens)
            shaped.append(AheadBatch(ids.reshape(-1, ids.shape[-1]), batch.first, batch.exact))
        graph = decoder.graph_of(self.network, self.sparsity is not None)
        largest = max(shaped, key=lambda each: each.ids.size, default=None)
        weights = [*weights_of(graph), output_of(self.network).weight]
        if largest is None or not self.device.streams(weights, bytes_of_values(graph, *largest.ids.shape)):
            return []
        return groups_of(shaped, partial(bytes_between, graph), options.host_memory)

    def _compute_ahead(
        self, options: AheadOptions, batches: Sequence[AheadBatch], progress: Callable[[int, int], None] | None
    ) -> Iterator[tuple[ForwardContext, Floats]]:
        """Yield the output of the last layer for each batch, with its pass."""
        assert self.device is not None
        passes = []
        for batch in batches:
            texts, length = batch.ids.shape
            forward = self.new_pass(texts, length, exact=batch.exact)
            forward.tokens, forward.first = batch.ids.reshape(-1), 0 if self.observe else batch.first
            with one_thread():
                passes.append((forward, forward.finite("token_embd.weight", embed(forward, forward.tokens))))
        graph = decoder.graph_of(self.network, self.sparsity is not None)
        results = self.device.stream(graph, passes, replace(options, progress=progress))
        for (forward, _), x in zip(passes, results, strict=True):
            yield forward, x

    def _check_images(self, images: Sequence[EmbeddedImage], texts: Ids) -> None:
        """Raise OptionError or ModelError for images that cannot be used."""
        longrope = self.network.scaling is not None and self.network.scaling.type == "longrope"
        if self.encoder_decoder or self.encoder or longrope:
            raise ModelError(f"images are not run with {self.architecture.name} models")
        if len(texts) > 1:
            raise OptionError(f"images stand in one text, not in {len(texts)}")
        check_images(images, texts.shape[1], self.network.hparams.width, self.network.deepstack)


def _pieces(ids: Ids) -> list[Ids]:
    """Yield pieces of as many tokens as the operations take."""
    return [ids[at : at + MAX_TOKENS] for at in range(0, ids.size, MAX_TOKENS)]


def _groups(numbers: Sequence[int], counts: Sequence[int], cache_types: Sequence[CacheType]) -> list[list[int]]:
    """Return texts that fit in one pass: of caches of one type, at most MAX_TOKENS tokens."""
    groups, tokens = list[list[int]](), 0
    for number in sorted(numbers, key=lambda each: cache_types[each]):
        if groups and cache_types[groups[-1][0]] == cache_types[number] and tokens + counts[number] <= MAX_TOKENS:
            groups[-1].append(number)
        else:
            groups.append([number])
            tokens = 0
        tokens += counts[number]
    return groups


def _attempted(compute: Callable[[], Floats]) -> Floats | ModelError:
    try:
        return compute()
    except ModelError as error:
        return error


def _layers(grouped: Mapping[str, Layer], numbers: HParams) -> tuple[Layer, ...]:
    """Return all layers in the order in which they run; repeated layers share the file's tensors."""

    def tensors_of(index: int, own: LayerHParams) -> Mapping[str, Tensor]:
        layer = grouped.get(f"blk.{index if own.stored is None else own.stored}.")
        return layer.tensors if layer else {}

    return tuple(Layer(f"blk.{i}.", tensors_of(i, own)) for i, own in enumerate(numbers.layers))


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Check norms and biases, which are few enough, for finite values before anything runs; matrices show in the
    outputs.
    """
    for name, tensor in tensors.items():
        if len(tensor.shape) != 1 or tensor.format.is_quantized:
            continue
        values = tensor.float32()
        wrong = np.flatnonzero(~np.isfinite(values))
        # a bias of -infinity bars a token
        if len(wrong) and not (name == "output.bias" and np.isneginf(values[wrong]).all()):
            raise ModelError(f"{name!r} holds {values[wrong[0]]} at {wrong[0]}; all have to be finite", hint=DAMAGED)

"""DFlash (1 and 2) and DSpark draft models: a block of tokens written at once, from the target's states.

The inputs of some of the target's layers become keys and values of the draft model's own layers. A block is the last
token and as many mask tokens as are to be drafted; all of its tokens attend to each other, and to those keys. DSpark
adds to the logits of each the contribution of the token before it (a Markov head), here the one that was drawn; DFlash
2 selects with it from the likeliest few (`selector.py`). DeepSeek V4's DSpark has that model's layers: streams, and one
key a token. Facts: llama.cpp's graph of `dflash`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from archs.spec import Architecture
from quants import Tensor
from quants.errors import ModelError

from .. import ops, streams
from ..arrays import Floats, Ids
from ..decoder import begin, ended, feed_forward, shared_keys, through_block_layer
from ..kernels.blas import one_thread
from ..kv_cache import KVCache
from ..layer import ForwardContext, Layer
from ..mixers.attention import AttentionOptions, attend
from ..model import RunningModel
from ..products.matmul import gather, matmul
from ..rope import apply_rope
from ..sampling.sampler import State
from .acceptance import Candidate
from .drafts import Drawing
from .readers import Tables, check_layers, draft_network
from .selector import AFTER, BEFORE, Convolution, Selector
from .trees import DraftTree, comb

MASK = "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True)
class Written:
    """Results for drafted tokens: logits (tokens, words of the draft), and for a selector its input (tokens, rank)."""

    logits: Floats
    gates: Floats | None


class BlockWriter:
    """Such a draft model's file, ready to run with a model. layers: of the model those whose inputs it reads."""

    def __init__(
        self,
        model: RunningModel,
        architecture: Architecture,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
    ) -> None:
        """Load the file. model: the target. Raises ModelError if they don't belong together, or the file contradicts
        itself.
        """
        self.network = draft_network(architecture, metadata, tensors)
        keys, own = self.network.keys, self.network.global_tensors
        self.model, self.layers = model, tuple(int(layer) for layer in keys.need("target_layers"))
        self.tables = Tables.of(self.network, model)
        self.markov = "markov_w1.weight" in own
        self.selector = Selector(own, int(keys.need("selector_top_k"))) if "selector_hidden.weight" in own else None
        self.mask, self.words = int(metadata.get(MASK, -1)), model.vocabulary_size
        self.anchored = self.markov and bool(keys.get("sample_from_anchor"))
        self.max_tokens = int(keys.need("block_size")) - (not self.anchored)
        self.causal = bool(keys.get("attention.causal"))
        self._check(model)

    def _check(self, model: RunningModel) -> None:
        width, own = model.network.hparams.width, self.network.global_tensors
        check_layers(model, self.layers)
        if own.need("fc.weight").width != width * len(self.layers):
            raise ModelError(f"the draft was made for other states than the model's, which are {width} wide")
        if not 0 <= self.mask < self.tables.table.rows:
            raise ModelError(f"the draft's '{MASK}' is {self.mask}; its embedding has {self.tables.table.rows} rows")
        self.tables.check(self.network)
        rows = [own.need(f"markov_w{i}.weight") for i in (1, 2)] if self.markov else []
        if rows and (rows[0].width != rows[1].width or rows[1].rows != self.tables.output.rows):
            raise ModelError("the draft's Markov head does not fit its output")
        words = self.tables.output.rows if self.tables.drafted is None else self.words
        if self.selector is not None and self.selector.after.rows < words:
            raise ModelError(f"the draft's selector knows {self.selector.after.rows} tokens; the model has {words}")
        if self.tables.drafted is not None and (
            self.tables.drafted.max(initial=0) >= self.words or len(self.tables.drafted) != self.tables.output.rows
        ):
            raise ModelError(f"the draft's 'd2t' does not fit its output of {self.tables.output.rows} rows")

    def keep(self, states: Floats, cache: KVCache) -> None:
        """Add keys and values of tokens that follow those in the draft model's cache. states: the inputs of the
        target's layers.
        """
        forward, outside = self._pass(len(states), cache.length), self.network.global_tensors
        with one_thread():
            x = forward.norm(outside, "enc.output_norm", forward.project(outside, "fc", states))
            for layer in self.network.layers:
                cache.append(layer.index, *self._keys_values(forward, layer, x))

    def block(self, last: int, drafted: int, cache: KVCache) -> Floats:
        """Return the layers' output for the drafted tokens of a block after those in the cache, (drafted, width).

        last: the token after those in the cache.
        """
        count = drafted + (not self.anchored)
        forward = self._pass(count, cache.length)
        ids = np.array([last if last < self.tables.table.rows else 0, *[self.mask] * (count - 1)])
        with one_thread():
            x = begin(forward, gather(self.tables.table, ids) * np.float32(self.network.hparams.embedding_scale))
            for layer in self.network.layers:
                x = forward.finite("the draft's layer", self._through(forward, layer, x, cache))
            x = ended(forward, x[count - drafted :])
            return forward.norm(self.network.global_tensors, "output_norm", x)

    def written(self, x: Floats) -> Written:
        """Return logits from the output of `block`."""
        logits = self._product(x, self.tables.output)
        if self.selector is None:
            return Written(logits, None)
        logits *= np.float32(self.network.hparams.logit_scale)
        if self.network.hparams.logit_softcap:
            ops.softcap(logits, self.network.hparams.logit_softcap)
        return Written(logits, self._product(x, self.selector.hidden))

    def _through(self, forward: ForwardContext, layer: Layer, x: Floats, cache: KVCache) -> Floats:
        if streams.MIXED in layer:
            forward.shared_keys[layer.index] = cache.read(layer.index)
            return through_block_layer(forward, layer, x)
        own, threads = forward.numbers(layer), self.model.threads
        normed = forward.norm(layer, "attn_norm", x)
        around = Convolution(forward, layer, "attn", normed) if "attn_conv_base" in layer else None
        if around is not None:
            normed = around.over(normed, BEFORE)
        q = forward.project(layer, "attn_q", normed).reshape(len(x), own.heads, own.key_width)
        q = apply_rope(forward.norm(layer, "attn_q_norm", q), *forward.rope(own), forward.hparams.rope, threads)
        both = zip(cache.read(layer.index), self._keys_values(forward, layer, normed), strict=True)
        k, v = (np.concatenate(each) for each in both)
        options = AttentionOptions(window=own.window, causal=self.causal, sinks=layer.array("attn_sinks.weight"))
        mixed = attend(q, k, v, forward.positions, own.attention_scale, options, threads=threads)
        mixed *= np.float32(forward.hparams.value_scale)
        mixed = forward.project(layer, "attn_output", mixed)
        if around is not None:
            mixed = around.over(mixed, AFTER)
        x = x + forward.norm_if_there(layer, "post_attention_norm", mixed)
        x = x + forward.norm_if_there(layer, "post_ffw_norm", self._fed(forward, layer, x))
        factor = layer.array("layer_output_scale.weight")
        return x if factor is None else x * factor

    def _fed(self, forward: ForwardContext, layer: Layer, x: Floats) -> Floats:
        normed = forward.norm(layer, "ffn_norm", x)
        if "ffn_conv_base" not in layer:
            return feed_forward(forward, layer, normed)
        around = Convolution(forward, layer, "ffn", normed)
        return around.over(feed_forward(forward, layer, around.over(normed, BEFORE)), AFTER)

    def _keys_values(self, forward: ForwardContext, layer: Layer, x: Floats) -> tuple[Floats, Floats]:
        if streams.MIXED in layer:
            keys = shared_keys(forward, layer, x)
            return keys, keys[:, :, :0]  # keys are values, too
        own = forward.numbers(layer)
        k = forward.project(layer, "attn_k", x).reshape(len(x), own.kv_heads, own.key_width)
        if "attn_v.weight" in layer:
            v = forward.project(layer, "attn_v", x).reshape(len(x), own.kv_heads, own.value_width)
        else:  # keys are also values
            v = ops.rms_norm(k, None, forward.hparams.eps, forward.threads)
        k = forward.norm(layer, "attn_k_norm", k)
        return apply_rope(k, *forward.rope(own), forward.hparams.rope, forward.threads), v

    def logits(self, written: Written, place: int, before: int) -> Floats:
        """Return logits of the model's tokens, (vocabulary,). before: the token before the drafted one."""
        row = self._placed(self._with_markov_head(written.logits[place], before))
        if self.selector is None or written.gates is None:
            return row
        return self.selector.scores(row, written.gates[place], before)

    def _with_markov_head(self, row: Floats, before: int) -> Floats:
        """Return logits of the draft model's own tokens, with the Markov head's contribution."""
        if self.markov:
            outside = self.network.global_tensors
            w1, w2 = outside.need("markov_w1.weight"), outside.need("markov_w2.weight")
            embedded = gather(w1, np.array([before if before < w1.rows else 0]))
            row = row + self._product(embedded, w2)[0]
        return row

    def _product(self, x: Floats, weight: Tensor) -> Floats:
        return matmul(x, weight, threads=self.model.threads, precision=self.model.precision)

    def _placed(self, row: Floats) -> Floats:
        if self.tables.drafted is None:
            return row
        placed = np.full(self.words, -np.inf, np.float32)
        placed[self.tables.drafted] = row
        return placed

    def _pass(self, tokens: int, seen: int) -> ForwardContext:
        forward = ForwardContext(self.network, 1, tokens, None, self.model.threads, self.model.precision)
        positions: Ids = np.arange(seen, seen + tokens, dtype=np.int64)
        forward.positions = forward.rotated_at = positions
        return forward


class BlockDrafter:
    """Drafter with a block; its cache covers the tokens in the model's cache."""

    reads_states = True

    def __init__(self, writer: BlockWriter, drawing: Drawing) -> None:
        self.writer, self.drawing, self.layers, self.cache = writer, drawing, writer.layers, KVCache()

    def read(self, prompt: Sequence[int]) -> None:
        """Ignore the prompt: only states matter."""

    def propose(self, text: Sequence[int], max_tokens: int, state: State) -> DraftTree:
        if not self.cache.length:
            return DraftTree()
        max_tokens, token = min(max_tokens, self.writer.max_tokens), text[-1]
        if max_tokens < 1:
            return DraftTree()
        written = self.writer.written(self.writer.block(token, max_tokens, self.cache))
        places: list[list[Candidate]] = []
        for place in range(max_tokens):
            candidates = self.drawing.candidates(self.writer.logits(written, place, token), state)
            if not candidates:
                break
            places.append(candidates)
            state, token = self.drawing.after(state, candidates[0]), candidates[0].token
        return comb(places)

    def follow(self, states: Floats) -> None:
        self.writer.keep(states, self.cache)

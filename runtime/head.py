"""The head after the last layer: its norm, and lazily computed logits.

The logits of one window over a large vocabulary take hundreds of MB, of which perplexity needs one number a row. Here a
tile of the vocabulary is multiplied, folded into each row's sum of exponentials, and dropped.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from archs.transforms import concatenated, zeros
from quants import Tensor

from . import ops
from .arrays import Doubles, Floats, Ids
from .kernels.softmax import fold_tile
from .kernels.threads import parallel, shares
from .layer import ForwardContext, Network
from .products import eight_bit_product, integer_product
from .products.matmul import decoded_tiles, matmul
from .products.precision import Precision, as_multiplied
from .profile import Profile

Finish = Callable[[Floats, int], Floats]
Columns = Callable[[int, int], Iterator[tuple[int, Floats]]]  # products with rows first … last - 1

TILE = 1 << 19  # weights of a tile


@dataclass(frozen=True)
class LazyLogits:
    """finish(x @ weight.T), computed on demand.

    x: float32 (positions, width) or (windows, positions, width), the output of the model's last norm. finish: what the
    model does to its logits (a bias, a scale, a cap): called with float32 (rows, k) and the number of the first of
    these k columns, it may work in place and returns the result. threads, precision: of the product; profile: gets the
    time of losses. streams: the model's several streams if x is a mean of them, (…, streams * width).
    """

    x: Floats
    weight: Tensor
    finish: Finish | None = None
    threads: int = 1
    precision: Precision = "float32"
    profile: Profile | None = None
    streams: Floats | None = None

    @property
    def states(self) -> Floats:
        """Return an MTP layer's input at each position."""
        return self.x if self.streams is None else self.streams

    @property
    def may_round(self) -> bool:
        """Return whether products may be rounded: nothing discrete depends on them."""
        return integer_product.saves(self.x.shape[-2], *self.weight.shape)

    def float32(self) -> Floats:
        """Return all logits: float32, the last axis of x replaced by the vocabulary."""
        rows = self.x.reshape(-1, self.x.shape[-1])
        product = matmul(rows, self.weight, threads=self.threads, precision=self.precision, may_round=self.may_round)
        finished = product if self.finish is None else self.finish(product, 0)
        return finished.reshape(*self.x.shape[:-1], -1)

    def losses(self, targets: Ids) -> Doubles:
        """Return -log(probability) of targets (…, k) at the first k positions of each window: float64 (…, k)."""
        with self.profile.timed("vocabulary") if self.profile else nullcontext():
            return self._losses(targets)

    def _losses(self, targets: Ids) -> Doubles:
        rows = np.ascontiguousarray(self.x[..., : targets.shape[-1], :]).reshape(-1, self.x.shape[-1])
        wanted = np.ascontiguousarray(targets, np.int64).reshape(-1)
        rounds = self.precision == "float32" and self.may_round
        if rounds and integer_product.is_faster(len(rows), *self.weight.shape):
            inputs = integer_product.packed(rows, self.threads)
            state = self._folded_integers(wanted, partial(integer_product.columns, inputs, self.weight))
        elif self.precision == "llama.cpp" and eight_bit_product.is_faster(len(rows), self.weight.rows, self.weight):
            rounded = eight_bit_product.rounded(rows, self.weight.format.activations, self.threads)
            packed = eight_bit_product.packed(rounded, self.threads)
            state = self._folded_integers(wanted, partial(eight_bit_product.columns, packed, self.weight))
        else:
            state = self._folded(rows, wanted)
        losses: Doubles = state[:, 0] + np.log(state[:, 1]) - state[:, 2]
        return losses.reshape(targets.shape)

    def _folded_integers(self, wanted: Ids, columns: Columns) -> Doubles:
        """Return the state of `fold_tile` after the whole vocabulary, each thread with its own tokens."""
        states = dict[int, Doubles]()

        def fold(start: int, stop: int) -> None:
            state = no_state(len(wanted))
            for first, logits in columns(start, stop):
                fold_tile(logits if self.finish is None else self.finish(logits, first), wanted, first, state)
            states[start] = state

        parallel(fold, shares(self.weight.rows, integer_product.COLUMNS, 4 * self.threads), self.threads)
        return merged([states[start] for start in sorted(states)])  # in a fixed order of threads

    def _folded(self, rows: Floats, wanted: Ids) -> Doubles:
        """Return `_folded_integers` in float32: each thread takes its own inputs."""
        rows, state = as_multiplied(rows, self.weight.format.name, self.precision), no_state(len(rows))
        pieces = shares(len(rows), max(1, len(rows) // (2 * self.threads)), self.threads)

        for first, tile in decoded_tiles(self.weight, 0, self.weight.rows, TILE, self.threads):

            def fold(start: int, stop: int, first: int = first, tile: Floats = tile) -> None:
                logits = rows[start:stop] @ tile.T
                finished = logits if self.finish is None else self.finish(logits, first)
                fold_tile(finished, wanted[start:stop], first, state[start:stop])

            parallel(fold, pieces, self.threads)
        return state


def in_shape(logits: LazyLogits, *texts: int) -> LazyLogits:
    """Return these logits in the shape of texts: x (texts, positions, width)."""
    x, streams = logits.x, logits.streams
    streams = None if streams is None else streams.reshape(*texts, -1, streams.shape[-1])
    return replace(logits, x=x.reshape(*texts, -1, x.shape[-1]), streams=streams)


def no_state(rows: int) -> Doubles:
    """Return the initial state of each row: the largest logit so far, the sum of e^(logit - largest), the target's
    logit.
    """
    return np.array([[-np.inf, 0.0, 0.0]]).repeat(rows, axis=0)


def merged(states: list[Doubles]) -> Doubles:
    """Return the state of rows over tokens that were folded separately."""
    every = np.stack(states)
    top = every[:, :, 0].max(axis=0)
    sums = (every[:, :, 1] * np.exp(every[:, :, 0] - top)).sum(axis=0)
    return np.stack([top, sums, every[:, :, 2].sum(axis=0)], axis=1)


def head(forward: ForwardContext, x: Floats) -> LazyLogits | Floats:
    """Return lazy logits of x (positions, width); or the last hidden states if the model ends there."""
    tensors, threads = forward.global_tensors, forward.threads
    x = forward.norm(tensors, forward.block.output_norm, x)
    if forward.block.hidden_states:
        return x
    if "output_proj.weight" in tensors:
        x = forward.project(tensors, "output_proj", x)
    output = output_of(forward.network)
    if forward.observe:
        forward.observe(output.weight.name, x, 0, 1)
    finish = output.finish(threads)
    logits = LazyLogits(x, output.weight, finish, threads, forward.precision, forward.profile, forward.streams)
    return logits if forward.device is None else forward.device.logits(logits, output)


@dataclass(frozen=True)
class Output:
    """The output layer: a matrix, and the steps after it.

    bias: float32 (vocabulary,) or None. scale: of the sum of both. softcap: bound by tanh. never: ids, from … to, of
    tokens that are never generated, whose logits are the lowest number.
    """

    weight: Tensor
    bias: Floats | None = None
    scale: float = 1.0
    softcap: float | None = None
    never: tuple[int, int] = (0, 0)

    def finish(self, threads: int) -> Finish:
        bias, scale, cap, (low, high) = self.bias, np.float32(self.scale), self.softcap, self.never

        def finish(logits: Floats, first: int) -> Floats:
            if bias is not None:
                logits += bias[first : first + logits.shape[1]]
            if scale != 1:
                logits *= scale
            if low < high:
                logits[:, max(0, low - first) : max(0, high - first)] = np.finfo(np.float32).min
            return ops.softcap(logits, cap, threads) if cap else logits

        return finish


def output_of(network: Network) -> Output:
    """Return the output layer of this model."""
    hparams, tensors = network.hparams, network.global_tensors
    name = "output" if "output.weight" in tensors else "token_embd"
    bias = tensors.array("output.bias")  # which a tied head may have, too
    scale = hparams.logit_scale * (hparams.tied_logit_scale if name == "token_embd" else 1)
    weight, never = tensors.need(f"{name}.weight"), network.block.suppressed_ids
    if lacking := tensors.need("token_embd.weight").rows - weight.rows if network.block.last_tokens else 0:
        weight, never = concatenated([zeros(weight, lacking), weight], weight.name), (0, lacking)
    return Output(weight, bias, scale, hparams.logit_softcap, never if never[1] < weight.rows else (0, 0))

"""Encode a model's weights with error feedback, one layer after another.

Each layer is run on what the earlier, already encoded layers make of the calibration texts. So its weights are fitted
to the inputs that they will have. In part they also compensate the errors of these inputs: the texts go through the
original's layers, too. Then the layer is encoded, and the texts go through it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quants import Format
from quants.arguments import thread_count

from ..models.devices import running_on
from ..models.model import Model
from ..quantization.planning import Planned, PrunedModel
from ..writing.items import Item
from ..writing.options import WriteOptions
from ..writing.row_blocks import Progress
from .bounds import columns_on, windows_on
from .choosing import Chosen, Piece, choose, combined, pieces_of
from .computed import Computed, computed_for
from .encoded import Encoded
from .row_tasks import Workers
from .texts import Calibration, Windows, split_evenly

if TYPE_CHECKING:
    from runtime.hessians import Hessians
    from runtime.layer import Layer
    from runtime.layerwise import Batch
    from runtime.model import RunningModel
    from runtime.products.block_diagonal import BlockDiagonal

Floats = NDArray[np.float32]
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


def wanted_items(planned: Planned) -> dict[str, Item]:
    """Return the items that feedback may encode: weights of products that get a block format."""
    return {
        item.tensor.name: item
        for file in planned.files
        for item in file.items
        if item.format.is_quantized and not item.is_copy and item.format.has_codec and len(item.tensor.shape) in (2, 3)
    }


def encode_layers(
    model: Model,
    layers: PrunedModel,
    items: Mapping[str, Item],
    windows: Windows,
    kept: Encoded,
    calibration: Calibration,
    write: WriteOptions,
    workers: Workers | None = None,
) -> None:
    """Encode the weights of `items` that products of the model use, into `kept`.

    layers: the model as it is written, by the output's names. calibration: where it is computed, and the bytes that
    matrices of a layer's inputs may take (see `columns_within`). write: threads, and progress(bytes of weights done, of
    how many, layer). workers: encode rows instead of this process. Raises ModelError for a model that cannot be run
    layer by layer, FileError, OptionError for a device that cannot be used.
    """
    threads, progress = thread_count(write.threads), write.progress or (lambda *_: None)
    net = running_on(calibration.device, layers.metadata, layers.tensors, threads=threads)
    at_once = windows_on(net, model, windows.fitted.shape[1])
    computed = computed_for(net)
    _Work(net, items, kept, windows, at_once, calibration.memory, computed, progress, workers).run()


@dataclass
class _Work:
    """Run a model layer by layer, on texts that weights are fitted to and on held-back ones."""

    net: "RunningModel"
    items: Mapping[str, Item]
    kept: Encoded
    windows: Windows
    at_once: int
    memory: int
    computed: Computed
    progress: Progress
    workers: Workers | None

    def run(self) -> None:
        from runtime import layerwise

        layers = self.net.network.layers
        if self._wants(EMBEDDING) and HEAD in self.net.tensors:
            self._encode_embedding(layers[0])
        fitted, held = self._begin(self.windows.fitted), self._begin(self.windows.held)
        aims = [self._begin(ids, as_it_was=True) for ids in (self.windows.fitted, self.windows.held)]
        for layer in layers:
            self._tell(layer.prefix.rstrip("."))
            names = [tensor.name for tensor in layer.tensors.values() if tensor.name in self.items]
            if any(map(self._wants, names)):
                hessians, held_hessians = self._hessians(names), self._hessians(names)
                layerwise.watch_differences(fitted, aims[0], layer, hessians)
                layerwise.watch_differences(held, aims[1], layer, held_hessians)
                for name in filter(self._wants, names):
                    self._encode(name, hessians, held_hessians)
            else:
                layerwise.advance(chain(*aims), layer)
            changed = [self.kept.tensors[name] for name in names if name in self.kept.tensors]
            encoded = layerwise.with_tensors(layer, changed)
            layerwise.advance(fitted, encoded)
            layerwise.advance(held, encoded)
            for each in (layer, encoded):
                layerwise.drop(self.net, each)
        if self._wants(HEAD):
            hessians, held_hessians = self._hessians([HEAD]), self._hessians([HEAD])
            layerwise.watch_head(fitted, HEAD, hessians)
            layerwise.watch_head(held, HEAD, held_hessians)
            self._encode(HEAD, hessians, held_hessians)
        self._tell("")

    def _tell(self, where: str) -> None:
        done = sum(item.tensor.nbytes for name, item in self.items.items() if name in self.kept.tensors)
        self.progress(done, sum(item.tensor.nbytes for item in self.items.values()), where)

    def _wants(self, name: str) -> bool:
        return name in self.items and name not in self.kept.tensors

    def _hessians(self, names: Iterable[str]) -> "Hessians":
        """Return empty matrices for the inputs of these weights."""
        from runtime import layerwise

        tensors = (self.items[name].tensor for name in names)
        return layerwise.hessians(self.net, columns_on(self.net.device, self.memory, tensors))

    def _begin(self, ids: NDArray[np.int64], as_it_was: bool = False) -> list["Batch"]:
        """Embed texts, with the output's embedding, or with the model's if `as_it_was`."""
        from runtime import layerwise

        net = self.net
        if EMBEDDING in self.kept.tensors and not as_it_was:
            changed = {**net.tensors, EMBEDDING: self.kept.tensors[EMBEDDING]}
            net = layerwise.changed_model(net, changed)
        return layerwise.begin(net, split_evenly(ids, self.at_once))

    def _encode(self, name: str, hessians: "Hessians", held_hessians: "Hessians") -> None:
        """Encode a weight, in pieces of rows that share inputs. One that no product used is encoded plainly later."""
        item = self.items[name]
        tensor = item.tensor
        seen = hessians.pieces(name, tensor.rows)
        if sum(stop - start for start, stop, _ in seen) != tensor.rows:
            return  # experts without any input
        pieces = pieces_of(seen, held_hessians.pieces(name, tensor.rows))
        chosen = combined([(piece.stop - piece.start, self._encode_piece(item, piece)) for piece in pieces])
        self.kept.keep(tensor, item.format, chosen.raw, chosen.as_dict())

    def _encode_piece(self, item: Item, piece: Piece) -> Chosen:
        values = item.tensor.float32(piece.start, piece.stop)
        importance, name = None, "plain"
        if item.importance is not None:
            share = item.tensor.rows // len(item.importance)
            importance, name = item.importance[piece.start // share], "importance matrix"
        before = partial(_encode_plainly, item.format, importance)
        elsewhere = None if self.workers is None else partial(self.workers.encode, item, piece.start)
        return choose(values, piece, item.format, before, name, self.computed, elsewhere)

    def _encode_embedding(self, first: "Layer") -> None:
        """Encode the token embedding by how an error in its rows changes the first products.

        Every row is an input. An error in a column counts by the weights that multiply it. That matrix needs no text.
        """
        from runtime import layerwise

        hessians = self._hessians([EMBEDDING])
        layerwise.watch(self._begin(self.windows.held[:1]), first, hessians)
        layerwise.drop(self.net, first)
        item, matrix = self.items[EMBEDDING], readers_of(self.net, first, hessians)
        if matrix is None or item.tensor.width != len(matrix):
            return
        matrix = self.computed.moved(matrix)
        chosen = self._encode_piece(item, Piece(0, item.tensor.rows, matrix, matrix))
        self.kept.keep(item.tensor, item.format, chosen.raw, chosen.as_dict())


def _encode_plainly(form: Format, importance: Floats | None, rows: Floats) -> NDArray[np.uint8]:
    return form.encode(rows, importance)


def readers_of(net: "RunningModel", layer: "Layer", hessians: "Hessians") -> "BlockDiagonal | None":
    """Return sum of W^T W over the products that read a layer's input, scaled as its norm does: (width, width).

    hessians: of a run through the layer; the products that share its first input count. None if no product reads what
    the norm gives.
    """
    from runtime.products.block_diagonal import BlockDiagonal

    if not hessians.of or "altup_router.weight" in layer:  # which reads it through another norm
        return None
    first = next(iter(hessians.of.values()))
    names = [name for (name, expert), products in hessians.of.items() if products is first and expert == 0]
    scale = layer.array("attn_norm.weight")
    blocks = [np.zeros(upper.shape) for upper in first.uppers]
    for name in names:
        weight = net.tensors[name].float32().reshape(-1, first.width).astype(np.float64)
        if scale is not None:
            weight *= scale
        if not net.network.block.norm.startswith("rms"):  # what all columns have in common is taken away
            weight -= weight.mean(axis=1)[:, None]
        begin = 0
        for block in blocks:
            mine = weight[:, begin : begin + len(block)]
            block += mine.T @ mine
            begin += len(block)
    return BlockDiagonal(tuple(blocks))

"""Decode audio codes to spectra by convolutions (WavTokenizer's decoder): units of a posnet, then ConvNeXt's blocks.

Source: llama.cpp b11434, `src/models/wavtokenizer-dec.cpp`; Vocos, whose blocks have the exact GELU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from archs.hparams.file_keys import Keys

from .arrays import Floats, Ids
from .graph.builder import Graph
from .graph.encoder_decoder import codes_graph
from .graph.executors import run
from .layer import ForwardContext, Layer, Network


@dataclass(frozen=True)
class AudioCodec:
    """The decoder's layers. units, blocks: in the order in which they run. groups, epsilon: of group norms."""

    units: tuple[Layer, ...]
    blocks: tuple[Layer, ...]
    groups: int
    epsilon: float


def decode_audio_codes(keys: Keys, layers: Mapping[str, Layer]) -> AudioCodec:
    """Return the decoder of a model's layers. layers: by prefix."""

    def of(name: str) -> Iterator[Layer]:
        yield from (layers[f"{name}.{i}."] for i in range(int(keys.need(f"{name}.block_count"))))

    groups, epsilon = (keys.need(f"attention.group_norm_{name}") for name in ("groups", "epsilon"))
    return AudioCodec(tuple(of("posnet")), tuple(of("convnext")), int(groups), float(epsilon))


def spectra(forward: ForwardContext, model: AudioCodec, codes: Ids) -> Floats:
    """Return the last matrix's output for each code of a clip (frames,): float32 (frames, width)."""
    forward.tokens = codes
    result: Floats = run(codes_graph_of(forward.network, model), forward, np.empty((0, 0), np.float32))
    return result


def codes_graph_of(network: Network, model: AudioCodec) -> Graph:
    """Return the graph from codes to spectra, built once."""
    if "codes" not in network.graphs:
        network.graphs["codes"] = codes_graph(network, model.units, model.blocks, model.groups, model.epsilon)
    graph: Graph = network.graphs["codes"]
    return graph

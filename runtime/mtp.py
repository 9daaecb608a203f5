"""The MTP layer after the last one (multi-token prediction; NextN in llama.cpp's files).

For each position it reads the model's hidden state and the embedding of the next token, and predicts the token after
that. The model itself runs without it.

Source: DeepSeek-V3's report (arXiv 2412.19437), section 2.2, and what llama.cpp runs: one such layer, which reads the
hidden states after the model's last norm; for Qwen4 Exp and DeepSeek V4 (its graphs of `qwen4exp`, `deepseek4`) the
streams after the last layer, each of which goes through one projection with the token. HY V4's and GLM-5-Next's read
one stream, taken after the norm (vLLM's and SGLang's code of them).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import read_hparams
from archs.layered import by_layer
from archs.mtp import COUNT, as_it_reads, check_beyond, for_each_layer, has_only_mtp, own_mixer
from archs.spec import Architecture
from quants import Tensor
from quants.errors import ModelError

from . import decoder, streams
from .arrays import Floats, Ids
from .head import LazyLogits, output_of
from .layer import ForwardContext, Layer, Network
from .products.matmul import gather


def next_token_network(
    network: Network, architecture: Architecture, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Network:
    """Return the network of the MTP layer only. Raises ModelError for a model without one, or with an unsupported
    one.
    """
    name = architecture.name
    count, last = int(network.keys.get(COUNT)), int(network.keys.need("block_count")) - 1
    layer = Layer(f"blk.{last}.", by_layer(tensors).get(f"blk.{last}.", {}))
    if not count or not any(role.startswith("nextn.") for role in layer.tensors):
        hint = f"'{name}.{COUNT}' is {count}; `gguftools show` lists the tensors"
        raise ModelError("the file has no MTP layer (blk.N.nextn.…)", hint)
    other_streams = streams.MIXED in layer and not has_only_mtp(metadata, tensors)
    if count > 1 or network.hparams.parallel or other_streams:
        what = f"there are {count}" if count > 1 else f"it is not known how one of {name} computes"
        raise ModelError(f"MTP layers like these can't run here: {what}")
    check_beyond(architecture, metadata, tensors)
    for role in ("eh_proj", "enorm", "hnorm"):
        layer.need(f"nextn.{role}.weight")
    keys = {**as_it_reads(for_each_layer(metadata), layer.tensors), f"{name}.{COUNT}": 0}  # as a layer like the others
    numbers = read_hparams(architecture, keys)
    for role in ("embed_tokens", "shared_head_head"):
        of_vocabulary = network.global_tensors.need("token_embd.weight").shape
        if f"nextn.{role}.weight" in layer and layer.need(f"nextn.{role}.weight").shape != of_vocabulary:
            raise ModelError(f"'{layer.prefix}nextn.{role}.weight' has another shape than the embedding's")
    several = Keys.of(architecture, keys).get("hyper_connection.count") is not None
    around = network.global_tensors.tensors.items()
    given = {role: each for role, each in around if several or not role.startswith(streams.LAST)}
    outside = Layer("", {**given, **own_mixer(layer.tensors)})
    return replace(network, keys=Keys.of(architecture, keys), hparams=numbers, layers=(layer,), global_tensors=outside)


def mtp_forward(forward: ForwardContext, hidden: Floats, following: Ids) -> LazyLogits:
    """Return lazy logits of the tokens after `following`.

    forward: a pass of the network above. hidden: `LazyLogits.states`, (tokens, width or streams * width). following
    (tokens,): the token that comes next. Positions are counted from the first of these, as rotation only depends on
    distances. Raises ModelError if numbers stop being finite.
    """
    layer, outside = forward.network.layers[0], forward.global_tensors
    table = layer if "nextn.embed_tokens.weight" in layer else outside
    embedded = gather(table.need(f"{'nextn.embed_tokens' if table is layer else 'token_embd'}.weight"), following)
    if forward.hparams.embedding_scale != 1:
        embedded *= np.float32(forward.hparams.embedding_scale)
    embedded = forward.norm(layer, "nextn.enorm", embedded)
    if streams.has_streams(forward):
        if streams.MIXED in layer:
            normed = forward.norm(layer, "nextn.hnorm", hidden.reshape(-1, forward.hparams.width))
        else:
            normed = streams.stream_norm(forward, layer, "nextn.hnorm.weight", hidden).reshape(
                -1, forward.hparams.width
            )
        embedded = np.repeat(embedded, len(normed) // len(embedded), axis=0)
    else:
        normed = forward.norm(layer, "nextn.hnorm", hidden)
    x = decoder.projected(forward, layer, "nextn.eh_proj", np.concatenate((embedded, normed), axis=1))
    x = decoder.through_layers(forward, x.reshape(len(hidden), -1))
    own = "nextn.shared_head_norm.weight" in layer
    x = forward.norm(layer, "nextn.shared_head_norm", x) if own else forward.norm(outside, "output_norm", x)
    output, name = output_of(forward.network), "nextn.shared_head_head.weight"
    weight = layer.need(name) if name in layer else None
    if weight is not None and forward.observe:
        forward.observe(weight.name, x, 0, 1)
    output = output if weight is None else replace(output, weight=weight)
    finish, own_weight = output.finish(forward.threads), output.weight
    logits = LazyLogits(x, own_weight, finish, forward.threads, forward.precision, forward.profile, forward.streams)
    return logits if forward.device is None else forward.device.logits(logits, output)


def one_stream(forward: ForwardContext, states: Floats) -> Floats:
    """Return the head's input from the model's streams, (tokens, streams * width): float32 (tokens, width).

    forward: a pass of the model.
    """
    return forward.norm(forward.global_tensors, forward.block.output_norm, decoder.ended(forward, states))

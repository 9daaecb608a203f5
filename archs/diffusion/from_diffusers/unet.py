"""The U-Nets of Stable Diffusion 1, 2 and XL.

Published names count all layers of the way down, and all of the way up. Diffusers counts layers within a block.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from quants import Tensor, from_array
from quants.errors import ModelError

from ...spec import Tensors
from .rules import DiffusersLayout, Rule, modules, parameters, same

EMPTY = from_array("empty", np.zeros(0, np.float32))  # in place of tensors whose names alone count
RESNETS = re.compile(r"(down|up)_blocks\.([0-9]{1,3})\.resnets\.([0-9]{1,3})\.")
TOP = modules(
    {
        "time_embed.0": "time_embedding.linear_1",
        "time_embed.2": "time_embedding.linear_2",
        "input_blocks.0.0": "conv_in",
        "out.0": "conv_norm_out",
        "out.2": "conv_out",
    }
)
CLASSES = (  # of which a model has one at the most
    *modules({"label_emb.0.0": "add_embedding.linear_1", "label_emb.0.2": "add_embedding.linear_2"}),
    *modules({"label_emb.0.0": "class_embedding.linear_1", "label_emb.0.2": "class_embedding.linear_2"}),
    *parameters({"label_emb.weight": "class_embedding.weight"}),
)
RESNET = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
TRANSFORMER = same(
    *(f"attn{number}.{name}" for number in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")),
    *("ff.net.0.proj", "ff.net.2", "norm1", "norm2", "norm3"),
)


def rules(tensors: Tensors) -> tuple[Rule, ...]:
    """Return the rules for a U-Net with these tensors. Raises ModelError for layers with gaps between them."""
    return (*TOP, *CLASSES, *_down(tensors), *_middle(), *_up(tensors))


def _down(tensors: Tensors) -> Iterator[Rule]:
    number = 1
    for block, layers in enumerate(_resnets(tensors, "down")):
        for layer in range(layers):
            yield from _resnet(f"input_blocks.{number}.0.", f"down_blocks.{block}.resnets.{layer}.")
            yield from _attention(f"input_blocks.{number}.1.", f"down_blocks.{block}.attentions.{layer}.")
            number += 1
        yield from modules({"op": "conv"}, f"input_blocks.{number}.0.", f"down_blocks.{block}.downsamplers.0.")
        number += f"down_blocks.{block}.downsamplers.0.conv.weight" in tensors


def _middle() -> Iterator[Rule]:
    yield from _resnet("middle_block.0.", "mid_block.resnets.0.")
    yield from _attention("middle_block.1.", "mid_block.attentions.0.")
    yield from _resnet("middle_block.2.", "mid_block.resnets.1.")


def _up(tensors: Tensors) -> Iterator[Rule]:
    number = 0
    for block, layers in enumerate(_resnets(tensors, "up")):
        for layer in range(layers):
            yield from _resnet(f"output_blocks.{number}.0.", f"up_blocks.{block}.resnets.{layer}.")
            yield from _attention(f"output_blocks.{number}.1.", f"up_blocks.{block}.attentions.{layer}.")
            number += 1
        attends = f"up_blocks.{block}.attentions.{layers - 1}.norm.weight" in tensors
        upsampler = f"output_blocks.{number - 1}.{2 if attends else 1}."
        yield from modules(same("conv"), upsampler, f"up_blocks.{block}.upsamplers.0.")


def _resnet(to: str, of: str) -> tuple[Rule, ...]:
    return modules(RESNET, to, of)


def _attention(to: str, of: str) -> tuple[Rule, ...]:
    block = "transformer_blocks.{i}."
    return (
        *modules(same("norm", "proj_in", "proj_out"), to, of),
        *modules(TRANSFORMER, f"{to}{block}", f"{of}{block}"),
    )


def _resnets(names: Iterable[str], way: str) -> list[int]:
    """Return how many ResNet layers each block of the way has. Raises ModelError for a gap."""
    by_block: dict[int, set[int]] = {}
    for name in names:
        if (match := RESNETS.match(name)) and match[1] == way:
            by_block.setdefault(int(match[2]), set()).add(int(match[3]))
    for block in range(max(by_block, default=-1) + 1):
        numbers = by_block.get(block, set())
        missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if not missing or missing < len(numbers):
            raise ModelError(f"the U-Net lacks {way}_blocks.{block}.resnets.{missing}", "a shard may be missing")
    return [len(by_block[block]) for block in range(len(by_block))]


def rules_of_published(names: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules that make a published U-Net of diffusers' layout. names: the published ones."""
    present, standins = set(names), dict[str, Tensor]()

    def mark(name: str) -> None:
        standins[name] = EMPTY

    block = layer = 0
    for number in range(1, len(present)):
        if f"input_blocks.{number}.0.op.weight" in present:
            mark(f"down_blocks.{block}.downsamplers.0.conv.weight")
            block, layer = block + 1, 0
        elif f"input_blocks.{number}.0.in_layers.0.weight" in present:
            mark(f"down_blocks.{block}.resnets.{layer}.norm1.weight")
            layer += 1
        else:
            break
    block = layer = 0
    for number in range(len(present)):
        if f"output_blocks.{number}.0.in_layers.0.weight" not in present:
            break
        mark(f"up_blocks.{block}.resnets.{layer}.norm1.weight")
        if f"output_blocks.{number}.1.norm.weight" in present:
            mark(f"up_blocks.{block}.attentions.{layer}.norm.weight")
        layer += 1
        if any(f"output_blocks.{number}.{place}.conv.weight" in present for place in (1, 2)):
            block, layer = block + 1, 0
    return rules(standins)


COMMON = ("time_embedding.linear_1.weight", "mid_block.resnets.0.conv1.weight", "up_blocks.0.resnets.0.conv1.weight")
SIZES, IMAGES = "add_embedding.linear_1.weight", "class_embedding.linear_1.weight"  # conditions other than the text
FOURTH_LEVEL = "down_blocks.3.resnets.0.conv1.weight"
SD_1 = DiffusersLayout(rules, ((*COMMON, FOURTH_LEVEL),), absent=(SIZES, IMAGES))
SDXL = DiffusersLayout(rules, ((*COMMON, SIZES),), absent=(FOURTH_LEVEL,))
SDXL_REFINER = DiffusersLayout(rules, ((*COMMON, SIZES, FOURTH_LEVEL),))
SD_UNCLIP = DiffusersLayout(rules, ((*COMMON, IMAGES, FOURTH_LEVEL),))

"""Encoders for images of models that transformers has no class for, or none for so small ones: after the code published
with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

Turn = Callable[[Tensor], Tensor]  # of q or k, (patches, heads, width)


@dataclass
class Given:
    """A checkpoint's tensors by name, its config, and an image (1, 3, height, width)."""

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    pixels: Tensor

    @property
    def vision(self) -> Any:
        return self.config["vision_config"]

    @property
    def grid(self) -> tuple[int, int]:
        side = self.vision["patch_size"]
        return self.pixels.shape[2] // side, self.pixels.shape[3] // side

    def linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor, eps: float, rms: bool = False) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        if rms:
            return functional.rms_norm(x, x.shape[-1:], weight, eps)
        return functional.layer_norm(x, x.shape[-1:], weight, self.tensors.get(f"{name}.bias"), eps)

    def patches(self, name: str) -> Tensor:
        """By a convolution, by row and column."""
        kernel, bias = self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        x = functional.conv2d(self.pixels, kernel, bias, stride=kernel.shape[-1])
        return x.flatten(2)[0].T

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """q, k, v (patches, heads, width); mask: added to the scores, (heads or 1, patches, patches)."""
        k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
        shares = (scores if mask is None else scores + mask).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", shares, v).flatten(1)

    def two(self, first: str, second: str, x: Tensor) -> Tensor:
        return self.linear(second, functional.gelu(self.linear(first, x)))


def read(checkpoint: Path, config: dict[str, Any], pixels: Any) -> Given:
    tensors = load_file(checkpoint / "model.safetensors")
    return Given({name: each.float() for name, each in tensors.items()}, config, torch.from_numpy(pixels)[None])


def in_squares(x: Tensor, rows: int, columns: int) -> Tensor:
    """(patches, …), squares of four together."""
    each = x.reshape(rows // 2, 2, columns // 2, 2, *x.shape[1:]).transpose(1, 2)
    return each.reshape(x.shape)


def places(rows: int, columns: int) -> Tensor:
    """Row and column of patches by these, (patches, 2)."""
    return torch.cartesian_prod(torch.arange(rows), torch.arange(columns))


def halves_turned(at: Tensor, width: int) -> Turn:
    """Qwen's: frequencies by rows, then by columns, and all once more."""
    frequencies = 1 / 10_000 ** (torch.arange(0, width // 2, 2).float() / (width // 2))
    angles = (at[:, :, None] * frequencies).flatten(1)
    angles = torch.cat([angles, angles], dim=1)[:, None]

    def turn(x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-high, low], dim=-1) * angles.sin()

    return turn


def kimi_vl(given: Given) -> Tensor:
    """Pairs are complex numbers, which turn by columns and rows by turns."""
    vision, (rows, columns) = given.vision, given.grid
    table = given.tensors["vision_tower.patch_embed.pos_emb.weight"].permute(2, 0, 1)[None]
    table = functional.interpolate(table, size=(rows, columns), mode="bicubic")[0].flatten(1).T
    x, heads = given.patches("vision_tower.patch_embed.proj") + table, vision["num_attention_heads"]
    width = x.shape[1] // heads
    frequencies = 1 / 10_000 ** (torch.arange(0, width, 4).float() / width)
    by_row, by_column = (places(rows, columns)[:, i, None] * frequencies for i in (0, 1))
    angles = torch.stack([by_column, by_row], dim=-1).flatten(1)
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turn(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)

    for i in range(vision["num_hidden_layers"]):
        at = f"vision_tower.encoder.blocks.{i}."
        normed = given.norm(f"{at}norm0", x, 1e-5)
        q, k, v = given.linear(f"{at}wqkv", normed).reshape(len(x), 3, heads, -1).unbind(1)
        x = x + given.linear(f"{at}wo", given.attention(turn(q), turn(k), v))
        inner = given.linear(f"{at}mlp.fc0", given.norm(f"{at}norm1", x, 1e-5))
        x = x + given.linear(f"{at}mlp.fc1", functional.gelu(inner, approximate="tanh"))
    x = given.norm("vision_tower.encoder.final_layernorm", x, 1e-5)
    x = given.norm("multi_modal_projector.pre_norm", in_squares(x, rows, columns), 1e-5).reshape(len(x) // 4, -1)
    return given.two("multi_modal_projector.linear_1", "multi_modal_projector.linear_2", x)


def dots_ocr(given: Given) -> Tensor:
    vision, (rows, columns) = given.vision, given.grid
    eps, heads = vision["rms_norm_eps"], vision["num_attention_heads"]
    x = given.norm(
        "vision_tower.patch_embed.patchifier.norm",
        given.patches("vision_tower.patch_embed.patchifier.proj"),
        eps,
        rms=True,
    )
    x = in_squares(x, rows, columns)
    turn = halves_turned(in_squares(places(rows, columns), rows, columns), x.shape[1] // heads)
    for i in range(vision["num_hidden_layers"]):
        at = f"vision_tower.blocks.{i}."
        normed = given.norm(f"{at}norm1", x, eps, rms=True)
        q, k, v = given.linear(f"{at}attn.qkv", normed).reshape(len(x), 3, heads, -1).unbind(1)
        x = x + given.linear(f"{at}attn.proj", given.attention(turn(q), turn(k), v))
        normed = given.norm(f"{at}norm2", x, eps, rms=True)
        inner = functional.silu(given.linear(f"{at}mlp.fc1", normed)) * given.linear(f"{at}mlp.fc3", normed)
        x = x + given.linear(f"{at}mlp.fc2", inner)
    x = given.norm("vision_tower.post_trunk_norm", x, eps, rms=True)
    x = given.norm("vision_tower.merger.ln_q", x, 1e-6).reshape(len(x) // 4, -1)
    return given.two("vision_tower.merger.mlp.0", "vision_tower.merger.mlp.2", x)


def youtu_vl(given: Given) -> Tensor:
    """Patches are read as rows of pixels, each with its three colours; windows are of whole squares of four."""
    vision, (rows, columns), side = given.vision, given.grid, given.vision["patch_size"]
    heads, eps, at = vision["num_attention_heads"], vision["layer_norm_eps"], "siglip2.vision_model."
    flat = given.pixels[0].reshape(3, rows, side, columns, side).permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)
    x = given.linear(f"{at}embeddings.patch_embedding", in_squares(flat, rows, columns))
    spots = in_squares(places(rows, columns), rows, columns)
    turn, window = halves_turned(spots, x.shape[1] // heads), vision["window_size"] // side // 2 * 2
    number = spots[:, 0] // window * columns + spots[:, 1] // window
    apart = torch.where(number[:, None] == number, 0.0, -torch.inf)[None]
    for i in range(vision["num_hidden_layers"]):
        own = f"{at}encoder.layers.{i}."
        normed = given.norm(f"{own}layer_norm1", x, eps)
        q, k, v = (given.linear(f"{own}self_attn.{n}_proj", normed).reshape(len(x), heads, -1) for n in "qkv")
        mask = None if i in vision["fullatt_block_indexes"] else apart
        x = x + given.linear(f"{own}self_attn.out_proj", given.attention(turn(q), turn(k), v, mask))
        inner = given.linear(f"{own}mlp.fc1", given.norm(f"{own}layer_norm2", x, eps))
        x = x + given.linear(f"{own}mlp.fc2", functional.gelu(inner, approximate="tanh"))
    x = given.norm("merger.ln_q", given.norm(f"{at}post_layernorm", x, eps), 1e-6, rms=True)
    return given.two("merger.mlp.0", "merger.mlp.2", x.reshape(len(x) // 4, -1))


def mimo_v2(given: Given) -> Tensor:
    """Sinks are added to the scores of the first patch; patches of other layers are in rows or columns of squares."""
    vision, (rows, columns) = given.vision, given.grid
    heads, kv_heads = vision["num_heads"], vision["num_key_value_heads"]
    kernel = given.tensors["visual.patch_embed.proj.weight"].sum(dim=2)  # two frames of one image
    x = functional.conv2d(given.pixels, kernel, stride=kernel.shape[-1]).flatten(2)[0].T
    x, spots = in_squares(x, rows, columns), in_squares(places(rows, columns), rows, columns)
    by_columns = torch.arange(len(x)).reshape(rows // 2, columns // 2, 4).transpose(0, 1).flatten()
    number = torch.arange(len(x))
    far = (number[:, None] - number).abs() > vision["visual_token_window_size"]
    for i, mode in enumerate(vision["vit_window_attn_types"]):
        at, order = f"visual.blocks.{i}.", by_columns if mode == 1 else number
        x, turn = x[order], halves_turned(spots[order], vision["qk_channels"])
        fused = given.linear(f"{at}attn.qkv", given.norm(f"{at}norm1", x, 1e-6, rms=True))
        q, k, v = fused.reshape(len(x), heads + 2 * kv_heads, -1).split([heads, kv_heads, kv_heads], dim=1)
        mask = None
        if i not in vision["fullatt_block_indexes"]:
            mask = torch.where(far, -torch.inf, 0.0).repeat(heads, 1, 1)
            mask[:, :, 0] += given.tensors[f"{at}attn.sinks"][:, None]
        x = x + given.linear(f"{at}attn.proj", given.attention(turn(q), turn(k), v, mask))
        normed = given.norm(f"{at}norm2", x, 1e-6, rms=True)
        gate = functional.silu(given.linear(f"{at}mlp.gate_proj", normed))
        x = x + given.linear(f"{at}mlp.down_proj", gate * given.linear(f"{at}mlp.up_proj", normed))
        x = x[order.argsort()]
    x = given.norm("visual.merger.ln_q", x, 1e-6).reshape(len(x) // 4, -1)
    return given.two("visual.merger.mlp.0", "visual.merger.mlp.2", x)


def ling3_vl(given: Given) -> Tensor:
    """Qwen3-VL's class, whose merger's net stays unused, and a net of two matrices."""
    from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3

    from .encoders import _flattened

    settings = {key: value for key, value in given.vision.items() if key != "model_type"}
    config = qwen3.Qwen3VLVisionModel.config_class(**settings)
    encoder = qwen3.Qwen3VLVisionModel._from_config(config, attn_implementation="eager").eval().float()
    own = {name.removeprefix("visual."): each for name, each in given.tensors.items() if name.startswith("visual.")}
    assert not encoder.load_state_dict(own, strict=False).unexpected_keys
    seen = encoder(*_flattened(given.pixels[0].numpy(), given.vision["patch_size"])).last_hidden_state
    x = given.norm("visual.merger.norm", seen, 1e-6)
    return given.two("linear_proj.0", "linear_proj.2", x.reshape(len(x) // 4, -1))


def cogvlm(given: Given) -> Tensor:
    vision, heads, at = given.vision, given.vision["num_heads"], "model.vision.transformer.layers."
    x = given.patches("model.vision.patch_embedding.proj")
    x = torch.cat([given.tensors["model.vision.patch_embedding.cls_embedding"].reshape(1, -1), x])
    x = x + given.tensors["model.vision.patch_embedding.position_embedding.weight"]
    for i in range(vision["num_hidden_layers"]):
        own = f"{at}{i}."
        q, k, v = given.linear(f"{own}attention.query_key_value", x).reshape(len(x), 3, heads, -1).unbind(1)
        mixed = given.linear(f"{own}attention.dense", given.attention(q, k, v))
        x = x + given.norm(f"{own}input_layernorm", mixed, vision["layer_norm_eps"])
        inner = given.two(f"{own}mlp.fc1", f"{own}mlp.fc2", x)
        x = x + given.norm(f"{own}post_attention_layernorm", inner, vision["layer_norm_eps"])
    at = "model.vision.linear_proj."
    x = functional.gelu(given.norm(f"{at}norm1", given.linear(f"{at}linear_proj", x[1:]), 1e-5))
    x = functional.silu(given.linear(f"{at}gate_proj", x)) * given.linear(f"{at}dense_h_to_4h", x)
    begin, end = (given.tensors[f"model.vision.{name}"].reshape(1, -1) for name in ("boi", "eoi"))
    return torch.cat([begin, given.linear(f"{at}dense_4h_to_h", x), end])


def cogvlm_text(given: Given, ids: Tensor, embeddings: Tensor, start: int) -> Tensor:
    """Logits of a text with an image: its tokens but the last have weights of their own, all but two one position."""
    config, stop = given.config, start + len(embeddings)
    x = given.tensors["model.embed_tokens.weight"][ids]
    x[start:stop] = embeddings
    seen = torch.zeros(len(ids), dtype=torch.bool)
    seen[start : stop - 1] = True
    steps = torch.ones(len(ids), dtype=torch.long)
    steps[start + 2 : stop - 1] = 0
    heads, eps = config["num_attention_heads"], config["rms_norm_eps"]
    width = x.shape[1] // heads
    angles = (steps.cumsum(0) - 1)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    angles = torch.cat([angles, angles], dim=1)[:, None]

    def turn(x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-high, low], dim=-1) * angles.sin()

    def linear(name: str, x: Tensor) -> Tensor:
        both = (given.linear(name.format(kind), x) for kind in ("vision", "language"))
        return torch.where(seen[:, None], *both)

    later = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        normed = given.norm(f"{at}input_layernorm", x, eps, rms=True)
        fused = linear(at + "self_attn.{}_expert_query_key_value", normed)
        q, k, v = fused.reshape(len(x), 3, heads, -1).unbind(1)
        x = x + linear(at + "self_attn.{}_expert_dense", given.attention(turn(q), turn(k), v, later))
        normed = given.norm(f"{at}post_attention_layernorm", x, eps, rms=True)
        gate = functional.silu(linear(at + "mlp.{}_mlp.gate_proj", normed))
        x = x + linear(at + "mlp.{}_mlp.down_proj", gate * linear(at + "mlp.{}_mlp.up_proj", normed))
    return given.linear("lm_head", given.norm("model.norm", x, eps, rms=True))


def dots3_note(given: Given) -> Tensor:
    """By transformers' class of the encoder alone, whose weights have other names."""
    from transformers.models.dots3_note import modeling_dots3_note as dots3

    own, experts = {}, {}
    names = {
        ".norm_": ".norm",
        "mlp.fc1": "mlp.gate_proj",
        "mlp.fc2": "mlp.down_proj",
        "mlp.fc3": "mlp.up_proj",
        "gate_weight": "gate.weight",
        "router_bias": "e_score_correction_bias",
        "post_trunk_": "",
        "adapter.": "merger.",
    }
    for name, value in given.tensors.items():
        if not name.startswith("vision_encoder."):
            continue
        name = name.removeprefix("vision_encoder.")
        if ".experts." in name:
            experts[name] = value
            continue
        for old, new in names.items():
            name = name.replace(old, new)
        own[name] = value
    for i, count in enumerate(given.vision["pyramid_num_routed"]):
        at = f"blocks.{i}.mlp.experts."
        fc1, fc2, fc3 = ([experts[f"{at}{j}.fc{n}.weight"] for j in range(count)] for n in (1, 2, 3))
        if count > 0:
            own[f"{at}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(fc1, fc3, strict=True)])
            own[f"{at}down_proj"] = torch.stack(fc2)
    width = given.config["hidden_size"]
    settings = {**given.vision, "adapter_in_dim": given.vision["hidden_size"], "adapter_out_dim": width}
    config = dots3.Dots3NoteVisionModel.config_class(**settings)
    encoder = dots3.Dots3NoteVisionModel._from_config(config, attn_implementation="eager").eval().float()
    encoder.load_state_dict(own)
    (rows, columns), side = given.grid, given.vision["patch_size"]
    flat = given.pixels[0].reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
    return encoder(in_squares(flat, rows, columns), torch.tensor([[1, rows, columns]])).pooler_output


BY_CODE: dict[str, Callable[[Given], Tensor]] = {
    "kimi-vl": kimi_vl,
    "dots-ocr": dots_ocr,
    "youtu-vl": youtu_vl,
    "mimo-v2-5": mimo_v2,
    "ling3-vl": ling3_vl,
    "cogvlm": cogvlm,
    "dots3-note": dots3_note,
}


def youtu_image(image: Image.Image, patch: int = 16, most: int = 36_864) -> Any:
    """Pixels, uint8 (3, height, width)."""
    scale = 1.0
    while True:
        wide, high = (max(2 * patch, math.ceil(side * scale / (2 * patch)) * 2 * patch) for side in image.size)
        if wide * high <= most * patch**2:
            return np.asarray(image.resize((wide, high), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        scale -= 0.02


def cogvlm_image(image: Image.Image, side: int = 56) -> Any:
    """Pixels, uint8 (3, height, width)."""
    return np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)).transpose(2, 0, 1)


PROCESSED: dict[str, Callable[[Image.Image], Any]] = {"youtu-vl": youtu_image, "cogvlm": cogvlm_image}

"""What encoders make of an image whose checkpoint transformers has no class for, or one with other names: by its
classes for the parts, put together as the model's published code does it. `of_parts` has a function for each.

Each gives the embeddings, float32 (tokens, width); logits come from the text model's class, which is given them in
place of a token's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

EmbeddedImage = np.ndarray[Any, np.dtype[np.float32]]
functional = torch.nn.functional


class Checkpoint:
    """A small checkpoint: its config, and tensors by name in float32."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.tensors = {name: each.float() for name, each in load_file(folder / "model.safetensors").items()}

    def part(self, beginning: str, names: Mapping[str, str] = {}) -> dict[str, torch.Tensor]:
        """Tensors behind a beginning. names: parts of theirs → what stands there instead."""
        found = {}
        for name, values in self.tensors.items():
            if name.startswith(beginning):
                name = name.removeprefix(beginning)
                for old, new in names.items():
                    name = name.replace(old, new)
                found[name] = values
        return found

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))


def loaded(kind: Any, config: Any, tensors: dict[str, torch.Tensor], **more: Any) -> Any:
    model = kind._from_config(config, attn_implementation="eager", **more).eval().float()
    model.load_state_dict(tensors)
    return model


def split_of_three(tensors: dict[str, torch.Tensor], fused: str, names: str) -> dict[str, torch.Tensor]:
    """With matrices of q, k and v in place of one for all. names: where "{}" is the letter."""
    found = {}
    for name, values in tensors.items():
        if fused not in name:
            found[name] = values
            continue
        for letter, each in zip("qkv", values.chunk(3), strict=True):
            found[name.replace(fused, names.format(letter))] = each
    return found


def radio(own: Checkpoint, pixels: torch.Tensor) -> torch.Tensor:
    """Nemotron Nano VL: RADIO, squares of four side by side, a norm and two matrices."""
    from transformers.models.radio.modeling_radio import RadioModel

    vision, side = own.config["vision_config"], own.config["force_image_size"]
    names = {
        "model.patch_generator.embedder": "embeddings.patch_projection",
        "model.patch_generator.pos_embed": "embeddings.position_embedding",
        "model.patch_generator.cls_token.token": "embeddings.cls_register_token",
        "model.blocks": "encoder.layer",
        "attn.proj": "attention.o_proj",
        "attn.qkv": "attention.qkv",
    }
    tensors = own.part("vision_model.radio_model.", names)
    tensors = {name: each for name, each in tensors.items() if "video" not in name and "summary" not in name}
    tensors = split_of_three(tensors, "attention.qkv", "attention.{}_proj")
    config = RadioModel.config_class(
        hidden_size=vision["hidden_size"],
        num_hidden_layers=vision["num_hidden_layers"],
        num_attention_heads=vision["num_attention_heads"],
        patch_size=vision["patch_size"],
        max_img_size=side,
        mlp_ratio=vision["intermediate_size"] / vision["hidden_size"],
        num_cls_tokens=2,
        num_registers=1,
    )
    model = RadioModel._from_config(config, attn_implementation="eager").eval().float()
    missing = model.load_state_dict(tensors, strict=False)
    assert all("layer_scale" in name or "summary" in name for name in missing.missing_keys), missing
    assert not missing.unexpected_keys, missing
    model.make_preprocessor_external()
    x = model(pixels).features
    rows = pixels.shape[2] // vision["patch_size"]
    x = x.reshape(rows // 2, 2, -1, 2, x.shape[-1]).permute(0, 2, 1, 3, 4).reshape(-1, 4 * x.shape[-1])
    x = functional.rms_norm(x, x.shape[1:], own.tensors["mlp1.0.weight"], 1e-5)
    return own.linear("mlp1.3", functional.relu(own.linear("mlp1.1", x)) ** 2)


def phi4(own: Checkpoint, pixels: torch.Tensor) -> torch.Tensor:
    """SigLIP 2 on images of any size, the output of the layer before the last, and two matrices."""
    from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionModel

    settings = {key: value for key, value in own.config["vision_config"].items() if key != "model_type"}
    config = Siglip2VisionModel.config_class(**settings)
    tensors = own.part("model.vision_tower.vision_tower.vision_model.")
    model = loaded(Siglip2VisionModel, config, tensors)
    side = config.patch_size
    rows, columns = (length // side for length in pixels.shape[2:])
    each = pixels.reshape(3, rows, side, columns, side).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
    mask, grid = torch.ones(1, rows * columns, dtype=torch.long), torch.tensor([[rows, columns]])
    x = model(each, mask, grid, output_hidden_states=True).hidden_states[-2][0]
    return own.linear("model.mm_projector.2", functional.gelu(own.linear("model.mm_projector.0", x)))


def resampler(own: Checkpoint, pixels: torch.Tensor) -> torch.Tensor:
    """MiniCPM-V before 4.6: SigLIP with the nearest positions, and queries that read its output."""
    from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionTransformer

    settings = {key: value for key, value in own.config["vision_config"].items() if key != "model_type"}
    config = Idefics2VisionTransformer.config_class(**settings)
    model = loaded(Idefics2VisionTransformer, config, own.part("vpm."))
    side = config.patch_size
    rows, columns = (length // side for length in pixels.shape[2:])
    x = model(pixels, torch.ones(1, rows, columns, dtype=torch.bool)).last_hidden_state[0]
    width, part = own.config["hidden_size"], own.part("resampler.")

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (width,), part[f"{name}.weight"], part[f"{name}.bias"], 1e-6)

    rates = 1 / 10_000 ** (torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    angles = [place[:, None] * rates for place in (column, row)]
    waves = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1).float()
    seen = norm("ln_kv", own.linear("resampler.kv_proj", x))
    attention = torch.nn.MultiheadAttention(width, max(1, width // 128))
    attention.load_state_dict(own.part("resampler.attn."))
    found = attention(norm("ln_q", part["query"]), seen + waves, seen)[0]
    return norm("ln_post", found) @ part["proj"]


def deepseek4(own: Checkpoint, pixels: torch.Tensor) -> torch.Tensor:
    """DeepSeek V4's ViT and aligner, and learned embeddings around what they give."""
    config, part = own.config, own.part("vision.")
    side, heads, merged = config["vision_patch_size"], config["vision_n_heads"], config["vision_downsample_ratio"]
    width = config["vision_dim"]
    rows, columns = (length // side for length in pixels.shape[2:])
    x = functional.unfold(pixels, side, stride=side)[0].T
    x = functional.linear(x, part["patch_embed.proj.weight"], part.get("patch_embed.proj.bias"))
    pairs = width // heads // 4
    rates = config["vision_rope_theta"] ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    angles = torch.cat([row[:, None] * rates, column[:, None] * rates], dim=1)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turned(each: torch.Tensor) -> torch.Tensor:
        first, second = each.double().chunk(2, dim=-1)
        found = torch.complex(first, second) * turn
        return torch.cat([found.real, found.imag], dim=-1).float()

    for i in range(config["vision_n_layers"]):
        at = f"blocks.{i}."
        normed = functional.rms_norm(x, (width,), part[f"{at}norm1.weight"], 1e-6)
        fused = normed @ part[f"{at}attn.wqkv.weight"].T
        q, k, v = (each.reshape(len(x), heads, -1) for each in fused.chunk(3, dim=1))
        mixed = functional.scaled_dot_product_attention(*(each.transpose(0, 1) for each in (turned(q), turned(k), v)))
        x = x + mixed.transpose(0, 1).reshape(len(x), -1) @ part[f"{at}attn.wo.weight"].T
        normed = functional.rms_norm(x, (width,), part[f"{at}norm2.weight"], 1e-6)
        gate, up = (normed @ part[f"{at}mlp.w1.weight"].T).chunk(2, dim=1)
        x = x + (functional.silu(gate) * up) @ part[f"{at}mlp.w2.weight"].T
    x = functional.rms_norm(x, (width,), part["norm.weight"], 1e-6).T.reshape(1, width, rows, columns)
    x = functional.pad(x, (0, -columns % merged, 0, -rows % merged))
    high, wide = x.shape[2] // merged, x.shape[3] // merged
    x = functional.unfold(x, merged, stride=merged)[0].T
    x = own.linear("aligner.w2", functional.gelu(own.linear("aligner.w1", x)))
    pad, lines = own.tensors["image_pad"], []
    for line in range(high + high % 2):
        each = x[line * wide : (line + 1) * wide] if line < high else pad.expand(wide, -1)
        lines.append([*each, own.tensors["image_newline"] if line < high else pad])
    found = [own.tensors["image_start"]]
    for upper, lower in zip(lines[::2], lines[1::2], strict=True):
        for pair in zip(upper, lower, strict=True):
            found += pair
    found += [pad] * ((len(found) - 1) // 2 % 2 * 2)
    return torch.stack([*found, own.tensors["image_end"]])


# Small stages as MobileNet V5 has them, in timm's words.
STAGES = [
    ["er_r1_k3_s2_e4_c16", "er_r1_k3_s1_e2_c16"],
    ["uir_r1_a3_k5_s2_e3_c24", "uir_r1_a5_k0_s1_e2_c24"],
    ["uir_r1_a5_k5_s2_e3_c32", "mqa_r1_k3_h4_v2_s1_d16_c32", "uir_r1_a0_k0_s1_e2_c32"],
    ["uir_r1_a5_k5_s2_e3_c40", "mqa_r1_k3_h4_s1_d16_c40", "uir_r1_a0_k0_s1_e1_c40"],
]


def mobilenet() -> Any:
    """timm's class, in small."""
    from timm.layers import RmsNorm2d
    from timm.models import mobilenetv5

    stages = mobilenetv5.decode_arch_def(STAGES)
    model = mobilenetv5.MobileNetV5Encoder(
        stages,
        stem_size=16,
        fix_stem=True,
        pad_type="same",
        norm_layer=RmsNorm2d,
        act_layer=mobilenetv5._GELU,
        layer_scale_init_value=1e-5,
    )
    model.msfa = mobilenetv5.MobileNetV5MultiScaleFusionAdapter(
        model.msfa_in_chs, 48, 16, norm_layer=RmsNorm2d, act_layer=mobilenetv5._GELU
    )
    return model.eval().float()


def gemma3n(own: Checkpoint, pixels: torch.Tensor) -> torch.Tensor:
    """MobileNet V5, and the matrix and norms behind it."""
    model = mobilenet()
    model.load_state_dict(own.part("model.vision_tower.timm_model."))
    x = model(pixels)[0].flatten(1).T * 48**0.5
    x = functional.rms_norm(x, (48,), own.tensors["model.embed_vision.soft_embedding_norm.weight"], 1e-6)
    x = own.linear("model.embed_vision.embedding_projection", x)
    return functional.rms_norm(x, x.shape[1:], None, 1e-6)


of_parts: dict[str, tuple[Callable[[Checkpoint, torch.Tensor], torch.Tensor], str | None, str]] = {
    "nemotron-vl-small": (radio, "language_model.", "llm_config"),
    "phi4-vision": (phi4, "", ""),
    "minicpm-v-2-6": (resampler, "llm.", ""),
    "deepseek-v4-vision": (deepseek4, None, ""),
    "gemma3n-pictures": (gemma3n, "model.language_model.", "text_config"),
}  # by name; what names of the text model begin with (None: logits are not recorded), and where its config is


def text_model(own: Checkpoint, beginning: str, inside: str) -> Any:
    """The text model's class with its weights."""
    settings = dict(own.config[inside] if inside else own.config)
    kinds = {
        "nemotron_h": "NemotronHForCausalLM",
        "phi4-siglip": "Phi3ForCausalLM",
        "minicpmv": "Qwen2ForCausalLM",
        "gemma3n_text": "Gemma3nForCausalLM",
    }
    kind = getattr(transformers, kinds[settings.pop("model_type")])
    settings = {key: value for key, value in settings.items() if key not in ("architectures", "dtype", "vision_config")}
    settings["pad_token_id"] = 0
    tensors = own.part(beginning, {"backbone.": "model."} if kind.__name__.startswith("Nemotron") else {})
    if kind.__name__.startswith("Gemma"):
        tensors = {f"model.{name}": each for name, each in tensors.items()}
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    config = kind.config_class(**settings)
    model = kind._from_config(config, attn_implementation="eager").eval().float()
    found = model.load_state_dict(tensors, strict=False)
    assert not found.missing_keys, found
    return model


def recorded(name: str, folder: Path, pixels: EmbeddedImage, token: int = 60) -> dict[str, Any]:
    """Embeddings of an image, and ids and logits of a text that has it."""
    own = Checkpoint(folder)
    make, beginning, inside = of_parts[name]
    with torch.inference_mode():
        found = make(own, torch.from_numpy(pixels)[None])
        if beginning is None:
            return {"embeddings": found.numpy()}
        ids = torch.tensor([[3, 5, 8, *[token] * len(found), 21, 34, 55]])
        model = text_model(own, beginning, inside)
        embedded = model.get_input_embeddings()(ids).clone()
        embedded[0, 3 : 3 + len(found)] = found
        more = {}
        if "gemma3n" in name:  # of images each layer gets what it gets of token 0
            more["per_layer_inputs"] = model.model.get_per_layer_inputs(torch.where(ids == token, 0, ids))
        logits = model(inputs_embeds=embedded, use_cache=False, **more).logits[0]
    return {"embeddings": found.numpy(), "ids": ids[0].numpy(), "logits": logits.numpy()}

"""Small checkpoints of image models: Flux and Wan, with the VAE and the text encoders that are published with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ..archs.checkpoints import build

Arrays = dict[str, NDArray[Any]]
WIDTH = 256


def arrays(shapes: Mapping[str, tuple[int, ...]], dtype: Any = np.float16, seed: int = 0) -> Arrays:
    """Return small random values."""
    random = np.random.default_rng(seed)
    return {name: np.asarray(random.standard_normal(shape) * 0.05, dtype) for name, shape in shapes.items()}


def flux(prefix: str = "", dtype: Any = np.float16) -> Arrays:
    """Return a Flux.1 of one double and two single blocks."""
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, rows: int, width: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, width), (rows,)

    linear("img_in", WIDTH, 64)
    linear("txt_in", WIDTH, 128)
    for name in ("time", "vector", "guidance"):
        linear(f"{name}_in.in_layer", WIDTH, 256)
        linear(f"{name}_in.out_layer", WIDTH, WIDTH)
    for side in ("img", "txt"):
        start = f"double_blocks.0.{side}_"
        linear(f"{start}mod.lin", 6 * WIDTH, WIDTH)
        linear(f"{start}attn.qkv", 3 * WIDTH, WIDTH)
        linear(f"{start}attn.proj", WIDTH, WIDTH)
        linear(f"{start}mlp.0", 4 * WIDTH, WIDTH)
        linear(f"{start}mlp.2", WIDTH, 4 * WIDTH)
        shapes |= {f"{start}attn.norm.{each}_norm.scale": (64,) for each in ("query", "key")}
    for block in range(2):
        start = f"single_blocks.{block}."
        linear(f"{start}linear1", 7 * WIDTH, WIDTH)
        linear(f"{start}linear2", WIDTH, 5 * WIDTH)
        linear(f"{start}modulation.lin", 3 * WIDTH, WIDTH)
        shapes |= {f"{start}norm.{each}_norm.scale": (64,) for each in ("query", "key")}
    linear("final_layer.linear", 64, WIDTH)
    linear("final_layer.adaLN_modulation.1", 2 * WIDTH, WIDTH)
    return {prefix + name: values for name, values in arrays(shapes, dtype).items()}


def wan(seed: int = 0) -> Arrays:
    """Return a Wan of one block."""
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embedding.weight": (WIDTH, 16, 1, 2, 2),
        "patch_embedding.bias": (WIDTH,),
        "text_embedding.0.weight": (WIDTH, 64),
        "text_embedding.2.weight": (WIDTH, WIDTH),
        "blocks.0.modulation": (1, 6, WIDTH),
        "blocks.0.self_attn.norm_q.weight": (WIDTH,),
        "blocks.0.ffn.0.weight": (512, WIDTH),
        "blocks.0.ffn.2.weight": (WIDTH, 512),
        "head.modulation": (1, 2, WIDTH),
        "head.head.weight": (64, WIDTH),
    }
    shapes |= {f"blocks.0.self_attn.{each}.weight": (WIDTH, WIDTH) for each in "qkvo"}
    return arrays(shapes, seed=seed)


def clip(width: int = 768) -> Arrays:
    """Return a CLIP text encoder, in transformers' names."""
    return arrays(
        {
            "text_model.embeddings.token_embedding.weight": (20, width),
            "text_model.encoder.layers.0.mlp.fc1.weight": (64, width),
        }
    )


def open_clip(width: int = 1280) -> Arrays:
    """Return a CLIP text encoder, in OpenCLIP's names."""
    return arrays({"token_embedding.weight": (20, width), "transformer.resblocks.0.ln_1.weight": (width,)})


def t5() -> Arrays:
    """Return a T5 encoder of two layers."""
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (100, 64), "encoder.final_layer_norm.weight": (64,)}
    for layer in range(2):
        start = f"encoder.block.{layer}.layer"
        shapes |= {f"{start}.0.SelfAttention.{each}.weight": (64, 64) for each in "qkvo"}
        shapes |= {f"{start}.{each}.layer_norm.weight": (64,) for each in (0, 1)}
        shapes |= {f"{start}.1.DenseReluDense.wi_{each}.weight": (128, 64) for each in (0, 1)}
        shapes[f"{start}.1.DenseReluDense.wo.weight"] = (64, 128)
    shapes["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, 4)
    return arrays(shapes)


def vae() -> Arrays:
    """Return some tensors of a VAE."""
    return arrays({"decoder.conv_in.weight": (8, 4, 3, 3), "encoder.conv_in.weight": (8, 3, 3, 3)}, np.float32)


def whole_checkpoint() -> Arrays:
    """Return a checkpoint of everything, as ComfyUI saves it."""
    tensors = flux("model.diffusion_model.")
    tensors |= {f"vae.{name}": each for name, each in vae().items()}
    tensors |= {f"text_encoders.clip_l.transformer.{name}": each for name, each in clip().items()}
    return tensors | {f"text_encoders.t5xxl.transformer.{name}": each for name, each in t5().items()}


def component(folder: Path, tensors: Arrays, config: dict[str, Any], file: str = "diffusion_pytorch_model") -> None:
    """Write a component of a diffusers pipeline."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / f"{file}.safetensors")


def pipeline(folder: Path) -> Path:
    """Write a diffusers pipeline of Flux: transformer, VAE, CLIP and T5, whose tokenizer has a folder of its own."""
    component(folder / "transformer", flux(), {"_class_name": "FluxTransformer2DModel"})
    component(folder / "vae", vae(), {"_class_name": "AutoencoderKL"})
    component(folder / "text_encoder", clip(), {"architectures": ["CLIPTextModel"]}, "model")
    build("t5-encoder", folder / "text_encoder_2")
    (folder / "tokenizer_2").mkdir()
    for name in ("spiece.model", "tokenizer_config.json"):
        shutil.move(folder / "text_encoder_2" / name, folder / "tokenizer_2" / name)
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text("{}", encoding="utf-8")
    (folder / "model_index.json").write_text('{"_class_name": "FluxPipeline"}', encoding="utf-8")
    return folder

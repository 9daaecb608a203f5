"""Find the family of an image or video model: every tiny checkpoint is of one family, what is none is told."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from archs.diffusion.detection import (
    all_families,
    families_by_tag,
    family_of,
    family_of_file,
    prefix_of,
    required_family,
)
from archs.diffusion.layout import shape_key, shape_value
from archs.metadata import Metadata
from quants.errors import ModelError
from tests import diffusion_models
from tests.diffusion_models import MODELS

COMFYUI_GGUF = {"flux", "sd1", "sdxl", "sd3", "aura", "hidream", "cosmos", "ltxv", "hyvid", "wan", "lumina2"} | {
    "qwen_image"
}  # what its loader takes
VAE = ("decoder.conv_in.weight", "decoder.up.0.block.0.conv1.weight", "encoder.down.0.block.0.conv1.weight")
WAN_VAE = ("decoder.conv1.weight", "decoder.middle.0.residual.0.gamma", "encoder.downsamples.0.residual.2.weight")
CLIP = ("text_model.encoder.layers.0.self_attn.q_proj.weight", "text_model.embeddings.token_embedding.weight")
T5 = ("encoder.block.0.layer.0.SelfAttention.q.weight", "shared.weight")
LANGUAGE_MODEL = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight")
OF_OTHERS = tuple(f"first_stage_model.{name}" for name in VAE) + tuple(
    f"{start}{name}"
    for start in ("text_encoders.clip_l.transformer.", "cond_stage_model.transformer.")
    for name in CLIP
)


def sizes(model: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (shape, _) in diffusion_models.shapes(model).items()}


def named(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(names, (64, 64))


def error(shapes: dict[str, tuple[int, ...]]) -> str:
    with pytest.raises(ModelError) as caught:
        required_family(shapes, "m.safetensors")
    return str(caught.value)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_of_one_family(model: str) -> None:
    family = family_of(sizes(model))
    assert family is not None
    assert family.name == MODELS[model].family


def test_every_family_has_a_model() -> None:
    assert {tiny.family for tiny in MODELS.values()} == {family.name for family in all_families()}


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "diffusion_model.", "model.model.", "model.", "net."])
def test_prefixes(prefix: str) -> None:
    for model in MODELS:
        named = {f"{prefix}{name}": shape for name, shape in sizes(model).items()}
        assert prefix_of(named) == prefix, model
        for other in OF_OTHERS:
            named[other] = (64, 64)
        assert prefix_of(named) == prefix, model
        own = {name.removeprefix(prefix): shape for name, shape in named.items() if name.startswith(prefix)}
        assert required_family(own, "").name == MODELS[model].family


def test_bare_names_have_no_prefix() -> None:
    assert [model for model in MODELS if prefix_of(sizes(model))] == []


@pytest.mark.parametrize("hidden", [192, 320])
def test_other_widths(hidden: int) -> None:
    for model, tiny in MODELS.items():
        found = family_of({name: shape for name, (shape, _) in diffusion_models.shapes(model, hidden).items()})
        assert found is not None
        assert found.name == tiny.family


def test_folded_shapes_of_a_file() -> None:
    shapes = sizes("wan_t2v")
    key = "patch_embedding.weight"
    metadata = Metadata({"general.architecture": "wan"})
    metadata[shape_key(key)] = shape_value(shapes[key])
    family = family_of_file(metadata, {f"model.diffusion_model.{name}": shape for name, shape in shapes.items()})
    assert family is not None
    assert family.name == "wan"


def test_tags_are_those_that_the_readers_take() -> None:
    taken = {family.name: family.tag for family in all_families() if "comfyui" not in family.refused}
    assert {name: tag for name, tag in taken.items() if tag not in COMFYUI_GGUF} == {}
    assert [family.name for family in families_by_tag()["ltxv"]] == ["ltx2", "ltxv"]


def test_titles_are_unique_and_signatures_agree_with_what_is_absent() -> None:
    families = all_families()
    assert len({family.title for family in families}) == len(families)
    for family in families:
        assert not {name for names in family.signatures for name in names} & set(family.absent), family.name


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (VAE, "a VAE"),
        (WAN_VAE, "a VAE"),
        (tuple(f"vae.{name}" for name in VAE), "a VAE"),
        (CLIP, "a text encoder"),
        (T5, "a text encoder"),
        (LANGUAGE_MODEL, "a language model"),
        (("blk.0.attn_q.weight", "token_embd.weight"), "a language model"),
        (("double_blocks.0.img_attn.proj.lora_A.weight",), "a LoRA or another adapter"),
        (("lora_unet_double_blocks_0_img_attn_proj.lora_down.weight",), "a LoRA or another adapter"),
        (("lora_unet_x.alpha", "lora_unet_x.hada_w1_a"), "a LoRA or another adapter"),
        (("diffusion_model.blocks.0.ffn.0.diff_b",), "a LoRA or another adapter"),
        (("control_model.input_blocks.0.0.weight", "control_model.zero_convs.0.0.weight"), "a ControlNet"),
        (("controlnet_cond_embedding.conv_in.weight", "down_blocks.0.downsamplers.0.conv.weight"), "a ControlNet"),
        (("controlnet_blocks.0.weight", "double_blocks.0.img_attn.proj.weight"), "a ControlNet"),
        (("image_proj.latents", "ip_adapter.1.to_k_ip.weight"), "an IP-Adapter"),
        (("emb_params",), "an embedding of a few tokens"),
        (("down_blocks.0.motion_modules.0.temporal_transformer.norm.weight",), "a motion module"),
        (("model.1.sub.0.RDB1.conv1.0.weight",), "an upscaler"),
        (("transformer_blocks.0.qkv_proj.wscales", "transformer_blocks.0.qkv_proj.qweight"), "Nunchaku"),
    ],
)
def test_what_is_no_model_is_told(names: tuple[str, ...], what: str) -> None:
    found = error(named(names))
    assert found.startswith("m.safetensors: this seems to be ")
    assert what in found


def test_unknown_models() -> None:
    assert "no known image or video model has these tensors: a.weight" in error(named(["a.weight"]))
    assert "no known image or video model" in error({})
    assert "diffusers' layout, but of no known model" in error(named(["transformer_blocks.0.attn.to_q.weight"]))


@pytest.mark.parametrize(
    ("model", "dropped", "missing"),
    [
        ("flux_dev", "single_blocks", "Flux.1, but single_blocks.0.linear1.weight is missing"),
        ("flux_dev", "final_layer", "Flux.1, but final_layer.linear.weight is missing"),
        ("sd3_medium", "final_layer", "Stable Diffusion 3, but final_layer.linear.weight is missing"),
        ("sd15", "output_blocks", "output_blocks.2.1.conv.weight, output_blocks.5.2.conv.weight"),
        ("wan_t2v", "head", "Wan, but head.modulation, head.head.weight are missing"),
        ("qwen_image", "proj_out", "Qwen-Image, but proj_out.weight is missing"),
        ("z_image", "layers", "Z-Image, but layers.0.attention.qkv.weight is missing"),
        ("ltx2", "audio_patchify_proj", "LTX-2, but audio_patchify_proj.weight is missing"),
    ],
)
def test_a_model_with_a_missing_half(model: str, dropped: str, missing: str) -> None:
    rest = {name: shape for name, shape in sizes(model).items() if name.partition(".")[0] != dropped}
    assert missing in error(rest)


@pytest.mark.parametrize(
    ("first", "second"), [("flux_dev", "wan_t2v"), ("sd15", "sd3_medium"), ("qwen_image", "ltxv"), ("krea2", "anima")]
)
def test_two_models_in_one_file(first: str, second: str) -> None:
    assert "m.safetensors: the tensors are those of " in error(sizes(first) | sizes(second))


def test_a_relative_with_other_shapes() -> None:
    other = sizes("qwen_image") | {"txt_norm.weight": (4096,)}
    assert "like those of " in error(other)
    assert "txt_norm.weight is 4096, not " in error(other)


def test_a_relative_with_what_the_family_has_not() -> None:
    split = sizes("hyvid15") | {"double_blocks.0.img_attn_q.weight": (256, 256)}
    assert "HunyuanVideo 1.5, but that has no double_blocks.0.img_attn_q.weight" in error(split)


@pytest.mark.parametrize("model", diffusion_models.ONE_PER_FAMILY)
def test_no_part_of_a_model_is_of_two_families(model: str) -> None:
    """Without any one tensor it is the same family, a relative of the same tag, or unknown."""
    shapes = sizes(model)
    own = required_family(shapes, "")
    for name in shapes:
        found = family_of({each: shape for each, shape in shapes.items() if each != name})
        assert found is None or found.tag == own.tag, name

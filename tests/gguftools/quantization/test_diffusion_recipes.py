"""Formats of image models' weights: those of ComfyUI-GGUF's patched llama-quantize, and ours where it has none."""

from __future__ import annotations

import sys
import time
from collections import Counter

import pytest

import gguftools
from archs.diffusion.spec import DiffusionFamily
from benchmarks.diffusion_models import flux_shapes, write
from gguftools.quantization.recipes import RECIPES, ModelFacts, Options, choose, model_facts, recipe_named
from gguftools.writing.options import WriteOptions
from quants.errors import OptionError
from quants.format import format_named
from tests import diffusion_models

from .image_models import MODELS, qwen_image

# What the patch keeps, by the file's tag, and of Qwen-Image its branch.
UNET = "class_embedding. time_embedding. add_embedding. time_embed. label_emb. conv_in. conv_out. out.2"
FLUX = "txt_in. img_in. time_in. vector_in. guidance_in. final_layer."
KEPT = {
    "flux": FLUX,
    "hyvid": FLUX,
    "sd3": "final_layer. time_text_embed. context_embedder. t_embedder. y_embedder. x_embedder.",
    "wan": "modulation. patch_embedding. text_embedding. time_projection. time_embedding. img_emb. head.",
    "sdxl": UNET,
    "sd1": UNET,
    "lumina2": "t_embedder. x_embedder. final_layer. cap_embedder. context_refiner. noise_refiner.",
    "hidream": "p_embedder. t_embedder. x_embedder. final_layer. .ff_i.gate.weight caption_projection.",
    "aura": "t_embedder. init_x_linear. modF.1.weight cond_seq_linear.weight final_linear.weight",
    "ltxv": "adaln_single. caption_projection. patchify_proj. proj_out. scale_shift_table",
    "cosmos": "p_embedder. t_embedder. t_embedding_norm. x_embedder. pos_embedder. final_layer.",
    "qwen_image": "img_in txt_in time_text_embed norm_out proj_out",
}
# Tiny checkpoints of the models that the patch was made for.
KNOWN = {
    "flux_dev": "flux",
    "sd35_large": "sd3",
    "sd35_medium": "sd3",
    "sd15": "sd1",
    "sdxl": "sdxl",
    "aura": "aura",
    "hidream": "hidream",
    "lumina2": "lumina2",
    "z_image": "lumina2",
    "cosmos1": "cosmos",
    "cosmos_predict2": "cosmos",
    "ltxv": "ltxv",
    "hyvid": "hyvid",
    "wan_t2v": "wan",
    "wan_i2v": "wan",
}
# ComfyUI-GGUF's table: the format of weights without a role, of values, of joined q, k, v, and of second matrices.
TABLE = {
    "Q2_K": ("Q2_K", "Q3_K", "Q2_K", "Q2_K"),
    "Q3_K_S": ("Q3_K",) * 4,
    "Q3_K_M": ("Q3_K", "first two Q5_K then Q4_K", "Q4_K", "Q4_K"),
    "Q3_K_L": ("Q3_K", "Q5_K", "Q4_K", "Q5_K"),
    "Q4_K_S": ("Q4_K", "first four Q5_K then Q4_K", "Q4_K", "Q5_K"),
    "Q4_K_M": ("Q4_K", "Q6_K", "Q5_K", "Q6_K"),
    "Q5_K_S": ("Q5_K",) * 4,
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K", "Q6_K"),
    "Q6_K": ("Q6_K",) * 4,
    "Q4_0": ("Q4_0", "Q4_0", "Q4_0", "Q4_1"),
    "Q4_1": ("Q4_1",) * 4,
    "Q5_0": ("Q5_0", "Q5_0", "Q5_0", "Q5_1"),
    "Q5_1": ("Q5_1",) * 4,
    "Q8_0": ("Q8_0",) * 4,
}
VALUES = ["attn_v", ".to_v", ".v", ".attn.w1v", ".attn.w2v", "_attn.v_proj"]
JOINED = ["attn_qkv", "attn.qkv", "attention.qkv"]
SECOND = [".ffn.2", ".ff.net.2", ".mlp.layer2", ".adaln_modulation_mlp.2", ".feed_forward.w2"]


def peers(recipe: str, tag: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """The types of the peer's file, "=" for tensors that it leaves alone."""
    base, of_values, of_joined, of_second = TABLE[recipe]
    types, values = {}, 0
    for name, shape in shapes.items():
        quantized = len(shape) == 2 and name[-6:] == "weight" and "_norm.weight" not in name
        if not quantized or any(part in name for part in KEPT[tag].split()):
            types[name] = "="
            continue
        form = base
        if any(f"{part}.weight" in name for part in VALUES):
            first = {"first two": 2, "first four": 4}.get(" ".join(of_values.split()[:2]), 0)
            words = of_values.split()
            form = words[0] if len(words) == 1 else words[2] if values < first else words[4]
            values += 1
        elif any(f"{part}.weight" in name for part in JOINED):
            form = of_joined
        elif (
            "ffn_down" in name
            or any(f"{part}.weight" in name for part in SECOND)
            or ("experts." in name and ".w2.weight" in name)
        ):
            form = of_second
        types[name] = "F16" if form.endswith("_K") and shape[1] % 256 else form
    return types


def family(tag: str) -> DiffusionFamily:
    return DiffusionFamily(tag, tag, tag, (), kept=tuple(KEPT[tag].split()))


def chosen(recipe: str, tag: str, shapes=None, stored: str = "BF16", **options):
    triples = [(name, shape, format_named(stored)) for name, shape in (shapes or MODELS[tag]).items()]
    facts = ModelFacts(tag, image_family=family(tag))
    return {each.name: each for each in choose(recipe_named(recipe), triples, facts, options=Options(**options))}


def formats(recipe: str, tag: str, shapes=None, **options) -> dict[str, str]:
    return {name: each.format.name for name, each in chosen(recipe, tag, shapes, **options).items()}


@pytest.mark.parametrize("tag", [tag for tag in MODELS if tag != "qwen_image"])
@pytest.mark.parametrize("recipe", TABLE)
def test_types_are_the_peers(recipe, tag):
    """Whatever its rows allow; SD3.5's and SDXL's small ones fall to another format than F16."""
    expected, got = peers(recipe, tag, MODELS[tag]), formats(recipe, tag)
    for name, form in expected.items():
        if form == "F16" and got[name] != "F16":
            assert MODELS[tag][name][1] % 256
            assert MODELS[tag][name][1] % 32 == 0
            assert got[name] in ("Q4_0", "Q5_0", "Q5_1", "Q8_0")
        else:
            assert got[name] == ("BF16" if form == "=" else form), name


@pytest.mark.parametrize("model", KNOWN)
def test_tiny_models_have_the_peers_types(model):
    """With the family that names and shapes tell, and what it keeps."""
    shapes = {name: shape for name, (shape, _) in diffusion_models.shapes(model).items()}
    triples = [(name, shape, format_named("F16")) for name, shape in shapes.items()]
    facts = model_facts({"general.architecture": KNOWN[model]}, shapes)
    assert facts.image_family.name == diffusion_models.MODELS[model].family
    for recipe in TABLE:
        got = {each.name: each.format.name for each in choose(recipe_named(recipe), triples, facts)}
        for name, form in peers(recipe, KNOWN[model], shapes).items():
            if form == "F16" and got[name] != "F16":
                assert shapes[name][1] % 256
            else:
                assert got[name] == ("F16" if form == "=" else form), (recipe, name)


def test_names_of_no_family_keep_what_the_tag_keeps():
    shapes = {"img_in.weight": (512, 256), "blocks.0.attn.qkv.weight": (512, 256), "single_modulation.w": (2, 256)}
    facts = model_facts({"general.architecture": "flux"}, shapes)
    assert (facts.image_family.name, facts.image_family.tag) == ("", "flux")
    triples = [(name, shape, format_named("BF16")) for name, shape in shapes.items()]
    assert [each.format.name for each in choose(recipe_named("Q4_K_M"), triples, facts)] == ["BF16", "Q5_K", "BF16"]


def test_text_models_have_no_family():
    assert model_facts({"general.architecture": "llama"}, MODELS["flux"]).image_family is None


def test_order_of_a_file_counts():
    """The peer counts values in the order of the file, which isn't by number."""
    backwards = dict(reversed(MODELS["wan"].items()))
    got = formats("Q3_K_M", "wan", backwards)
    first = [name for name in backwards if ".v.weight" in name][:3]
    assert [got[name] for name in first] == ["Q5_K", "Q5_K", "Q4_K"]
    assert list(got) == list(backwards)


ENDS = ("transformer_blocks.0.", "transformer_blocks.11.")


@pytest.mark.parametrize("recipe", TABLE)
def test_qwen_image_has_better_ends(recipe):
    """As in the peer's pull request 370, but for weights that would lose by it."""
    expected, got = peers(recipe, "qwen_image", qwen_image()), formats(recipe, "qwen_image")
    at_ends = {"Q5_K_M": "Q6_K"} | dict.fromkeys(
        ["Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_1", "Q4_K_S", "Q4_K_M"], "Q5_K"
    )
    for name, form in expected.items():
        better = recipe in at_ends and name.startswith(ENDS) and form not in ("=", "Q6_K")
        assert got[name] == (at_ends[recipe] if better else "BF16" if form == "=" else form), name


@pytest.mark.parametrize(
    ("recipe", "form", "fallback"),
    [
        ("Q2_K", "Q2_K", "Q4_0"),
        ("Q3_K_S", "Q3_K", "Q4_0"),
        ("Q4_K_S", "Q4_K", "Q5_0"),
        ("Q5_K_S", "Q5_K", "Q5_1"),
        ("Q6_K", "Q6_K", "Q8_0"),
        ("IQ4_XS", "IQ4_XS", "IQ4_NL"),
        ("IQ3_S", "IQ3_S", "IQ4_NL"),
    ],
)
def test_rows_that_no_k_block_fits_take_another_format(recipe, form, fallback):
    """SDXL's 320 columns and SD3.5's 2432, which the peer leaves in F16."""
    name = "middle_block.1.proj_in.weight"
    choice = chosen(recipe, "sdxl", {name: (320, 320)})[name]
    assert (choice.wanted.name, choice.format.name) == (form, fallback)
    assert "rows of 320 values" in choice.fallback


@pytest.mark.parametrize(("stored", "form"), [("BF16", "BF16"), ("F16", "F16"), ("F32", "F16")])
def test_rows_that_no_block_fits_keep_16_bits(stored, form):
    name = "double_blocks.0.img_attn.proj.weight"
    assert chosen("Q4_K_M", "flux", {name: (64, 40)}, stored)[name].format.name == form


def test_single_rows_and_tables_of_numbers_are_left():
    odd = {"double_blocks.0.img_mlp.0.weight": (1, 3072), "double_blocks.1.img_mlp.0.weight": (2, 3072)}
    assert formats("Q4_K_S", "flux", odd) == dict(zip(odd, ("BF16", "Q4_K"), strict=True))
    assert chosen("Q4_K_S", "flux", odd, "I32")["double_blocks.1.img_mlp.0.weight"].format.name == "I32"


def bits(recipe: str, tag: str) -> float:
    total = values = 0.0
    for name, choice in chosen(recipe, tag).items():
        rows, width = MODELS[tag][name] if len(MODELS[tag][name]) == 2 else (0, 256)
        values += rows * width
        total += 8 * rows * choice.format.row_bytes(width) if rows else 0
    return total / values


LOW_BITS = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS"]
BY_SIZE = [*LOW_BITS, "IQ3_S", "IQ3_M", "IQ4_XS", "Q8_0"]


@pytest.mark.parametrize("tag", [tag for tag in MODELS if tag != "sd3"])  # its rows take none of these
def test_recipes_of_fewer_bits_are_smaller(tag):
    sizes = [bits(recipe, tag) for recipe in BY_SIZE]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_recipes_that_the_peer_lacks_know_more_roles():
    got = formats("IQ3_M", "flux")
    assert got["double_blocks.0.img_mlp.2.weight"] == got["single_blocks.0.linear2.weight"] == "Q4_K"
    assert got["double_blocks.0.txt_attn.qkv.weight"] == "Q4_K"
    assert got["double_blocks.0.img_mlp.0.weight"] == got["single_blocks.0.linear1.weight"] == "IQ3_S"
    got = formats("IQ2_S", "qwen_image")
    assert got["transformer_blocks.1.attn.add_v_proj.weight"] == got["transformer_blocks.1.attn.to_v.weight"] == "IQ3_S"
    assert got["transformer_blocks.11.attn.to_q.weight"] == "Q5_K"


def test_experts_are_in_mxfp4():
    got = formats("MXFP4_MOE", "hidream")
    stem = "double_stream_blocks.0.block"
    assert got[f"{stem}.ff_i.experts.1.w2.weight"] == "MXFP4"
    assert got[f"{stem}.ff_i.shared_experts.w2.weight"] == got[f"{stem}.attn1.to_v.weight"] == "Q8_0"


@pytest.mark.parametrize("recipe", ["TQ1_0", "TQ2_0", "Q2_0", "Q1_0"])
def test_ternary_recipes_have_one_format(recipe):
    got = formats(recipe, "flux")
    assert {form for name, form in got.items() if "_blocks" in name and name.endswith("n.weight")} == {recipe}


NEEDS = [*LOW_BITS, "Q2_K_S"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_few_bits_need_importance(recipe):
    """As of text models; what people use without a matrix stays open to them: IQ4_XS, IQ4_NL, IQ3_S, IQ3_M, Q2_K."""
    if RECIPES[recipe].default is not None:
        needs = any(each.needs_importance for each in chosen(recipe, "flux").values())
        assert needs is (recipe in NEEDS)


def test_options_decide_as_for_text_models():
    proj, mlp = "double_blocks.0.img_attn.proj.weight", "double_blocks.0.img_mlp.0.weight"
    got = chosen("Q4_K_M", "flux", rules=(("img_attn", "Q8_0"), ("img_in", "Q8_0")))
    assert (got[proj].format.name, got[proj].rule, got[mlp].format.name) == ("Q8_0", "img_attn", "Q4_K")
    assert got["img_in.weight"].format.name == "BF16"
    assert formats("Q4_K_M", "flux", pure=True)["double_blocks.0.img_attn.qkv.weight"] == "Q4_K"
    assert set(formats("F16", "flux").values()) == {"F16", "BF16"}
    assert set(formats("COPY", "flux").values()) == {"BF16"}
    with pytest.raises(OptionError, match="matches none of the"):
        chosen("Q4_K_M", "flux", rules=(("attn_v", "Q8_0"),))


def test_a_rule_leaves_the_count_of_values_as_it_is():
    got = formats("Q3_K_M", "wan", rules=((r"blocks\.0\.self_attn\.v", "Q8_0"),))
    values = [form for name, form in got.items() if ".v.weight" in name]
    assert values[:3] == ["Q8_0", "Q5_K", "Q4_K"]


@pytest.mark.parametrize("recipe", ["Q2_K_L", "Q4_K_L", "Q6_K_L"])
def test_variants_with_a_better_embedding_are_refused(recipe):
    with pytest.raises(OptionError, match="a model of images has neither") as caught:
        chosen(recipe, "flux")
    assert caught.value.hint == f"name {recipe.removesuffix('_L') if recipe[1] in '26' else 'Q4_K_M'}"


@pytest.mark.skipif(sys.platform == "win32", reason="the file would take 24 GB there")
def test_flux_is_planned_without_reading_weights(tmp_path):
    """A sparse file of 24 GB. 314 matrices and 466 others are what the peer's converter gives (ggufy, issue 1)."""
    source = tmp_path / "flux.safetensors"
    write(source, flux_shapes())
    started = time.process_time()
    output = gguftools.quantize(source, "Q4_K_M", write=WriteOptions(dry_run=True)).outputs[0]
    assert time.process_time() - started < 5
    assert Counter(tensor.format for tensor in output.tensors) == {"F32": 466, "Q4_K": 266, "Q5_K": 38, "BF16": 10}

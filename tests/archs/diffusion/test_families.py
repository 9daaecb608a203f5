"""What the families keep: no input, output or time embedding of a tiny checkpoint may be quantized."""

from __future__ import annotations

import fnmatch

import pytest

from archs.diffusion.detection import family_of
from archs.diffusion.formats import is_float32, may_be_quantized
from archs.diffusion.spec import DiffusionFamily
from tests import diffusion_models
from tests.diffusion_models import MODELS

BLOCKS = (
    "blocks",
    "middle_block",
    "layers",
    "refiner",
    "visual",
    "language_model",
    "audio_injector",
    "face_adapter",
    "llm_cond_proj",
)
# Weights outside of blocks that are large enough to quantize, and which ComfyUI-GGUF quantizes, too.
QUANTIZED = ("connector", "llm_cond_proj")


def family(model: str) -> DiffusionFamily:
    found = family_of({name: shape for name, (shape, _) in diffusion_models.shapes(model).items()})
    assert found is not None
    return found


@pytest.mark.parametrize("model", MODELS)
def test_only_weights_of_blocks_are_quantized(model: str) -> None:
    of_model = family(model)
    for name, (shape, _) in diffusion_models.shapes(model).items():
        if may_be_quantized(of_model, name, shape):
            assert any(part in name for part in (*BLOCKS, *QUANTIZED)), name


@pytest.mark.parametrize("model", MODELS)
def test_some_weights_are_quantized(model: str) -> None:
    of_model = family(model)
    shapes = diffusion_models.shapes(model)
    sizes = {name: shape[0] * shape[1] for name, (shape, _) in shapes.items() if len(shape) == 2}
    quantized = [name for name, (shape, _) in shapes.items() if may_be_quantized(of_model, name, shape)]
    assert sum(sizes[name] for name in quantized) > sum(sizes.values()) / 4


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hidream", "double_stream_blocks.0.block.ff_i.gate.weight"),
        ("wan_t2v", "blocks.0.modulation"),
        ("wan_i2v", "img_emb.emb_pos"),
        ("wan_t2v", "patch_embedding.weight"),
        ("ltx2", "transformer_blocks.0.scale_shift_table_a2v_ca_video"),
        ("ltx2", "video_embeddings_connector.learnable_registers"),
        ("z_image", "x_pad_token"),
        ("cosmos1", "extra_pos_embedder.pos_emb_h"),
        ("minimax_h3", "video_patch_proj.weight"),
        ("krea2", "blocks.0.mod.lin"),
    ],
)
def test_float32(model: str, name: str) -> None:
    shape, _ = diffusion_models.shapes(model)[name]
    assert is_float32(family(model), name, shape)
    assert not may_be_quantized(family(model), name, shape)


def test_ignored() -> None:
    found = set()
    for model in MODELS:
        of_model = family(model)
        assert all(why for why in of_model.ignored.values())
        for name in diffusion_models.shapes(model):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in of_model.ignored):
                found.add((of_model.name, name))
    assert found == {
        ("lumina2", "norm_final.weight"),
        ("newbie", "norm_final.weight"),
        ("cosmos_predict2", "accum_video_sample_counter"),
        ("anima", "accum_video_sample_counter"),
    }


@pytest.mark.parametrize("model", MODELS)
def test_signatures_are_not_ignored(model: str) -> None:
    of_model = family(model)
    for names in of_model.signatures:
        assert not [name for name in names for each in of_model.ignored if fnmatch.fnmatchcase(name, each)]

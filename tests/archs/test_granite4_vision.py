"""Granite 4 Vision: its text model says which layers get which projectors' outputs."""

import json

import pytest

from archs.config import normalized
from archs.multimodal.granite4_vision import GRANITE4_VISION
from archs.plans.text import architecture_metadata, map_tensors
from archs.registry import of_config
from gguftools.io.checkpoint.safetensors import open_safetensors
from quants.errors import ModelError

from .checkpoints import ENCODERS, build_encoder


def keys(**changes):
    config = json.loads((ENCODERS / "granite4-vision" / "config.json").read_text(encoding="utf-8")) | changes
    family = of_config(config)
    return architecture_metadata(family, normalized(config, family.defaults, family.keys))


def test_layers_get_the_projectors_that_the_reference_gives_them(tmp_path):
    # by Granite4VisionMmprojModel.get_normalized_projector_map of llama.cpp's converter
    assert keys()["granite.deepstack_mapping"] == [-1, 2, 3, 5]
    assert "granite.deepstack_mapping" not in keys(deepstack_layer_map=None, spatial_target_layers=[])
    with pytest.raises(ModelError, match="projectors for layers"):
        keys(spatial_target_layers=[9])
    build_encoder("granite4-vision", tmp_path / "x")
    tensors = open_safetensors(tmp_path / "x" / "model.safetensors")
    family = of_config(json.loads((tmp_path / "x" / "config.json").read_text(encoding="utf-8")))
    config = normalized(json.loads((tmp_path / "x" / "config.json").read_text(encoding="utf-8")), family.defaults)
    mapped = map_tensors(family, config, tensors)
    assert sum(name.startswith("blk.") for name in mapped.tensors) == 4 * 9
    assert len(mapped.tensors) + len(mapped.left_out) == len(tensors)


def projected(**changes):
    """What the encoder's file says of layers: which are taken, and the places of those that take each fourth patch."""
    config = json.loads((ENCODERS / "granite4-vision" / "config.json").read_text(encoding="utf-8")) | changes
    full = {**config, "vision": config["vision_config"], "text": config["text_config"]}
    return [GRANITE4_VISION.metadata[f"vision.{key}"](full) for key in ("feature_layer", "projector.spatial_offsets")]


def test_layers_are_counted_as_in_the_list_of_states_of_transformers():
    # hidden_states has 7 items here, the embeddings and what 6 layers give: 4 is -3
    assert projected() == [[4, 3, 5, 5, 5, 5], [-1, -1, 2, 0, 1, 3]]
    assert projected(deepstack_layer_map=[[4, 1], [5, 0]], spatial_vision_layer=6) == projected()
    assert projected(deepstack_layer_map=[[-2, 0], [-3, 1]])[0] == projected()[0]
    for places in ({"spatial_vision_layer": 0}, {"deepstack_layer_map": [[7, 1]]}, {"deepstack_layer_map": [[-7, 1]]}):
        with pytest.raises(ModelError, match="a projector take states"):
            projected(**places)

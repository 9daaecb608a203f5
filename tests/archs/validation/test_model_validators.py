"""Keys against tensors: what the table of shapes says, and what is found with it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import gguftools
from archs import tensor_shapes
from archs.hparams.model_hparams import read_hparams
from archs.layer_types import ARRANGEMENTS, MIXERS, NETS
from archs.registry import by_gguf_name
from archs.tensor_shapes import Part, evaluated, unknown
from archs.validation.model_validators import MAX_FAULTS, faults
from quants import from_array
from quants.errors import ModelError

from .. import checkpoints

WIDTH, VOCABULARY = 8, 11
SHAPES = {
    "attn_norm": (8,),
    "attn_q": (8, 8),
    "attn_k": (4, 8),
    "attn_v": (4, 8),
    "attn_output": (8, 8),
    "ffn_norm": (8,),
    "ffn_gate": (10, 8),
    "ffn_up": (10, 8),
    "ffn_down": (8, 10),
}
KEYS = {
    "embedding_length": WIDTH,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


ROUTED = {"expert_count": 2, "expert_used_count": 1}
EXPERTS = {  # gates have biases alone
    "blk.0.ffn_gate_inp.weight": (2, 8),
    "blk.0.ffn_up_exps.weight": (2, 10, 8),
    "blk.0.ffn_down_exps.weight": (2, 8, 10),
    "blk.0.ffn_gate_exps.bias": (2, 10),
}


def found(layers=2, keys=(), shapes=(), without=()):
    metadata = {f"llama.{key}": value for key, value in (KEYS | {"block_count": layers} | dict(keys)).items()}
    named = {f"blk.{i}.{role}.weight": shape for i in range(layers) for role, shape in SHAPES.items()}
    named |= {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)} | dict(shapes)
    tensors = {
        name: from_array(name, np.ones(shape, np.float32)) for name, shape in named.items() if name not in without
    }
    return faults(by_gguf_name("llama"), metadata, tensors)


def test_a_sound_model_has_none():
    assert found() == []


def test_dimensions_are_sums_of_products():
    table = Part(marks="", shapes={"x": "a+2*b*c 3"}).table
    (first, second), (bias,) = table["x.weight"][0], table["x.bias"][0]
    assert evaluated(first, {"a": 1, "b": 5, "c": 7}) == 71
    assert evaluated(second, {}) == 3
    assert evaluated(first, {"a": 1, "b": 5}) is None
    assert bias == first


@pytest.mark.parametrize(
    ("dimension", "sizes", "told"),
    [("f", {}, ("f", 1)), ("2*f", {}, ("f", 2)), ("f", {"f": 3}, None), ("a+b", {}, None), ("a*b", {}, None)],
)
def test_what_a_dimension_tells(dimension, sizes, told):
    (cost_model,) = Part(marks="", shapes={"x": dimension}).table["x"][0]
    assert unknown(cost_model, sizes) == told


def test_every_part_needs_only_what_it_has_a_shape_for():
    of_kinds = chain(*MIXERS.values(), *NETS.values(), *ARRANGEMENTS.values())
    of_layers = (tensor_shapes.NORMS, *of_kinds, *tensor_shapes.OPTIONAL)
    for part in (
        *of_layers,
        tensor_shapes.BORROWING,
        tensor_shapes.ENCODER,
        tensor_shapes.DECODER,
        tensor_shapes.OUTSIDE,
    ):
        for group in part.needs.split():
            for name in group.split("|"):
                known = (
                    part.table
                    | tensor_shapes.NORMS.table
                    | tensor_shapes.DENSE.table
                    | tensor_shapes.ATTENTION.table
                    | tensor_shapes.EXPERTS.table
                )
                assert tensor_shapes.full_name(name) in known | tensor_shapes.LAYER_INPUT.table, (part.marks, name)


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"keys": {"attention.head_count": 3}}, "blk.0.attn_q.weight", "6 (queries)"),
        ({"keys": {"attention.head_count_kv": 2}}, "blk.0.attn_k.weight", "[8 (keys), 8 (width)]"),
        ({"keys": {"feed_forward_length": 12}}, "blk.0.ffn_gate.weight", "[12 (ffn), 8 (width)]"),
        ({"keys": {"block_count": 3}}, "blk.2", "no tensors"),
        ({"keys": {"block_count": 1}}, "blk.1", "past the 1"),
        ({"keys": {"rope.dimension_count": 3}}, "llama.rope.dimension_count", "even"),
        ({"keys": {"attention.scale": [1.0]}}, "llama.attention.scale", "1 items; the model has 2 layers"),
        ({"keys": {"embedding_length": "wide"}}, "llama.embedding_length", "a whole number is expected"),
        ({"shapes": {"blk.1.ffn_down.weight": (8, 9)}}, "blk.1.ffn_down.weight", "10 (ffn)"),
        ({"shapes": {"blk.0.ffn_norm.weight": (7,)}}, "blk.0.ffn_norm.weight", "8 (width)"),
        ({"shapes": {"blk.0.attn_q.bias": (9,)}}, "blk.0.attn_q.bias", "8 (queries)"),
        ({"shapes": {"output.weight": (12, 8)}}, "output.weight", "11 (vocabulary)"),
        ({"shapes": {"rope_freqs.weight": (1,)}}, "rope_freqs.weight", "2 pairs"),
        ({"without": ["blk.1.attn_output.weight"]}, "blk.1.attn_output.weight", "missing"),
        ({"without": ["output_norm.weight"]}, "output_norm.weight", "missing"),
        ({"shapes": {"token_embd.weight": (11, 4), "token_embd_proj.weight": (8, 4)}}, "output_proj.weight", "missing"),
        ({"shapes": EXPERTS, "keys": ROUTED, "layers": 1}, "blk.0.ffn_gate_exps.weight", "missing"),
    ],
)
def test_faults(changes, where, words):
    told = {fault.where: fault.problem for fault in found(**changes)}
    assert words in told[where]


def test_only_so_many_are_named():
    wrong = {f"blk.{i}.ffn_up.weight": (11, 8) for i in range(2 * MAX_FAULTS)}
    assert len(found(2 * MAX_FAULTS, shapes=wrong)) == MAX_FAULTS


def test_no_groups_of_a_state_space(tmp_path):
    checkpoints.build("nemotron-h-moe", tmp_path / "model")
    model = gguftools.open(tmp_path / "model")
    model.metadata["nemotron_h_moe.ssm.group_count"] = 0
    fault, *_ = faults(by_gguf_name("nemotron_h_moe"), model.metadata, model.tensors)
    assert (fault.where, fault.problem) == ("nemotron_h_moe.ssm.group_count", "is 0; 1 or more is expected")


def test_layers_do_not_run_more_often_than_any_model_does() -> None:
    said = {"block_count": 2, "embedding_length": 8, "attention.layer_norm_rms_epsilon": 1e-5}
    keys = {f"nanbeige.{key}": value for key, value in said.items()}
    found = read_hparams(by_gguf_name("nanbeige"), {**keys, "nanbeige.num_loops": 3})
    assert [own.ends_loop for own in found.layers] == [False, True, False, True, False, False]
    with pytest.raises(ModelError, match="num_loops"):
        read_hparams(by_gguf_name("nanbeige"), {**keys, "nanbeige.num_loops": 2**31})


def test_a_matrix_has_one_factor_at_most(tmp_path: Path) -> None:
    checkpoints.build("talkie", tmp_path / "talkie")
    gguftools.convert(tmp_path / "talkie", tmp_path / "f32.gguf", "f32")
    with gguftools.open(tmp_path / "f32.gguf") as model:
        tensors = dict(model.tensors) | {"blk.0.attn_q.scale": from_array("blk.0.attn_q.scale", np.ones(3, np.float32))}
        found = faults(by_gguf_name("talkie"), model.metadata, tensors)
    assert "'blk.0.attn_q.scale' has shape [3]; one number is expected" in map(str, found)


def test_what_rotates_fits_into_an_indexers_head(tmp_path: Path) -> None:
    checkpoints.build("minimax-m3", tmp_path / "minimax-m3")
    gguftools.convert(tmp_path / "minimax-m3", tmp_path / "f32.gguf", "f32")
    source = gguftools.open(tmp_path / "f32.gguf")
    keys = {**source.metadata, "minimax-m3.rope.dimension_count": 16, "minimax-m3.attention.indexer.key_length": 8}
    said = [str(fault) for fault in faults(by_gguf_name("minimax-m3"), keys, source.tensors)]
    assert any("means 16 values; an indexer's head has 8" in each for each in said)

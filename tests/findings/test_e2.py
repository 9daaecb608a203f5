"""E2: the experts of a Granite MoE with windows are exported under names that transformers does not know."""

from __future__ import annotations

from .exports import exported


def test_experts_have_the_names_of_the_checkpoint(tmp_path):
    _, shapes = exported("granitemoe-swa", tmp_path)
    start = "model.layers.0.block_sparse_moe."
    found = {name.removeprefix(start): shape for name, shape in shapes.items() if name.startswith(start)}
    assert found == {"router.weight": (8, 64), "experts.gate_up_proj": (8, 48, 64), "experts.down_proj": (8, 64, 24)}

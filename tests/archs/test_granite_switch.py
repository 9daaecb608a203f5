"""Granite Switch comes back: adapters without the one of zeros, and what its class keeps of control tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from archs.plans.export import plan_export
from gguftools.io.checkpoint.folder import open_checkpoint
from quants.errors import ModelError

from . import checkpoints


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("switch")
    checkpoints.build("granite-switch", folder / "granite-switch")
    gguftools.convert(folder / "granite-switch", folder / "switch.gguf", "f32")
    return folder / "granite-switch", folder / "switch.gguf"


def test_the_checkpoint_is_the_one_that_was_converted(switch: tuple[Path, Path]) -> None:
    wanted = open_checkpoint(switch[0]).tensors
    with gguftools.open(switch[1]) as model:
        found = plan_export(model.metadata, model.tensors)
        assert {*found.tensors} == {*wanted}
        for name in {*wanted} - {"model.adapter_token_ids", "model.switch.control_to_substitute_lut"}:
            np.testing.assert_array_equal(found.tensors[name].float32(), wanted[name].float32(), err_msg=name)
        table = found.tensors["model.switch.control_to_substitute_lut"].raw().view(np.int64).reshape(-1)
        tokens = found.tensors["model.adapter_token_ids"].raw().view(np.int64).reshape(-1)
    assert (found.config["model_type"], found.config["adapter_ranks"]) == ("granite_switch", [4, 4, 4])
    assert found.config["num_hidden_layers"] == 3  # one of them the switch
    assert tokens.tolist() == [280, 281, 282]
    assert table[280:283].tolist() == [30, 31, 32]
    assert np.unique(np.delete(table, [280, 281, 282])).tolist() == [-1]


def test_an_adapter_in_the_place_of_none_is_refused(switch: tuple[Path, Path], tmp_path: Path) -> None:
    with gguftools.open(switch[1]) as model:
        values = model.tensors["blk.1.attn_k.lora_b"].float32().copy()
        values[0, 3, 1] = 1
        model.tensors["blk.1.attn_k.lora_b"] = values
        with pytest.raises(ModelError, match=r"first adapter of 'blk\.1\.attn_k\.lora_b' is not zero"):
            gguftools.export(model, tmp_path / "back")
    assert not list(tmp_path.iterdir())

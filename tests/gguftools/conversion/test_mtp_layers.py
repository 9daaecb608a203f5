"""`convert --mtp` and `--no-mtp`: only the MTP layers, and all others.

mtp.json: for families of tests/data/families what llama.cpp's convert_hf_to_gguf.py b11434 writes with these options:
the tensors, and the keys that differ from those of the whole model's file (null: not there). Of
`deepseek-v3-mtp`, whose layer it leaves out, what it writes of the same checkpoint under GLM 4.7 Flash's class.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.conversion.options import ConvertOptions
from quants.errors import ModelError, OptionError

from ...archs.checkpoints import FAMILIES, build, values, write_tensors
from ..command_line import run

PARTS = json.loads((FAMILIES.parent / "mtp.json").read_text(encoding="utf-8"))


@pytest.fixture
def checkpoint(tmp_path: Path):
    def made(entry: str) -> Path:
        build(entry, tmp_path / entry)
        return tmp_path / entry

    return made


@pytest.mark.parametrize("entry", sorted(PARTS))
def test_files_are_those_of_the_reference(checkpoint, tmp_path, entry):
    """Tensors and keys are those of the reference; values are those in the whole file, where it has them."""
    whole = json.loads((FAMILIES / entry / "reference.json").read_text(encoding="utf-8"))
    folder = checkpoint(entry)
    pre = next((said["value"] for key, said in whole["keys"].items() if key == "tokenizer.ggml.pre"), None)
    gguftools.convert(folder, tmp_path / "whole.gguf", "f32", options=ConvertOptions(pre=pre))
    with gguftools.open(tmp_path / "whole.gguf") as model:
        whole_values = {name: tensor.raw().tobytes() for name, tensor in model.tensors.items()}
    for option, said in PARTS[entry].items():
        output = tmp_path / f"{option}.gguf"
        options = ConvertOptions(pre=pre, no_mtp=option == "no_mtp")
        gguftools.convert(folder, output, "f32", part="mtp" if option == "mtp" else "model", options=options)
        with gguftools.open(output) as model:
            name = model.metadata["general.architecture"]
            assert sorted(model.tensors) == said["tensors"]
            assert {key: np.asarray(model.metadata.get(key)).tolist() for key in said["keys"]} == said["keys"]
            assert (f"{name}.nextn_predict_layers" in model.metadata) == (option == "mtp")
            apart = ("blk.", "output_hc") if entry in ("deepseek-v3-mtp", "deepseek-v4") else ()
            own = {name for name in said["tensors"] if name.startswith(apart)}
            assert {each.name: each.raw().tobytes() for each in model.tensors.values() if each.name not in own} == {
                each: whole_values[each] for each in said["tensors"] if each not in own
            }


def test_by_itself_the_file_is_called_mtp(checkpoint, tmp_path):
    folder = checkpoint("hy-v3")
    report = run("convert", folder, "--mtp", "--pre", "qwen2", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert [path.name for path in tmp_path.glob("*.gguf")] == ["mtp-hy-v3-BF16.gguf"]


def test_without_such_layers_there_is_nothing_to_write_alone(checkpoint, tmp_path):
    folder = checkpoint("solar-open")
    with pytest.raises(OptionError, match="has no MTP layers"):
        gguftools.convert(folder, tmp_path / "x.gguf", "f32", part="mtp")
    assert not list(tmp_path.glob("*.gguf"))
    gguftools.convert(
        folder, tmp_path / "x.gguf", "f32", options=ConvertOptions(no_mtp=True)
    )  # the whole model, since it has none
    with pytest.raises(OptionError, match="cannot be combined with `no_mtp`"):
        gguftools.convert(folder, tmp_path / "y.gguf", "f32", part="mtp", options=ConvertOptions(no_mtp=True))


def test_layers_that_files_have_no_place_for_are_named(checkpoint, tmp_path):
    folder = checkpoint("deepseek-moe")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    said = {"num_hidden_layers": config["num_hidden_layers"] - 1, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config | said), encoding="utf-8")
    with pytest.raises(OptionError, match=r"MTP layers \('.*' and \d+ more\) are left out of deepseek files"):
        gguftools.convert(folder, tmp_path / "mtp.gguf", "f32", part="mtp")
    assert not (tmp_path / "mtp.gguf").exists()


@pytest.mark.parametrize("entry", ["deepseek-v3-mtp", "deepseek-v4", "hy-v4"])
def test_files_that_have_no_place_for_such_a_layer(checkpoint, tmp_path, entry):
    """It has a file to itself, which a run for the model's own tells."""
    folder, model, further = checkpoint(entry), tmp_path / "model.gguf", tmp_path / "further.gguf"
    report = gguftools.convert(folder, model, "f32")
    assert "--mtp` writes them" in "".join(report.warnings)
    assert not gguftools.convert(folder, further, "f32", part="mtp").warnings
    assert not gguftools.convert(folder, tmp_path / "silent.gguf", "f32", options=ConvertOptions(no_mtp=True)).warnings
    assert (tmp_path / "silent.gguf").read_bytes() == model.read_bytes()
    trunk = 2 if entry == "deepseek-v3-mtp" else 4
    with gguftools.open(model) as whole, gguftools.open(further) as alone:
        name = whole.metadata["general.architecture"]
        assert (whole.metadata[f"{name}.block_count"], alone.metadata[f"{name}.block_count"]) == (trunk, trunk + 1)
        assert f"{name}.nextn_predict_layers" not in whole.metadata
        assert {each.split(".")[1] for each in alone.tensors if each.startswith("blk.")} == {f"{trunk}"}
        assert ("output_hc_fn.weight" in alone.tensors) == (entry == "deepseek-v4")
        both = alone.tensors[f"blk.{trunk}.nextn.eh_proj.weight"].float32()
    if entry == "deepseek-v4":  # whose two matrices are beside each other, that of the token first
        parts = [values(entry, f"mtp.0.{name}_proj.weight", [64, 64], 0.0, 0.125) for name in "eh"]
        np.testing.assert_allclose(both, np.concatenate(parts, axis=1), rtol=0.01)
    if entry == "deepseek-v3-mtp":
        return
    with pytest.raises((OptionError, ModelError), match=r"no place for what makes one|computes differently from"):
        gguftools.graft(model, tmp_path / "both.gguf", [(further, "mtp")])


@pytest.mark.parametrize("name", ["mtp.0.enorm.weight", "model.mtp_block.0.norm.weight", "model.mtp.layers.0.x.weight"])
def test_layers_of_families_that_have_no_place_for_them_are_told(checkpoint, tmp_path, name):
    """ERNIE's names of them, and others': they are said to be left out, and are no reason to refuse the rest."""
    folder = checkpoint("maincoder")
    rows = json.loads((FAMILIES / "maincoder" / "spec.json").read_text(encoding="utf-8"))["tensors"]
    write_tensors(folder / "model.safetensors", "maincoder", [*rows, [name, "F32", [64], 1.0, 0.1]])
    report = gguftools.convert(folder, tmp_path / "model.gguf", "f32")
    assert [each for each in report.warnings if repr(name) in each and "maincoder files have no place" in each]
    assert not gguftools.convert(folder, tmp_path / "other.gguf", "f32", options=ConvertOptions(no_mtp=True)).warnings
    with pytest.raises(OptionError, match="are left out of maincoder files"):
        gguftools.convert(folder, tmp_path / "mtp.gguf", "f32", part="mtp")


def test_there_is_a_place_for_one_such_layer(checkpoint, tmp_path):
    folder = checkpoint("deepseek-v4")
    rows = json.loads((FAMILIES / "deepseek-v4" / "spec.json").read_text(encoding="utf-8"))["tensors"]
    write_tensors(folder / "model.safetensors", "x", [*rows, ["mtp.1.norm.weight", "F32", [64], 1.0, 0.1]])
    with pytest.raises(ModelError, match=r"'mtp.1.norm.weight'; a deepseek4 file has room for one such layer"):
        gguftools.convert(folder, tmp_path / "mtp.gguf", "f32", part="mtp")
    assert not (tmp_path / "mtp.gguf").exists()

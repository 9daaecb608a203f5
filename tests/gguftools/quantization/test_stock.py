"""Files of forks in the commands: copied as they are, said in llama.cpp's formats, quantized, run and compared."""

import hashlib
import json

import numpy as np
import pytest

import gguftools
from archs.metadata import Metadata
from gguftools.inspection.weight_errors import weight_errors
from gguftools.io.gguf.reader import open_gguf
from gguftools.models.model import load
from gguftools.quantization.options import QuantizeOptions
from gguftools.quantization.planning import GUESSED
from gguftools.writing import pipeline, row_blocks
from gguftools.writing.options import WriteOptions
from quants import Tensor
from quants.dialects import readings
from quants.errors import FormatError, OptionError

from ...conftest import DATA, ROOT
from ...dialects import in_dialect
from ..command_line import typed
from ..tiny_models import write_model

BIG = {"Q4_K": "Q4_K_R4", "Q6_K": "Q6_K_R4", "Q5_0": "Q5_0_R4", "Q8_0": "Q8_0_R8"}


@pytest.fixture(scope="module")
def stock(tmp_path_factory, shared):
    path = tmp_path_factory.mktemp("stock") / "m-Q4_K_M.gguf"
    gguftools.quantize(ROOT / "examples" / "austen-4m", "Q4_K_M", path)
    return path


@pytest.fixture(scope="module")
def interleaved(stock):
    return in_dialect(stock.with_name("m-R4.gguf"), stock, BIG)


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """Tensors of every kind: one whose values no format of llama.cpp holds, a scale behind a tensor, one of ggml's."""
    golden = np.load(DATA / "dialects" / "blocks.npz")

    def stored(name):
        form, raw = readings()[name].format, golden[f"{name}.raw"]
        tail = golden.get(f"{name}.tail")
        return Tensor(name, (len(raw), 512), form, lambda start, stop: raw[start:stop], tail=tail)

    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    tensors = {
        "blk.0.ffn_up.weight": stored("IQ4_K"),
        "blk.0.ffn_gate.weight": stored("I2_S"),
        "blk.0.ffn_down.weight": stored("IQ4_KS_R4"),
        "output_norm.weight": np.ones(512),
    }
    return write_model(tmp_path_factory.mktemp("lossy") / "m.gguf", metadata, tensors)


def raw_of(path):
    """Of each tensor, its format and what it has in the file, behind its rows too."""
    found = {}
    for name, tensor in open_gguf(path).tensors.items():
        tail = b"" if tensor.tail is None else tensor.tail.tobytes()
        found[name] = tensor.format.name, hashlib.sha256(tensor.raw().tobytes() + tail).hexdigest()
    return found


def test_interleaved_rows_become_what_they_were(stock, interleaved, tmp_path):
    assert {tensor.format.name for tensor in open_gguf(interleaved).tensors.values()} == {"Q4_K_R4", "Q6_K_R4", "F32"}
    report = gguftools.quantize(interleaved, "STOCK", tmp_path / "x.gguf", write=WriteOptions(memory=1 << 16))
    assert raw_of(tmp_path / "x.gguf") == raw_of(stock)
    assert open_gguf(tmp_path / "x.gguf").metadata["general.file_type"] == GUESSED + 15  # Q4_K_M's, most are Q4_K
    assert [line for line in report.warnings if "Q4_K_R4 of ik_llama.cpp (25 tensors) is read as Q4_K" in line]


def test_they_are_kept_as_they_are_where_nobody_asks(interleaved, tmp_path):
    gguftools.quantize(interleaved, "COPY", tmp_path / "x.gguf")
    assert raw_of(tmp_path / "x.gguf") == raw_of(interleaved)
    with pytest.raises(OptionError, match="which COPY keeps and others change"):
        gguftools.quantize(interleaved, ["COPY", "STOCK"], tmp_path)


def test_other_recipes_copy_what_already_has_their_format(stock, interleaved, tmp_path):
    gguftools.quantize(interleaved, "Q4_K_M", tmp_path / "x.gguf")
    assert raw_of(tmp_path / "x.gguf") == raw_of(stock)


def test_a_file_of_ggml_is_copied_and_told_so(stock, tmp_path):
    report = gguftools.quantize(stock, "STOCK", tmp_path / "x.gguf")
    assert raw_of(tmp_path / "x.gguf") == raw_of(stock)
    assert any("nothing is changed" in line for line in report.warnings)


def test_values_that_no_format_holds_are_refused_and_quantized_on_demand(lossy, tmp_path):
    with pytest.raises(FormatError, match=r"'blk.0.ffn_up.weight' is IQ4_K, a format of ik_llama.cpp whose values no"):
        gguftools.quantize(lossy, "STOCK", tmp_path / "x.gguf")
    with pytest.raises(OptionError, match=r"is IQ4_KS_R4 in m.gguf; encoding it again as Q8_0 loses quality"):
        gguftools.quantize(lossy, "Q8_0", tmp_path / "x.gguf")
    assert not list(tmp_path.iterdir())
    gguftools.quantize(lossy, "F32", tmp_path / "x.gguf", options=QuantizeOptions(allow_requantize=True))
    before, after = open_gguf(lossy).tensors, open_gguf(tmp_path / "x.gguf").tensors
    for name, tensor in before.items():
        assert after[name].format.name == "F32"
        assert np.array_equal(after[name].float32(), tensor.float32())


@pytest.mark.parametrize(("scale", "wanted"), [(0.75, "Q2_0"), (0.1, None), (1e6, None), (np.nan, None)])
def test_one_scale_of_a_tensor_is_kept_where_it_is_a_half(scale, wanted, tmp_path):
    form, raw = readings()["I2_S"].format, np.load(DATA / "dialects" / "blocks.npz")["I2_S.raw"]
    tail = np.zeros(32, np.uint8)
    tail[:4] = np.array([scale], "<f4").view(np.uint8)
    raw[0, 0] = 0xFF  # 3, which is never written, is 0
    tensor = Tensor("w.weight", (len(raw), 512), form, lambda start, stop: raw[start:stop], tail=tail)
    source = write_model(tmp_path / "m.gguf", Metadata(), {"w.weight": tensor})
    if wanted is None:
        with pytest.raises(FormatError, match="whose values no format of"):
            gguftools.quantize(source, "STOCK", tmp_path / "x.gguf")
        return
    gguftools.quantize(source, "STOCK", tmp_path / "x.gguf")
    found = open_gguf(tmp_path / "x.gguf").tensors["w.weight"]
    assert found.format.name == wanted
    assert np.array_equal(found.float32(), tensor.float32())
    assert not tensor.float32()[0, [0, 32, 64, 96]].any()


@pytest.mark.parametrize("source", ["interleaved", "lossy"])
def test_bytes_survive_whatever_moves_them(source, request, tmp_path):
    path = request.getfixturevalue(source)
    wanted = raw_of(path)
    shards = gguftools.split(path, tmp_path / "part", max_tensors=2)
    gguftools.merge(shards.shards[0].path, tmp_path / "whole.gguf")
    assert raw_of(tmp_path / "whole.gguf") == wanted
    gguftools.quantize(path, "COPY", tmp_path / "copy.gguf", write=WriteOptions(resume=False))
    assert raw_of(tmp_path / "copy.gguf") == wanted
    gguftools.set_metadata(tmp_path / "copy.gguf", {"general.name": "x" * 10_000})
    assert raw_of(tmp_path / "copy.gguf") == wanted
    first, second = (gguftools.hash(each, ["sha256"]).digests for each in (path, tmp_path / "copy.gguf"))
    assert {each.tensor: each.hex for each in first if each.tensor} == {
        each.tensor: each.hex for each in second if each.tensor
    }


def test_the_hash_counts_what_is_behind_the_rows(lossy):
    tensor = open_gguf(lossy).tensors["blk.0.ffn_gate.weight"]
    wanted = hashlib.sha256(tensor.raw().tobytes() + tensor.tail.tobytes()).hexdigest()
    digests = gguftools.hash(lossy, ["sha256"]).digests
    assert next(each.hex for each in digests if each.tensor == "blk.0.ffn_gate.weight") == wanted


def test_a_file_of_a_fork_runs_as_what_it_was_made_of(stock, interleaved):
    tokens = [1, 20, 300, 4, 50]
    assert np.array_equal(load(interleaved).logits(tokens), load(stock).logits(tokens))


@pytest.fixture(params=[1 << 20, 3 * 256], ids=["large blocks", "three rows"])
def block_values(request, monkeypatch):
    """How many values are looked at together: where it is few, blocks begin within rows that are interleaved."""
    monkeypatch.setattr(row_blocks, "BLOCK_VALUES", request.param)
    monkeypatch.setattr(pipeline, "BLOCK_VALUES", request.param)


def test_differences_are_those_of_the_values(stock, interleaved, block_values):
    for a, b in ((stock, interleaved), (interleaved, stock)):
        found = gguftools.diff(a, b)
        assert {each.kind for each in found.tensors} == {"same", "type"}
        assert {each.figures.max_error for each in found.tensors} == {0.0}
        errors = weight_errors(a, b).total
        assert (errors.rmse, errors.non_finite) == (0.0, 0)


def test_errors_of_what_is_decoded_are_those_of_its_values(lossy, block_values, tmp_path):
    gguftools.quantize(lossy, "F32", tmp_path / "x.gguf", options=QuantizeOptions(allow_requantize=True))
    for a, b in ((lossy, tmp_path / "x.gguf"), (tmp_path / "x.gguf", lossy)):
        assert weight_errors(a, b).total.rmse == 0.0
        assert {each.figures.max_error for each in gguftools.diff(a, b).tensors} == {0.0}


def test_validate_names_them_and_finds_what_is_no_number(lossy, interleaved, tmp_path):
    told = {problem.where: problem.message for problem in gguftools.validate(interleaved).problems}
    assert "type 212 is by its size a format of ik_llama.cpp" in told["Q4_K_R4"]
    assert "`gguftools quantize FILE STOCK` makes it Q4_K" in told["Q4_K_R4"]
    told = {problem.where: problem.message for problem in gguftools.validate(lossy).problems}
    assert "a format of BitNet; `gguftools quantize FILE STOCK` makes it Q2_0" in told["I2_S"]  # 0.75 is a half
    assert "a format of ik_llama.cpp; llama.cpp has none with these values" in told["IQ4_K"]
    raw = bytearray(lossy.read_bytes())
    file = open_gguf(lossy)
    at = file.offsets["blk.0.ffn_down.weight"]
    raw[at : at + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "nan.gguf").write_bytes(raw)
    told = {problem.where: problem.message for problem in gguftools.validate(tmp_path / "nan.gguf").problems}
    assert "NaN or infinity" in told["blk.0.ffn_down.weight"]


def test_show_names_them(lossy):
    shown = json.loads(typed("show", lossy, "--json").stdout)
    types = {each["name"]: (each["type"], each["size_bytes"]) for each in shown["tensors"]}
    assert types["blk.0.ffn_gate.weight"] == ("I2_S", 4 * 128 + 32)
    assert types["blk.0.ffn_up.weight"][0] == "IQ4_K"


def test_values_are_exported(lossy, tmp_path):
    gguftools.export(lossy, tmp_path / "x.safetensors")
    from safetensors.numpy import load_file

    found = load_file(tmp_path / "x.safetensors")
    for name, tensor in open_gguf(lossy).tensors.items():
        assert np.array_equal(found[name], tensor.float32())


def test_the_recipe_of_an_interleaved_file_is_found(stock, interleaved, lossy, shared):
    wanted = gguftools.identify(ROOT / "examples" / "austen-4m", stock)
    assert gguftools.identify(ROOT / "examples" / "austen-4m", interleaved).recipe == wanted.recipe == "Q4_K_M"
    with pytest.raises(OptionError, match=r"was made by no recipe of llama.cpp: 'blk.0.ffn_up.weight' is IQ4_K"):
        gguftools.identify(ROOT / "examples" / "austen-4m", lossy)


def test_a_base_of_an_interleaved_file_finds_its_output_matrix(stock, interleaved, tmp_path, shared):
    text = tmp_path / "text.txt"
    text.write_text((ROOT / "examples" / "persuasion.txt").read_text()[:6000])
    made = gguftools.divergence(
        interleaved, stock, text=text, options=gguftools.DivergenceOptions(save_base=tmp_path / "base.gguf")
    )
    again = gguftools.divergence(tmp_path / "base.gguf", stock, text=text)
    named = gguftools.divergence(
        tmp_path / "base.gguf", stock, text=text, options=gguftools.DivergenceOptions(base_model=interleaved)
    )
    means = [each.as_dict()["files"][0]["kl_divergence"]["mean"] for each in (made, again, named)]
    assert means[1:] == means[:1] * 2
    assert abs(means[0]) < 1e-9

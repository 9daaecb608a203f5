"""PowerInfer's files: written from checkpoint and predictor, read, quantized, run with all neurons or those marked."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gguftools
from gguftools.conversion.options import ConvertOptions
from gguftools.io.gguf.reader import open_gguf
from quants import from_array
from quants.errors import GgufToolsError
from runtime import feed_forward as nets
from runtime.feed_forward import predicted
from runtime.graph import layers, text
from runtime.graph.builder import Builder
from runtime.graph.operations import PredictedNet
from runtime.model import RunningModel
from runtime.products.matmul import matmul_transposed
from tests import zoo_build

from ...conftest import ROOT, SHARED
from ..command_line import typed
from ..io.torch_files import write_torch

MODEL = ROOT / "examples" / "austen-4m"
TEXT = ROOT / "examples" / "persuasion.txt"
RANK = 16


def write_predictor(folder: Path, layers: int, width: int, neurons: int, **config: Any) -> Path:
    """Random predictors that mark about half of the neurons."""
    folder.mkdir()
    chance = np.random.default_rng(3)
    for i in range(layers):
        state = {
            "fc1.weight": chance.standard_normal((RANK, width)).astype(np.float32),
            "fc2.weight": chance.standard_normal((neurons, RANK)).astype(np.float32),
        }
        write_torch(folder / f"model_{i}.pt", state)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_relu(folder: Path, key: str = "hidden_act") -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "relu"}))
    return folder


@pytest.fixture(scope="module")
def relu_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_relu(Path(shutil.copytree(MODEL, tmp_path_factory.mktemp("relu") / "austen")))


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_predictor(tmp_path_factory.mktemp("p") / "predictor", 4, 256, 768, sparse_threshold=0.25)


@pytest.fixture(scope="module")
def files(relu_model: Path, predictor: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plain file and PowerInfer's."""
    folder = tmp_path_factory.mktemp("files")
    gguftools.convert(relu_model, folder / "plain.gguf", "f32")
    gguftools.convert(relu_model, folder / "sparse.gguf", "f32", options=ConvertOptions(predictor=predictor))
    return folder / "plain.gguf", folder / "sparse.gguf"


def test_what_is_different(files: tuple[Path, Path]) -> None:
    plain, sparse = (open_gguf(path) for path in files)
    assert files[1].read_bytes()[:8] == b"PWRI\x03\x00\x00\x00"
    assert sparse.magic == b"PWRI"
    assert sparse.metadata["powerinfer.sparse_threshold"] == 0.25
    assert {key for key in sparse.metadata if key not in plain.metadata} == {"powerinfer.sparse_threshold"}
    assert [key for key in sparse.metadata if key in plain.metadata] == list(plain.metadata)
    renamed = {name.replace("ffn_down.", "ffn_down_t."): tensor for name, tensor in plain.tensors.items()}
    assert [name for name in sparse.tensors if ".fc" not in name] == list(renamed)
    for name, tensor in renamed.items():
        expected = tensor.float32().T if "ffn_down_t" in name else tensor.float32()
        assert np.array_equal(sparse.tensors[name].float32(), expected), name
    assert sparse.tensors["blk.3.fc1.weight"].shape == (RANK, 256)
    assert sparse.tensors["blk.3.fc2.weight"].shape == (768, RANK)


def test_all_neurons_give_the_plain_models_logits(files: tuple[Path, Path]) -> None:
    ids = list(range(5, 45))
    plain, sparse = (gguftools.load(path) for path in files)
    wanted = plain.logits(ids)
    assert np.abs(sparse.logits(ids) - wanted).max() < 1e-5 * wanted.std()


def test_a_file_that_does_not_say_so_has_relu(files: tuple[Path, Path]) -> None:
    """As PowerInfer's own converter writes them."""
    opened = gguftools.open(files[1])
    metadata = opened.metadata.copy()
    del metadata["llama.hidden_activation"]
    ids = list(range(5, 25))
    assert np.array_equal(RunningModel(metadata, opened.tensors).logits(ids), gguftools.load(files[1]).logits(ids))


def masked(model: RunningModel, threshold: float) -> RunningModel:
    """The model computed with all neurons and those below the threshold set to zero, to compare with."""

    def feed_forward(forward: Any, operation: PredictedNet, read: Any) -> Any:
        layer, x, residual = operation.layer, read(operation.x), read(operation.residual)
        first, second = (layer.tensors[f"fc{n}.weight"].float32() for n in (1, 2))
        scores = np.maximum(residual @ first.T, 0) @ second.T
        names = ("ffn_gate", "ffn_up") if "ffn_gate.weight" in layer else ("ffn_up",)
        parts = []
        for name in names:
            bias = layer.tensors.get(f"{name}.bias")
            parts.append(x @ layer.tensors[f"{name}.weight"].float32().T + (bias.float32() if bias else 0))
        hidden = np.maximum(parts[0], 0) * (parts[1] if len(parts) > 1 else 1) * (scores >= threshold)
        bias = layer.tensors.get("ffn_down_t.bias")
        result: NDArray[np.float32] = hidden @ layer.tensors["ffn_down_t.weight"].float32()
        return (result + (bias.float32() if bias else 0)).astype(np.float32)

    def write(b: Builder, layer: Any, x: Any, residual: Any, layer_input: Any = None) -> Any:
        return b.add("ffn_out", PredictedNet(x, residual, layer))

    original = model.logits

    def logits(ids: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(text.COMPUTE, PredictedNet, feed_forward)
            patch.setattr(layers, "net", write)
            return original(ids)

    model.logits = logits  # type: ignore[method-assign]
    return model


def test_marked_neurons_alone(files: tuple[Path, Path]) -> None:
    ids = list(range(5, 45))
    wanted = masked(gguftools.load(files[1]), 0.25).logits(ids)
    model = gguftools.load(files[1])
    all_neurons = model.logits(ids)
    sparsity = model.use_predictor()
    found = model.logits(ids)
    assert sparsity.threshold == 0.25
    assert sparsity.neurons == 40 * 4 * 768
    assert 0.2 < sparsity.skipped < 0.8
    assert np.abs(found - wanted).max() < 1e-4 * wanted.std()
    assert np.abs(found - all_neurons).max() > 0.1 * wanted.std()


def test_only_marked_neurons_are_read(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a single token: rows of up, gate and down that are not marked may hold anything."""
    marked_in: list[NDArray[np.bool_]] = []

    def spy(*arguments: Any) -> NDArray[np.bool_]:
        marked_in.append(predicted(*arguments)[0])
        return marked_in[-1][None]

    monkeypatch.setattr(nets, "predicted", spy)
    model = gguftools.load(files[1])
    model.use_predictor()
    wanted = model.logits([7])
    spoiled = dict(model.tensors)
    for layer, marked in enumerate(marked_in):
        for name in (f"blk.{layer}.{matrix}.weight" for matrix in ("ffn_up", "ffn_gate", "ffn_down_t")):
            values = spoiled[name].float32().copy()
            values[~marked] = np.nan
            spoiled[name] = from_array(name, values)
    again = RunningModel(model.metadata, spoiled)
    again.use_predictor()
    assert np.array_equal(again.logits([7]), wanted)


@pytest.mark.parametrize("threshold", [-math.inf, math.inf])
def test_all_or_none(files: tuple[Path, Path], threshold: float) -> None:
    ids = list(range(5, 25))
    model = gguftools.load(files[1])
    wanted = masked(gguftools.load(files[1]), threshold).logits(ids)
    model.use_predictor().threshold = threshold
    assert np.abs(model.logits(ids) - wanted).max() < 1e-4 * wanted.std()
    assert model.sparsity is not None
    assert model.sparsity.skipped == float(threshold > 0)


def test_product_by_rows() -> None:
    chance = np.random.default_rng(0)
    for n, rows, width in [(1, 5, 3), (40, 1000, 1500), (3, 0, 8)]:
        x, w = (chance.standard_normal(s).astype(np.float32) for s in ((n, rows), (rows, width)))
        np.testing.assert_allclose(matmul_transposed(x, from_array("w", w)), x @ w, rtol=1e-4, atol=1e-4)


def convert_with_predictor(base: Path, folder: Path) -> None:
    """plain.gguf, and sparse.gguf with a predictor that fits."""
    gguftools.convert(base, folder / "plain.gguf", "f32")
    tensors = gguftools.open(folder / "plain.gguf").tensors
    layers = sum(name.endswith("ffn_up.weight") for name in tensors)
    neurons, width = tensors["blk.0.ffn_up.weight"].shape
    predictor = write_predictor(folder / "predictor", layers, width, neurons)
    gguftools.convert(base, folder / "sparse.gguf", "f32", options=ConvertOptions(predictor=predictor))


@pytest.mark.parametrize(
    ("entry", "key"),
    [("opt-125m", "activation_function"), ("falcon-7b-style", "activation"), ("falcon-40b-style", "activation")],
)
def test_other_families(shared: Path, tmp_path: Path, entry: str, key: str) -> None:
    zoo_build.build(SHARED / "zoo", entry, tmp_path / entry)
    base = with_relu(tmp_path / entry, key)
    convert_with_predictor(base, tmp_path)
    ids = np.load(shared / "zoo" / entry / "logits.npz")["ids0"]
    wanted = gguftools.load(tmp_path / "plain.gguf").logits(ids)
    model = gguftools.load(tmp_path / "sparse.gguf")
    assert np.abs(model.logits(ids) - wanted).max() < 1e-5 * wanted.std()
    assert "powerinfer.sparse_threshold" not in gguftools.open(tmp_path / "sparse.gguf").metadata
    expected = masked(gguftools.load(tmp_path / "sparse.gguf"), 0.0).logits(ids)
    model.use_predictor()
    assert np.abs(model.logits(ids) - expected).max() < 1e-4 * expected.std()


def test_falcon_that_names_no_activation_is_taken_for_relu(shared: Path, tmp_path: Path) -> None:
    zoo_build.build(SHARED / "zoo", "falcon-7b-style", tmp_path / "falcon")
    path = tmp_path / "falcon" / "config.json"
    config = json.loads(path.read_text())
    for key in ("activation", "activation_function", "hidden_act"):
        config.pop(key, None)
    path.write_text(json.dumps(config))
    convert_with_predictor(tmp_path / "falcon", tmp_path)
    assert gguftools.open(tmp_path / "sparse.gguf").metadata["falcon.hidden_activation"] == "relu"


def run(*arguments: Any) -> tuple[int, str]:
    result = typed(*arguments)
    return result.returncode, result.stdout + result.stderr


def test_commands(relu_model: Path, predictor: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    assert run("convert", relu_model, "-o", target, "--outtype", "Q4_0", "--predictor", predictor)[0] == 0
    assert open_gguf(target).magic == b"PWRI"
    code, output = run("show", target)
    assert code == 0
    assert "ffn_down_t" in output
    assert run("quantize", files[1], "Q8_0", "-o", tmp_path / "q8.gguf")[0] == 0
    quantized = open_gguf(tmp_path / "q8.gguf")
    assert quantized.magic == b"PWRI"
    assert quantized.tensors["blk.0.ffn_down_t.weight"].format.name == "Q8_0"
    measure = ("perplexity", tmp_path / "q8.gguf", "-f", TEXT, "--ctx", 64, "--chunks", 2)
    code, output = run(*measure, "--sparse")
    assert code == 0
    assert re.search(r"\d\d\.\d % of the neurons skipped", output)
    assert re.search(r"all neurons \d+\.\d+: skipping costs [+-]\d+\.\d+", output)
    code, output = run(*measure, "--sparse", "--no-dense")
    assert "skipped" in output
    assert "costs" not in output
    assert "skipped" not in run(*measure)[1]
    assert run("validate", tmp_path / "q8.gguf")[0] == 0


def test_figures(files: tuple[Path, Path]) -> None:
    given: dict[str, Any] = {"n_ctx": 64, "chunks": 2}
    dense = gguftools.perplexity(files[1], TEXT, **given)
    both = gguftools.perplexity(files[1], TEXT, options=gguftools.PerplexityOptions(sparse=True), **given)
    assert (dense.skipped, dense.dense_perplexity) == (None, None)
    assert both.dense_perplexity == dense.perplexity
    assert both.perplexity != dense.perplexity
    assert both.skipped is not None
    assert 0 < both.skipped < 1
    with pytest.raises(GgufToolsError, match="no predictor"):
        gguftools.perplexity(files[0], TEXT, options=gguftools.PerplexityOptions(sparse=True), **given)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no folder"),
        (lambda folder: [path.unlink() for path in folder.glob("*.pt")], "has no files model_0.pt"),
        (lambda folder: (folder / "model_1.pt").unlink(), "no model_1.pt"),
        (lambda folder: (folder / "model_3.pt").unlink(), "the model has 4 layers, the predictor 3"),
        (lambda folder: write_torch(folder / "model_2.pt", {"fc1.weight": np.zeros((4, 4), np.float32)}), "fc2.weight"),
        (
            lambda folder: write_torch(
                folder / "model_2.pt", {f"fc{i}.weight": np.zeros((RANK, 256), np.float32) for i in (1, 2)}
            ),
            "another model",
        ),
        (lambda folder: (folder / "model_2.pt").write_bytes(b"\x80\x02c"), "model_2.pt"),
        (lambda folder: (folder / "config.json").write_text('{"sparse_threshold": "low"}'), "'low'"),
    ],
)
def test_broken_predictors_are_refused(
    relu_model: Path, predictor: Path, tmp_path: Path, spoil: Any, message: str
) -> None:
    folder = Path(shutil.copytree(predictor, tmp_path / "predictor"))
    spoil(folder)
    with pytest.raises(GgufToolsError) as caught:
        gguftools.convert(relu_model, tmp_path / "out.gguf", options=ConvertOptions(predictor=folder))
    assert message in f"{caught.value} {caught.value.hint}"
    assert not (tmp_path / "out.gguf").exists()


def test_models_without_relu_are_refused(predictor: Path, tmp_path: Path) -> None:
    with pytest.raises(GgufToolsError, match="says silu"):
        gguftools.convert(MODEL, tmp_path / "out.gguf", options=ConvertOptions(predictor=predictor))

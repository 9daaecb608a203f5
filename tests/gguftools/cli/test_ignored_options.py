"""Every option has an effect or is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gguftools
from archs.metadata import Metadata
from gguftools.inspection.validation import validate
from gguftools.writing.items import Item
from gguftools.writing.options import WriteOptions
from gguftools.writing.pipeline import FilePlan, write_files
from quants import from_array
from quants.errors import OptionError

from ..command_line import EXAMPLE, TEXT, refused, run, typed


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    assert run("convert", EXAMPLE, "-o", path, cwd=path.parent).returncode == 0
    return path


@pytest.fixture
def model(original: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(original, tmp_path / "model.gguf"))


WRONG = {  # of shell: usage errors. MODEL: a model's file, CK: its checkpoint, TEXT: a text
    # threads
    "audit MODEL -j 0": "--threads",
    "convert CK -o x.gguf -j 0": "--threads",
    "convert CK -o x.gguf -j -3": "--threads",
    "diff MODEL MODEL -j 0": "--threads",
    "export MODEL -o x -j -1": "--threads",
    "imatrix MODEL -f TEXT -o x -j 0": "--threads",
    "perplexity MODEL -f TEXT -j 0": "--threads",
    "perplexity MODEL -f TEXT -j -3": "--threads",
    "quantize MODEL Q8_0 -o x.gguf -j 0": "--threads",
    "validate MODEL -j 0": "--threads",
    # numbers that mean nothing
    "quantize MODEL Q8_0 -o x.gguf --split-max-tensors 0": "--split-max-tensors",
    # what contradicts, or means nothing alone
    "perplexity MODEL -f TEXT --no-dense": "--no-dense needs --sparse",
    "perplexity MODEL -f TEXT --running --json": "--running cannot be combined with --json",
    "quantize MODEL Q8_0 -o x.gguf --leave-output-tensor --output-tensor-type Q6_K": "cannot be combined with",
    "quantize MODEL Q8_0 -o x.gguf --allow-missing-experts": "needs --imatrix",
    "quantize MODEL Q8_0 -o x.gguf --dry-run --resume": "--dry-run cannot be combined with --resume",
    "quantize MODEL Q8_0 -o x.gguf --dry-run --check-tensors": "--dry-run cannot be combined with --check-tensors",
    "quantize MODEL Q8_0 --list-recipes": "--list-recipes cannot be combined with",
    "hash MODEL --check manifest --sha256": "--check cannot be combined with --sha256",
    "hash MODEL --check manifest -o x": "--check cannot be combined with --output",
    "set-metadata MODEL --recover --roll-back": "--recover cannot be combined with --roll-back",
    "set-metadata MODEL --recover --dry-run": "--dry-run cannot be combined with --recover",
    "set-metadata MODEL": "no change is given",
    "show MODEL --key general.name --markdown": "--key cannot be combined with --markdown",
    "show MODEL --json --markdown": "--json cannot be combined with --markdown",
    "show MODEL --text --tensors attn": "--text cannot be combined with --tensors",
    "architectures --json --markdown": "--json cannot be combined with --markdown",
    "diff MODEL MODEL --vocab --all": "--vocab cannot be combined with --all",
    "convert CK -o x.gguf --lora CK --pre llama-bpe": "--lora cannot be combined with --pre",
    "convert CK -o x.gguf --lora CK --embed-tokenizer": "--lora cannot be combined with --embed-tokenizer",
    "export MODEL -o x.safetensors --max-shard-size 2G": "cannot be combined with --tensors",
    "split MODEL --max-size 2M --max-tensors 3": "cannot be combined with",
    # two values where one is taken
    "quantize MODEL Q8_0 -o x.gguf -j 1 --threads 2": "--threads is given twice",
    "convert CK -o x.gguf --outtype f16 --outtype f32": "--outtype is given twice",
    "show MODEL --tensors attn --tensors ffn": "--tensors is given twice",
    # nothing where something belongs
    "convert CK -o x.gguf --reserve ''": "--reserve",
    "quantize MODEL Q8_0 -o x.gguf --prune-layers ''": "--prune-layers",
    "quantize MODEL Q8_0 -o ''": "-o",
    "convert CK --outtype f16 -o ''": "-o",
    "show MODEL --tensors=": "--tensors=",
}


@pytest.mark.parametrize("call", WRONG)
def test_what_would_be_ignored_is_refused(call: str, model: Path):
    words = ["" if word == "''" else word for word in call.split()]
    named = {"MODEL": model, "CK": EXAMPLE, "TEXT": TEXT}
    said = refused(typed(*(named.get(word, word) for word in words)), WRONG[call], code=2)
    assert said.splitlines()[0].startswith("error:"), said
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.gguf"]


CONTRADICTIONS = {  # what is seen only when files have been opened
    "quantize MODEL COPY -o x.gguf --pure": "COPY",
    "quantize MODEL COPY -o x.gguf --output-tensor-type Q6_K": "COPY",
    "quantize MODEL Q4_K_M Q4_K -o .": "is one recipe twice",
    "quantize CK Q8_0 -o x.gguf --keep-split": "no GGUF shards",
    "convert CK -o x.gguf --outtype f16 --imatrix MATRIX": "without importance",
    "quantize MODEL Q4_K_M -o x.gguf --imatrix MATRIX --include-weights attn_v --include-weights fnn": "'fnn'",
    "quantize MODEL Q4_K_M -o x.gguf --imatrix MATRIX --exclude-weights fnn": "'fnn'",
    "convert CK -o x.gguf --merge-lora CK=nan": "finite",
    "convert CK -o x.gguf --merge-lora CK=inf": "finite",
}


@pytest.fixture(scope="module")
def matrix(original: Path) -> Path:
    path = original.with_name("matrix.gguf")
    done = run("imatrix", original, "-f", TEXT, "-o", path, "--chunks", 1, "-c", 64, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("call", CONTRADICTIONS)
def test_what_a_file_makes_meaningless_is_refused(call: str, model: Path, matrix: Path):
    named = {"MODEL": model, "CK": EXAMPLE, "MATRIX": matrix}
    refused(typed(*(named.get(word, word) for word in call.split())), CONTRADICTIONS[call])
    assert sorted(path.name for path in model.parent.iterdir()) == ["model.gguf"]


def test_an_importance_matrix_is_not_quantized(model: Path, matrix: Path):
    refused(typed("quantize", matrix, "Q8_0", "-o", "x.gguf"), "an importance matrix, not a model", "--imatrix")


@pytest.mark.parametrize(("kind", "what"), [("imatrix", "--imatrix"), ("adapter", "--lora")])
def test_other_files_than_models_are_not_quantized(kind: str, what: str, tmp_path: Path):
    metadata = Metadata()
    metadata["general.architecture"], metadata["general.type"] = "llama", kind
    tensor = from_array("a.weight", np.ones((4, 64), np.float32))
    write_files([FilePlan(tmp_path / "other.gguf", metadata, (Item(tensor, tensor.format),))])
    refused(typed("quantize", tmp_path / "other.gguf", "Q8_0", "-o", tmp_path / "x.gguf"), what)


def test_recipes_are_listed_as_json():
    listed = json.loads(typed("quantize", "--list-recipes", "--json").stdout)
    assert {"Q4_K_M", "Q8_0"} <= {each["name"] for each in listed}


def test_several_keys_are_shown(model: Path):
    found = typed("show", model, "--key", "general.name", "--key", "llama.block_count", "--json")
    assert json.loads(found.stdout) == {"general.name": "Austen 4M", "llama.block_count": 4}
    plain = typed("show", model, "--key", "general.name", "--key", "llama.block_count").stdout
    assert plain.splitlines() == ["general.name:", "Austen 4M", "llama.block_count:", "4"]


def test_windows_longer_than_the_model_knows_are_warned_of(model: Path, tmp_path: Path):
    for words in (("perplexity", model), ("imatrix", model, "-o", tmp_path / "i.gguf")):
        done = typed(*words, "-f", TEXT, "--ctx", 2048, "--chunks", 1)
        assert done.returncode == 0
        assert "longer than the context of 512" in done.stderr


def test_a_manifest_is_written_and_printed(model: Path):
    done = typed("hash", model, "--no-tensors", "-o", "manifest", "--json")
    assert json.loads(done.stdout)
    assert Path("manifest").exists()


def test_a_matrix_that_changes_nothing_is_said_so(model: Path, matrix: Path):
    done = typed("quantize", model, "Q8_0", "-o", "x.gguf", "--imatrix", matrix, "--dry-run")
    assert "the importance matrix changes no tensor of Q8_0" in done.stderr


def test_errors_that_were_measured_are_printed(model: Path):
    done = typed("quantize", model, "Q4_0", "-o", "x.gguf", "--statistics")
    assert "blk.0.ffn_down.weight" in done.stdout
    assert "rmse" in done.stdout


def test_measuring_can_be_switched_off_for_json(model: Path):
    done = typed("quantize", model, "Q8_0", "-o", "x.gguf", "--no-statistics", "--json")
    tensors = json.loads(done.stdout)["outputs"][0]["tensors"]
    assert {tensor["rmse"] for tensor in tensors} == {None}


@pytest.mark.parametrize("threads", [0, -3])
def test_no_threads_are_refused_from_python_too(threads: int, model: Path):
    with pytest.raises(OptionError, match="threads"):
        gguftools.quantize(model, "Q8_0", "x.gguf", write=WriteOptions(threads=threads))
    with pytest.raises(OptionError, match="threads"):
        gguftools.perplexity(model, TEXT, chunks=1, threads=threads)
    with pytest.raises(OptionError, match="threads"):
        validate(model, threads=threads)

"""Models in stores: the bytes of the same command on files, whatever the store does."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguftools
from gguftools import convert, quantize
from gguftools.files.stores import store
from gguftools.files.stores.path import located
from gguftools.metadata.difference import compare_metadata

from ....conftest import ROOT

MODEL = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The example in BF16."""
    path = tmp_path_factory.mktemp("source") / "austen-bf16.gguf"
    convert(MODEL, path)
    return path


def put(path: Path, url: str) -> str:
    """Store a file, or the files of a folder."""
    fs = store.file_system(located(url).scheme)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        fs.pipe_file(f"{url}/{file.name}" if path.is_dir() else url, file.read_bytes())
    return url


def get(url: str) -> bytes:
    fs = store.file_system(located(url).scheme)
    fs.invalidate_cache()
    return bytes(fs.cat_file(url))


def names(url: str) -> list[str]:
    fs = store.file_system(located(url).scheme)
    fs.invalidate_cache()
    return sorted(path.rpartition("/")[2] for path in fs.find(url))


@pytest.fixture(params=["s3://models", "memory://models"])
def bucket(request) -> str:
    request.getfixturevalue("s3" if request.param.startswith("s3") else "memory")
    return str(request.param)


def test_a_file_in_a_store_is_the_file(bucket, source, tmp_path):
    url = put(source, f"{bucket}/austen-bf16.gguf")
    with gguftools.open(url) as model, gguftools.open(source) as local:
        assert str(model.path) == url
        assert not list(compare_metadata(model.metadata, local.metadata))
        for name, tensor in local.tensors.items():
            assert (model.tensors[name].raw() == tensor.raw()).all(), name
    quantize(url, "Q4_K_M", tmp_path / "stored.gguf")
    quantize(source, "Q4_K_M", tmp_path / "local.gguf")
    assert (tmp_path / "stored.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()


def test_an_output_in_a_store_is_the_file(bucket, source, tmp_path):
    quantize(source, ["Q4_K_M", "Q8_0"], f"{bucket}/out/")
    quantize(source, ["Q4_K_M", "Q8_0"], tmp_path)
    assert names(f"{bucket}/out") == ["austen-Q4_K_M.gguf", "austen-Q8_0.gguf"]
    for name in names(f"{bucket}/out"):
        assert get(f"{bucket}/out/{name}") == (tmp_path / name).read_bytes()


def test_a_checkpoint_in_a_store_is_the_folder(bucket, source):
    url = put(MODEL, f"{bucket}/models/austen-4m")
    convert(url, f"{bucket}/converted.gguf")
    assert get(f"{bucket}/converted.gguf") == source.read_bytes()


def test_split_sets(bucket, source, tmp_path):
    quantize(source, "Q8_0", f"{bucket}/split.gguf", max_size=1_000_000)
    quantize(source, "Q8_0", tmp_path / "split.gguf", max_size=1_000_000)
    assert names(bucket) == sorted(path.name for path in tmp_path.iterdir())
    assert len(names(bucket)) > 3
    for name in names(bucket):
        assert get(f"{bucket}/{name}") == (tmp_path / name).read_bytes()
    with gguftools.open(f"{bucket}/{names(bucket)[1]}") as model, gguftools.open(source) as local:
        assert sorted(model.tensors) == sorted(local.tensors)

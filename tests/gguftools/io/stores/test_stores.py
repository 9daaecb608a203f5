"""Models in stores: the bytes of the same command on files, whatever the store does."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import gguftools
from gguftools import convert, quantize
from gguftools.calibration.target import SearchOptions
from gguftools.io.gguf import stored
from gguftools.io.stores import generic, store
from gguftools.io.stores import s3 as s3_store
from gguftools.io.stores.path import located
from gguftools.metadata.difference import compare_metadata
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing import whole_files
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, OptionError

from ....conftest import ROOT
from ...elsewhere import Elsewhere
from ...tiny_models import edited

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


@pytest.mark.parametrize("first", [4, 24, 1000, 100_000])
def test_headers_are_read_until_they_end(bucket, source, monkeypatch, first):
    monkeypatch.setattr(stored, "FIRST_READ", first)
    monkeypatch.setattr(stored, "GROWTH", 1.1)
    with gguftools.open(put(source, f"{bucket}/m.gguf")) as model, gguftools.open(source) as local:
        assert not list(compare_metadata(model.metadata, local.metadata))
        assert list(model.tensors) == list(local.tensors)


@pytest.mark.parametrize("size", [0, 3, 20, 100, 5000, 200_000, 2_000_000])
def test_an_object_that_is_cut_short_is_refused_as_the_file_is(memory, source, tmp_path, size):
    (tmp_path / "m.gguf").write_bytes(source.read_bytes()[:size])
    with pytest.raises(FileError) as local:
        gguftools.open(tmp_path / "m.gguf")
    with pytest.raises(FileError) as remote:
        gguftools.open(put(tmp_path / "m.gguf", "memory://models/m.gguf"))
    assert str(remote.value).replace("memory://models", str(tmp_path)) == str(local.value)


def test_an_output_in_a_store_is_the_file(bucket, source, tmp_path):
    quantize(source, ["Q4_K_M", "Q8_0"], f"{bucket}/out/")
    quantize(source, ["Q4_K_M", "Q8_0"], tmp_path)
    assert names(f"{bucket}/out") == ["austen-Q4_K_M.gguf", "austen-Q8_0.gguf"]
    for name in names(f"{bucket}/out"):
        assert get(f"{bucket}/out/{name}") == (tmp_path / name).read_bytes()


def test_outputs_are_beside_the_source(bucket, source):
    url = put(source, f"{bucket}/deep/er/austen-bf16.gguf")
    quantize(url, "Q8_0")
    assert names(f"{bucket}/deep") == ["austen-Q8_0.gguf", "austen-bf16.gguf"]


def test_several_recipes_need_a_folder(bucket, source):
    with pytest.raises(OptionError, match="need a folder to be written to") as caught:
        quantize(source, ["Q8_0", "Q4_0"], f"{bucket}/one.gguf")
    assert caught.value.hint == f"end it with a slash: {bucket}/one.gguf/"


@pytest.mark.parametrize(("method", "count"), [("spawn", 1), ("fork", 2)])
def test_workers_read_and_write_there(s3, source, tmp_path, method, count):
    url = put(source, "s3://models/austen-bf16.gguf")
    with ProcessPoolExecutor(count, get_context(method)) as executor:
        quantize(url, "Q8_0", "s3://models/out.gguf", write=WriteOptions(executor=executor))
    quantize(source, "Q8_0", tmp_path / "local.gguf")
    assert get("s3://models/out.gguf") == (tmp_path / "local.gguf").read_bytes()


def test_what_is_not_installed_is_named(monkeypatch):
    store.made_file_system.cache_clear()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(FileError, match=r"s3:// needs fsspec, which is not installed") as caught:
        gguftools.open("s3://models/m.gguf")
    assert caught.value.hint == 'pip install "gguftools[stores]"'
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(FileError, match=r"gs:// needs a package that is not installed") as caught:
        gguftools.open("gs://models/m.gguf")
    assert caught.value.hint == "pip install gcsfs"
    with pytest.raises(FileError, match=r"nonsense:// cannot be opened"):
        gguftools.open("nonsense://models/m.gguf")


def test_buckets_and_rights(s3, source):
    with pytest.raises(FileError, match=r"there is no bucket nowhere, where s3://nowhere/m\.gguf would be"):
        quantize(source, "Q8_0", "s3://nowhere/m.gguf")
    with pytest.raises(FileError, match=r"there is no bucket nowhere, where s3://nowhere/model would be"):
        gguftools.open("s3://nowhere/model")
    s3.faults(POST=[{"status": 403}])
    with pytest.raises(FileError, match=r"s3://models/m\.gguf: the store refuses with status 403"):
        quantize(source, "Q8_0", "s3://models/m.gguf")
    s3.faults(HEAD=[{"status": 403}])
    with pytest.raises(FileError, match=r"s3://models/m\.gguf: the store refuses with status 403"):
        gguftools.open("s3://models/m.gguf")


def test_without_credentials(s3, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store.made_file_system.cache_clear()
    with pytest.raises(FileError, match=r"s3://models/m\.gguf cannot be reached") as caught:
        gguftools.open("s3://models/m.gguf")
    assert "AWS_PROFILE" in caught.value.hint


def test_what_needs_a_file_says_so(memory, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"memory://models/t\.gguf is in a store; a file on this disk was expected"):
        gguftools.quantize(source, search=SearchOptions(target_size=3_000_000), output="memory://models/t.gguf")
    assert not list(tmp_path.iterdir())
    assert names("memory://models") == []


def test_a_checkpoint_in_a_store_is_the_folder(bucket, source):
    url = put(MODEL, f"{bucket}/models/austen-4m")
    convert(url, f"{bucket}/converted.gguf")
    assert get(f"{bucket}/converted.gguf") == source.read_bytes()


def test_split_sets(bucket, source, tmp_path):
    quantize(source, "Q8_0", f"{bucket}/split.gguf", options=QuantizeOptions(max_size=1_000_000))
    quantize(source, "Q8_0", tmp_path / "split.gguf", options=QuantizeOptions(max_size=1_000_000))
    assert names(bucket) == sorted(path.name for path in tmp_path.iterdir())
    assert len(names(bucket)) > 3
    for name in names(bucket):
        assert get(f"{bucket}/{name}") == (tmp_path / name).read_bytes()
    with gguftools.open(f"{bucket}/{names(bucket)[1]}") as model, gguftools.open(source) as local:
        assert sorted(model.tensors) == sorted(local.tensors)


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_of_a_set_that_is_half_replaced_nothing_opens(bucket, source, tmp_path, monkeypatch, commits):
    """As where a run is killed between two of its objects: what stands in a store then has no first shard."""
    url, other = f"{bucket}/half.gguf", edited(source, tmp_path / "other.gguf", {"general.name": "another"})
    quantize(source, "Q8_0", url, options=QuantizeOptions(max_size=1_000_000))
    before = {name: get(f"{bucket}/{name}") for name in names(bucket)}
    done = []

    class Killed(BaseException):
        pass

    def dying(commit):
        def committed(self):
            if len(done) == commits:
                raise Killed
            done.append(self.path)
            commit(self)

        return committed

    with monkeypatch.context() as patch:
        for each in (s3_store.Upload, generic.Upload):
            patch.setattr(each, "commit", dying(each.commit))
            patch.setattr(each, "withdraw", lambda self: None)
        with pytest.raises(Killed):
            quantize(
                other, "Q8_0", url, options=QuantizeOptions(max_size=1_000_000), write=WriteOptions(overwrite=True)
            )
    now = {name: get(f"{bucket}/{name}") for name in names(bucket)}
    assert min(before) not in now
    for name in now:
        with pytest.raises(FileError):
            gguftools.open(f"{bucket}/{name}")
    quantize(other, "Q8_0", url, options=QuantizeOptions(max_size=1_000_000), write=WriteOptions(overwrite=True))
    quantize(other, "Q8_0", tmp_path / "half.gguf", options=QuantizeOptions(max_size=1_000_000))
    assert {name: get(f"{bucket}/{name}") for name in names(bucket)} == {
        path.name: path.read_bytes() for path in tmp_path.glob("half-*")
    }


def test_workers_write_whole_files_of_a_set(s3, source: Path, tmp_path: Path, monkeypatch) -> None:
    """Each its own, from a source in a store, and the first when the others are there."""
    order: list[str] = []
    write = whole_files.write_files

    def written(files, write_options, **how):
        order.extend(file.path.name for file in files)
        return write(files, write_options, **how)

    monkeypatch.setattr(whole_files, "write_files", written)
    put(source, f"s3://models/{source.name}")
    executor = Elsewhere()
    options = QuantizeOptions(rules={"ffn_up": "Q6_K"}, max_size=1 << 20)
    quantize(source, "Q4_K_M", tmp_path / "x.gguf", write=WriteOptions(threads=1), options=options)
    report = quantize(
        f"s3://models/{source.name}",
        "Q4_K_M",
        "s3://models/x.gguf",
        write=WriteOptions(executor=executor),
        options=options,
    )
    names = sorted(path.name for path in tmp_path.glob("x-*"))
    assert len(names) > 2
    assert order == [*names[1:], names[0]]
    assert max(executor.sizes) < 2_000_000  # the vocabulary, no tensor
    assert [get(f"s3://models/{name}") == (tmp_path / name).read_bytes() for name in names] == [True] * len(names)
    assert [file.name for file in report.outputs[0].files] == names
    with pytest.raises(FileError, match="already exists"):
        quantize(
            f"s3://models/{source.name}",
            "Q4_K_M",
            "s3://models/x.gguf",
            write=WriteOptions(executor=executor),
            options=options,
        )

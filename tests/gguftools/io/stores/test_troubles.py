"""Stores that are busy, break off, lie or change; runs that are killed, and that meet: what is said, what is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools import convert, quantize
from gguftools.io.stores import block_cache, retries, s3, store
from gguftools.io.stores.path import located
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from gguftools.writing.report import QuantizeReport
from gguftools.writing.row_blocks import Progress
from quants.errors import FileError, OptionError

from ....conftest import ROOT
from ...command_line import run
from ...tiny_models import metadata_of, write_model
from .test_stores import get, names, put

PART = 5 << 20  # the least that S3 takes
ROWS, WIDTH, MATRICES = 640, 1024, 14


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """18 MB of F16."""
    random = np.random.default_rng(1)
    tensors = {f"blk.{i}.ffn_up.weight": random.standard_normal((ROWS, WIDTH), np.float32) for i in range(MATRICES)}
    metadata = metadata_of({"general.architecture": "llama", "llama.block_count": MATRICES})
    return write_model(tmp_path_factory.mktemp("large") / "large.gguf", metadata, tensors, "F16")


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(s3, "MIN_PART", PART)
    monkeypatch.setattr(block_cache, "BLOCK", 1 << 19)
    monkeypatch.setattr(retries, "TRIES", 5)


def uploads() -> list[str]:
    """Keys of uploads that nobody ended."""
    found = store.file_system("s3").call_s3("list_multipart_uploads", Bucket="models")
    return [each["Key"] for each in found.get("Uploads", ())]


TROUBLES = [{"status": 503}, {"cut": 100_000}, {"hang_up": 1}, {"status": 500}, {"status": 429}, {"cut": 0}]


def test_reading_goes_on_after_troubles(s3, small_parts, large, tmp_path):
    put(large, "s3://models/large.gguf")
    s3.faults(GET=TROUBLES)
    quantize("s3://models/large.gguf", "COPY", tmp_path / "copy.gguf")
    quantize(large, "COPY", tmp_path / "local.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()


def test_writing_goes_on_after_troubles(s3, small_parts, large, tmp_path):
    s3.faults(PUT=[{"status": 503}, {"hang_up": 1}, {"status": 500}], POST=[{"none": 1}, {"status": 500}])
    quantize(large, "COPY", "s3://models/copy.gguf")
    quantize(large, "COPY", tmp_path / "local.gguf")
    assert get("s3://models/copy.gguf") == (tmp_path / "local.gguf").read_bytes()
    assert not uploads()


@pytest.mark.parametrize("lie", ["bytes 0-1/2", "bytes 5-9/100000", "", "all of it"])
def test_another_range_is_refused(s3, small_parts, large, tmp_path, lie):
    put(large, "s3://models/large.gguf")
    with gguftools.open("s3://models/large.gguf") as model:
        s3.faults(GET=[{"range": lie}] * 9)
        with pytest.raises(FileError, match=r"large\.gguf: the store answers otherwise than asked for"):
            model.save(tmp_path / "copy.gguf")
    assert not list(tmp_path.iterdir())


def test_a_changed_object_is_refused(s3, small_parts, large, tmp_path):
    put(large, "s3://models/large.gguf")
    with gguftools.open("s3://models/large.gguf") as model:
        s3.faults(GET=[{"none": 1}, {"change": 1}])
        with pytest.raises(FileError, match=r"s3://models/large\.gguf was replaced by another while it was read"):
            model.save(tmp_path / "copy.gguf")
    assert not list(tmp_path.iterdir())


def test_a_changed_object_is_noticed_at_the_end(memory, large, tmp_path):
    put(large, "memory://models/large.gguf")
    with gguftools.open("memory://models/large.gguf") as model:
        time.sleep(0.01)
        put(large, "memory://models/large.gguf")
        with pytest.raises(FileError, match=r"memory://models/large\.gguf was changed while it was read"):
            model.save(tmp_path / "copy.gguf")
    assert not list(tmp_path.iterdir())


def test_a_changed_config_is_noticed_at_the_end(memory, tmp_path):
    folder = ROOT / "examples" / "austen-4m"
    url = put(folder, "memory://models/austen")

    def change(done, total, tensor):
        put(folder / "config.json", f"{url}/config.json")

    with pytest.raises(FileError, match=r"memory://models/austen/config\.json was changed while it was read"):
        convert(url, tmp_path / "x.gguf", "f16", write=WriteOptions(threads=1, progress=change))
    assert not (tmp_path / "x.gguf").exists()


def test_a_store_that_stays_down_is_given_up(s3, small_parts, large, tmp_path):
    put(large, "s3://models/large.gguf")
    with gguftools.open("s3://models/large.gguf") as model:
        s3.faults(GET=[{"status": 503}] * 99)
        with pytest.raises(FileError, match=r"large\.gguf cannot be read on from byte \d+: status 503"):
            model.save(tmp_path / "copy.gguf")


def test_what_fails_leaves_nothing(s3, small_parts, large):
    s3.faults(PUT=[{"none": 1}, *[{"status": 500}] * 99])
    with pytest.raises(FileError, match=r"s3://models/copy\.gguf cannot be written: status 500") as caught:
        quantize(large, "COPY", "s3://models/copy.gguf")
    assert "secret sauce" not in str(caught.value)
    assert names("s3://models") == uploads() == []


@pytest.mark.parametrize("bucket", ["s3://models", "memory://models"])
def test_interrupted_by_hand_nothing_is_left(request, bucket, small_parts, large):
    request.getfixturevalue("s3" if bucket.startswith("s3") else "memory")

    def progress(done: int, total: int, _: str) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(large, "COPY", f"{bucket}/copy.gguf", write=WriteOptions(progress=progress))
    assert names(bucket) == []
    if bucket.startswith("s3"):
        assert not uploads()


@pytest.mark.parametrize("split", [None, 8_000_000])
def test_resume_sends_what_is_not_there(s3, small_parts, large, tmp_path, split):
    begin = len(s3.log)

    def arrived() -> int:
        """Parts that the server has answered for, when it has added to its log how large they are."""
        return sum(entry[0] == "PUT" and "partNumber" in entry[1] and len(entry) > 4 for entry in s3.log[begin:])

    def progress(done: int, total: int, _: str) -> None:
        if done > total * 3 // 4:
            end = time.monotonic() + 100
            while arrived() < 2 and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.5)
            raise KeyboardInterrupt

    def run(progress: Progress | None = None) -> QuantizeReport:
        return quantize(
            large,
            "COPY",
            "s3://models/copy.gguf",
            options=QuantizeOptions(max_size=split),
            write=WriteOptions(resume=True, threads=1, progress=progress),
        )

    with pytest.raises(KeyboardInterrupt):
        run(progress)
    assert not [name for name in names("s3://models") if name.endswith(".gguf")]
    before = len(s3.log)
    assert run().resumed_bytes > PART
    sent = [path for method, path, *_ in s3.log[before:] if method == "PUT" and "partNumber" in path]
    quantize(large, "COPY", tmp_path / "copy.gguf", options=QuantizeOptions(max_size=split))
    parts = sum(-(-path.stat().st_size // PART) for path in tmp_path.iterdir())
    assert 0 < len(sent) <= parts - 2
    assert names("s3://models") == sorted(path.name for path in tmp_path.iterdir())
    for path in tmp_path.iterdir():
        assert get(f"s3://models/{path.name}") == path.read_bytes()
    assert not uploads()
    before = len(s3.log)
    run()  # whole already: nothing is sent
    assert not [path for method, path, *_ in s3.log[before:] if method in ("PUT", "POST")]


def test_resume_refuses_another_recipe(s3, small_parts, large):
    def progress(done: int, total: int, _: str) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(large, "COPY", "s3://models/copy.gguf", write=WriteOptions(resume=True, progress=progress))
    with pytest.raises(FileError, match=r"copy\.gguf was begun from other sources, with another recipe"):
        quantize(large, "Q8_0", "s3://models/copy.gguf", write=WriteOptions(resume=True))


def test_resume_says_where_it_means_nothing(memory, large):
    report = quantize(large, "Q8_0", "memory://models/copy.gguf", write=WriteOptions(resume=True))
    assert report.warnings == ["memory:// keeps nothing of what is not whole: `resume` begins anew"]


@pytest.mark.parametrize("bucket", ["s3://models", "memory://models"])
def test_of_two_writers_the_second_to_end_is_refused(request, bucket, small_parts, large):
    request.getfixturevalue("s3" if bucket.startswith("s3") else "memory")
    url = f"{bucket}/copy.gguf"

    def other(done: int, total: int, _: str) -> None:
        if done == total and names(bucket)[:1] != ["copy.gguf"]:
            store.file_system(located(url).scheme).pipe_file(url, b"theirs")

    with pytest.raises(FileError, match=r"copy\.gguf already exists"):
        quantize(large, "COPY", url, write=WriteOptions(progress=other))
    assert get(url) == b"theirs"
    with pytest.raises(FileError, match=r"copy\.gguf already exists"):
        quantize(large, "COPY", url)
    quantize(large, "COPY", url, write=WriteOptions(overwrite=True))
    assert get(url)[:4] == b"GGUF"


def test_a_killed_writer_leaves_no_object(s3, large):
    s3.faults(PUT=[{"delay": 2}] * 50)
    line = [sys.executable, "-m", "gguftools", "quantize", str(large), "COPY", "-o", "s3://models/copy.gguf"]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while not uploads() and time.monotonic() < end:
        time.sleep(0.05)
    assert uploads() == ["copy.gguf"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert names("s3://models") == []


def test_an_output_that_is_the_input_is_refused(s3, large):
    put(large, "s3://models/large.gguf")
    with pytest.raises(OptionError, match="is read, so it cannot be written"):
        quantize("s3://models/large.gguf", "COPY", "s3://models/large.gguf", write=WriteOptions(overwrite=True))


def test_no_credential_is_shown(s3, large, tmp_path, monkeypatch):
    """Of the environment, of a URL, of what the server says: in output, errors, logs and files."""
    from .conftest import SECRETS

    monkeypatch.setenv("HF_TOKEN", "hf_quitesecretquitesecret")
    put(large, "s3://models/large.gguf")
    signed = "http://jane:open-sesame@127.0.0.1:9/m.gguf?X-Amz-Signature=5e5a3e5e5a3e"
    calls = [
        ["-v", "quantize", "s3://models/large.gguf", "Q8_0", "-o", str(tmp_path / "out.gguf"), "--json"],
        ["-v", "quantize", "s3://models/large.gguf", "Q8_0", "-o", "s3://nowhere/out.gguf"],
        ["--debug", "show", "s3://models/absent.gguf"],
        ["-v", "quantize", signed, "Q8_0", "-o", str(tmp_path / "never.gguf")],
        ["-v", "show", signed],
    ]
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    with ThreadPoolExecutor(len(calls)) as pool:  # at once, as some wait between their tries
        said = "".join(done.stdout + done.stderr for done in pool.map(lambda call: run(*call, cwd=ROOT), calls))
    assert "s3://models/large.gguf" in said
    said += (tmp_path / "out.gguf").read_bytes()[:100_000].decode("latin-1")
    for secret in (*SECRETS.values(), "open-sesame", "5e5a3e5e5a3e", "hf_quite", "jane:"):
        assert secret not in said, secret


def test_tricks_in_an_index_are_refused(s3, tmp_path):
    """A trick in an index of shards is refused."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (ROOT / "examples" / "austen-4m").iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    for name in ("../x.safetensors", "s3://other/x.safetensors", "/etc/x.safetensors"):
        (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{name}"}}}}')
        url = put(folder, "s3://models/tricky")
        with pytest.raises(FileError, match="which is no name of a file in its folder") as caught:
            convert(url, tmp_path / "x.gguf")
        assert "s3://models/tricky" in str(caught.value)

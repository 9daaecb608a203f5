"""Fetch from a server that speaks the hub's API: what is chosen, what is left out, interruptions, wrong contents."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools import GgufToolsError
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.io.stores import retries
from gguftools.publish.hub import fetching, transfer

from ....conftest import ROOT
from ...cli.test_json_schema import problems
from ...command_line import EXAMPLE, refused, typed
from ...hub_server import COMMIT, Hub, serving
from ...image_checkpoints import pipeline

NAME = "jane/austen-4m"
BLOCK = 1 << 18


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "source"))


@pytest.fixture
def hub(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(retries, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(transfer, "BLOCK", BLOCK)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with serving(Hub({NAME: source})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        yield served


def test_a_checkpoint_and_what_is_left_out(hub: Hub, source: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"the same again")
    (source / "pytorch_model.bin.index.json").write_text("{}")
    (source / "consolidated.00.pth").write_bytes(b"and again")
    (source / "onnx").mkdir()
    (source / "onnx" / "model.onnx").write_bytes(b"and again")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "LICENSE").write_text("do")
    (source / "picture.png").write_bytes(b"png")
    report = gguftools.fetch(NAME)
    assert (report.commit, report.folder, report.repository) == (COMMIT, Path("austen-4m"), NAME)
    assert {each.file: each.reason for each in report.left_out} == {
        "pytorch_model.bin": "another copy of the weights",
        "pytorch_model.bin.index.json": "convert does not read it",
        "consolidated.00.pth": "another copy of the weights",
        "onnx/model.onnx": "another copy of the weights",
        "picture.png": "convert does not read it",
    }
    there = tree(Path("austen-4m"))
    record = json.loads(there.pop(fetching.RECORD))
    assert there == {name: data for name, data in tree(source).items() if name in report.fetched}
    assert "1_Pooling/config.json" in there
    assert record["commit"] == COMMIT
    assert set(record["files"]) == set(there)
    assert list(open_checkpoint(Path("austen-4m")).tensors) == list(open_checkpoint(source).tensors)


def test_a_second_run_does_nothing(hub: Hub) -> None:
    gguftools.fetch(NAME)
    before, asked = {path: path.stat().st_mtime_ns for path in Path("austen-4m").iterdir()}, len(hub.requests)
    report = gguftools.fetch(f"hf://{NAME}")
    assert (report.fetched, report.to_fetch_bytes) == ((), 0)
    assert {path: path.stat().st_mtime_ns for path in Path("austen-4m").iterdir()} == before
    assert all("/api/" in path for path, _ in hub.requests[asked:])
    done = typed("fetch", NAME)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert "nothing to do" in done.stdout


def test_files_that_another_program_fetched_are_compared(hub: Hub, source: Path) -> None:
    shutil.copytree(source, "austen-4m")
    assert gguftools.fetch(NAME).fetched == ()
    assert hub.weight_bytes == 0


def test_a_file_that_was_damaged_is_found_by_recheck(hub: Hub, source: Path) -> None:
    gguftools.fetch(NAME)
    weights = Path("austen-4m/model.safetensors")
    info, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(GgufToolsError, match=r"model\.safetensors \(different\)"):
        gguftools.fetch(NAME)  # its time of change tells
    os.utime(weights, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert gguftools.fetch(NAME).fetched == ()
    with pytest.raises(GgufToolsError, match="different"):
        gguftools.fetch(NAME, recheck=True)
    assert gguftools.fetch(NAME, recheck=True, overwrite=True).fetched == ("model.safetensors",)
    assert weights.read_bytes() == (source / "model.safetensors").read_bytes()


def test_a_change_at_the_hub_is_noticed(hub: Hub, source: Path) -> None:
    gguftools.fetch(NAME)
    text = (source / "config.json").read_text()
    (source / "config.json").write_text(text + "\n")
    before = tree(Path("austen-4m"))
    done = refused(typed("fetch", NAME), "config.json (changed at the hub)", "--overwrite")
    assert done.count("\n") == 2
    assert tree(Path("austen-4m")) == before
    assert "changed at the hub" in typed("fetch", NAME, "--dry-run").stdout
    assert gguftools.fetch(NAME, overwrite=True).fetched == ("config.json",)
    assert Path("austen-4m/config.json").read_text() == text + "\n"


def test_own_files_are_kept(hub: Hub) -> None:
    Path("austen-4m").mkdir()
    Path("austen-4m/config.json").write_text("mine")
    with pytest.raises(GgufToolsError, match=r"config\.json \(different\)"):
        gguftools.fetch(NAME)
    assert tree(Path("austen-4m")) == {"config.json": b"mine"}
    assert gguftools.fetch(NAME, exclude="config.json").fetched
    assert Path("austen-4m/config.json").read_text() == "mine"


def test_a_plan_writes_nothing(hub: Hub) -> None:
    report = gguftools.fetch(NAME, dry_run=True)
    assert report.to_fetch_bytes == sum(path.stat().st_size for path in EXAMPLE.iterdir())
    assert report.free_bytes > 0
    assert not list(Path().iterdir())
    printed = json.loads(typed("fetch", NAME, "--dry-run", "--json").stdout)
    assert not problems(printed, gguftools.schema("fetch"))
    assert "enough" in typed("fetch", NAME, "--dry-run").stdout


def test_a_full_disk_is_seen_before(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "free_bytes", lambda path: 1000)
    with pytest.raises(GgufToolsError, match=r"austen-4m needs 8,5.* bytes, 1,000 are free"):
        gguftools.fetch(NAME)
    assert not list(Path().iterdir())
    assert "NOT enough" in typed("fetch", NAME, "--dry-run").stdout


def test_broken_connections_are_continued(hub: Hub, source: Path) -> None:
    hub.breaks = [100_000, 5, 200_000, 0]
    hub.busy = [503, 429]
    gguftools.fetch(NAME)
    assert Path("austen-4m/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert hub.weight_bytes <= (source / "model.safetensors").stat().st_size + BLOCK


def test_what_a_lost_network_left_is_continued(hub: Hub, source: Path) -> None:
    hub.down_after = 3_000_000
    with pytest.raises(GgufToolsError, match=r"bytes are there") as caught:
        gguftools.fetch(NAME)
    assert caught.value.hint == "the same call goes on from there"
    names = {path.name for path in Path("austen-4m").iterdir()}
    assert "model.safetensors" not in names
    assert {"model.safetensors.partial", "config.json", fetching.RECORD} <= names
    first = hub.weight_bytes
    plan = gguftools.fetch(NAME, dry_run=True)
    begun = sum(each.resumed_bytes for each in plan.files)
    assert 2_000_000 < begun <= first
    hub.down_after = None
    assert gguftools.fetch(NAME).fetched == ("model.safetensors",)
    assert hub.weight_bytes - first <= (source / "model.safetensors").stat().st_size - begun + 4 * BLOCK  # in flight
    there = tree(Path("austen-4m"))
    del there[fetching.RECORD]
    assert there == tree(source)


def test_what_was_begun_of_another_content_begins_anew(hub: Hub, source: Path) -> None:
    hub.down_after = 3_000_000
    with pytest.raises(GgufToolsError):
        gguftools.fetch(NAME)
    hub.down_after = None
    weights = bytearray((source / "model.safetensors").read_bytes())
    weights[-1000:] = bytes(1000)
    (source / "model.safetensors").write_bytes(weights)
    gguftools.fetch(NAME)
    assert Path("austen-4m/model.safetensors").read_bytes() == weights


def test_damage_of_what_was_begun_is_noticed(hub: Hub, source: Path) -> None:
    hub.down_after = 3_000_000
    with pytest.raises(GgufToolsError):
        gguftools.fetch(NAME)
    hub.down_after = None
    partial = Path("austen-4m/model.safetensors.partial")
    blocks = {int(line) for line in Path(f"{partial}.journal").read_text().splitlines()[1:]}
    data = bytearray(partial.read_bytes())
    data[min(blocks) * BLOCK] ^= 1
    partial.write_bytes(data)
    with pytest.raises(GgufToolsError, match="sha256 digest"):
        gguftools.fetch(NAME)
    assert not partial.exists()
    gguftools.fetch(NAME)
    assert Path("austen-4m/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_other_contents_than_listed_get_no_name(hub: Hub, source: Path, name: str, monkeypatch) -> None:
    listed = hub.tree_of(source)
    data = bytearray((source / name).read_bytes())
    data[-1] ^= 1
    (source / name).write_bytes(data)
    monkeypatch.setattr(hub, "listed", listed)
    with pytest.raises(GgufToolsError, match=f"{name}: what came has the"):
        gguftools.fetch(NAME)
    assert not Path("austen-4m", name).exists()
    assert not list(Path("austen-4m").glob(f"{name}*"))


SIZE = 10_000_000
CODE = """
import sys
from gguftools.publish.hub import transfer
transfer.BLOCK = {block}
from gguftools.__main__ import main
sys.argv = ["gguftools", "fetch", "{name}"]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_is_continued(hub: Hub, source: Path, number: int) -> None:
    rng = np.random.default_rng(1)
    (source / "model.safetensors").write_bytes(rng.bytes(SIZE))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.address}
    for _ in range(2):
        hub.slow = 0.02
        begun = hub.weight_bytes
        code = CODE.format(block=BLOCK, name=NAME)
        with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE) as process:
            while hub.weight_bytes < begun + SIZE // 5 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            _, said = process.communicate()
        assert process.returncode != 0
        assert b"Traceback" not in said
        assert not Path("austen-4m/model.safetensors").exists()
    hub.slow = 0.0
    before = hub.weight_bytes
    assert "model.safetensors" in gguftools.fetch(NAME).fetched
    assert hub.weight_bytes - before < SIZE - SIZE // 8
    assert Path("austen-4m/model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert not list(Path("austen-4m").glob("*.partial*"))


def gguf_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())


@pytest.fixture
def ggufs(source: Path, hub: Hub) -> Path:
    shutil.rmtree(source)
    source.mkdir()
    gguf_files(
        source,
        "README.md",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "BF16/m-BF16-00001-of-00002.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
        "mmproj-BF16.gguf",
        "mmproj-F16.gguf",
        "mmproj-F32.gguf",
        "m-imatrix.gguf",
    )
    return source


def test_gguf_files_that_patterns_choose_with_their_mmproj(ggufs: Path) -> None:
    done = refused(typed("fetch", NAME), "has 3 GGUF models", "--include", "'*Q4_K_M*'", "m-Q8_0.gguf")
    assert "m-imatrix" not in done
    assert not list(Path().iterdir())
    assert gguftools.fetch(NAME, include="*Q4_K_M*").fetched == ("m-Q4_K_M.gguf", "mmproj-F16.gguf")
    assert gguftools.fetch(NAME, "q8", include="*Q8_0*", exclude="mmproj*").fetched == ("m-Q8_0.gguf",)
    both = gguftools.fetch(NAME, "bf16", include=["BF16/*", "mmproj-F32.gguf", "README.md"]).fetched
    assert set(both) == {"README.md", "mmproj-F32.gguf", *(f"BF16/m-BF16-0000{n}-of-00002.gguf" for n in (1, 2))}
    assert (Path("bf16") / both[0]).read_bytes() == (ggufs / both[0]).read_bytes()
    refused(typed("fetch", NAME, "--include", "*Q5*"), "has no file that '*Q5*' matches")
    refused(typed("fetch", NAME, "--include", "*Q8_0*", "--exclude", "*"), "no file is left")


def test_a_single_gguf_model_needs_no_pattern(hub: Hub, source: Path) -> None:
    shutil.rmtree(source)
    source.mkdir()
    gguf_files(source, "m-Q4_K_M.gguf", "mmproj-m-Q8_0.gguf", "README.md")
    assert gguftools.fetch(NAME).fetched == ("m-Q4_K_M.gguf", "mmproj-m-Q8_0.gguf")


def test_shards_are_those_of_the_index(hub: Hub, source: Path) -> None:
    (source / "model.safetensors").rename(source / "part-1.safetensors")
    (source / "model-old.safetensors").write_bytes(b"old")
    weight_map = {"a": "part-1.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    report = gguftools.fetch(NAME)
    assert {"part-1.safetensors", "model.safetensors.index.json"} <= set(report.fetched)
    assert [each.file for each in report.left_out] == ["model-old.safetensors"]


def test_pickles_where_there_is_nothing_else(hub: Hub, source: Path) -> None:
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    assert "pytorch_model.bin" in gguftools.fetch(NAME).fetched


def test_gated_and_missing_repositories(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(typed("fetch", "jane/emma"), "there is no such model", "hf auth login")
    refused(typed("fetch", NAME, "--revision", "v9"), "has no such revision")
    assert typed("fetch", NAME, "--revision", "refs/pr/1", "--dry-run").returncode == 0
    hub.gated = True
    refused(typed("fetch", NAME), "may not be read", "accept the terms")
    assert not list(Path().glob("austen-4m/*"))
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert typed("fetch", NAME, "-q").returncode == 0


def test_a_page_is_a_name() -> None:
    assert fetching.repository_name("https://huggingface.co/org/model/tree/v1") == "hf://org/model@v1"
    assert fetching.repository_name("hf.co/org/model") == "hf://hf.co/org/model"
    assert fetching.repository_name(Path("hf://org/model@a/b")) == "hf://org/model@a/b"


@pytest.mark.parametrize("path", ["../evil.json", "a/../../evil.json", "/evil.json", "a//b.json", "a\x1b.json", "a\\b"])
def test_names_outside_the_folder_are_refused(hub: Hub, path: str) -> None:
    data = b"evil"
    hub.listed = [{"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": 4, "path": path}]
    refused(typed("fetch", NAME), "has a file of the name")
    assert not list(Path().iterdir())


def test_quiet_prints_the_files(hub: Hub) -> None:
    done = typed("fetch", NAME, "-q")
    assert sorted(done.stdout.split()) == sorted(f"austen-4m/{path.name}" for path in EXAMPLE.iterdir())
    assert done.stderr == ""


def test_a_pipeline_with_all_its_parts(hub: Hub, source: Path) -> None:
    """Of weights in several precisions the plain ones, and those of another only where there is nothing else."""
    shutil.rmtree(source)
    pipeline(source)
    for name in ("transformer", "vae"):
        weights = source / name / "diffusion_pytorch_model.safetensors"
        shutil.copyfile(weights, weights.with_suffix(".fp16.safetensors"))
    shutil.copyfile(source / "vae" / "config.json", source / "vae" / "x.safetensors.index.fp16.json")
    (source / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    shutil.copyfile(source / "transformer" / "diffusion_pytorch_model.safetensors", source / "flux1.safetensors")
    report = gguftools.fetch(NAME)
    assert {each.file: each.reason for each in report.left_out} == {
        "flux1.safetensors": "another copy of the weights",
        "transformer/diffusion_pytorch_model.fp16.safetensors": "another copy of the weights",
    }
    report = gguftools.convert("austen-4m", f"{Path.cwd()}/", "Q8_0", part="all")
    assert len(report.outputs) == 4

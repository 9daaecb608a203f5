"""Manifests say what was written, are written after it, and belong to it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguftools
from gguftools import convert, imatrix, quantize
from gguftools.io.gguf.reader import open_gguf
from gguftools.provenance.manifest import manifest_path, public_name, read_manifest
from gguftools.provenance.parameters import is_quick, parameters_of
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, GgufToolsError, OptionError

from ...conftest import ROOT
from ..hub_server import COMMIT, Hub, serving

MODEL = ROOT / "examples" / "austen-4m"
TEXT = ROOT / "examples" / "persuasion.txt"


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("half") / "austen-F16.gguf"
    convert(MODEL, path, "F16")
    return path


@pytest.fixture(scope="module")
def written(half, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("written") / "a.gguf"
    quantize(half, "Q4_K_M", path, write=WriteOptions(manifest=True))
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_digests_are_those_of_the_file(written, half) -> None:
    manifest, content, file = read_manifest(manifest_path(written)), written.read_bytes(), open_gguf(written)
    [record] = manifest.files
    assert record.as_dict() == {"name": "a.gguf", "bytes": len(content), "sha256": sha256(content)}
    assert [each.name for each in manifest.tensors] == list(file.tensors)
    for each in manifest.tensors:
        tensor = file.tensors[each.name]
        assert (each.offset, each.bytes) == (file.offsets[each.name], tensor.nbytes)
        assert (each.format, each.shape) == (tensor.format.name, tensor.shape)
        assert each.sha256 == sha256(content[each.offset : each.offset + each.bytes])
    assert (manifest.source.kind, manifest.source.name) == ("gguf", "austen-F16.gguf")
    assert manifest.source.files[0].sha256 == sha256(half.read_bytes())
    assert parameters_of(manifest.parameters, "it").recipe.name == "Q4_K_M"
    assert set(manifest.encoders) == {"F32", "Q4_K", "Q6_K"}


def test_nothing_of_the_machine_is_in_it_and_it_is_the_same_twice(written, half, tmp_path) -> None:
    quantize(half, "Q4_K_M", tmp_path / "a.gguf", write=WriteOptions(manifest=True, threads=1))
    text = manifest_path(tmp_path / "a.gguf").read_text()
    assert text == manifest_path(written).read_text()
    assert str(tmp_path) not in text
    assert str(half.parent) not in text


def test_a_checkpoint_with_all_that_decides_its_keys(tmp_path) -> None:
    report = convert(MODEL, tmp_path / "b.gguf", "BF16", write=WriteOptions(manifest=True))
    assert report.outputs[0].manifest == manifest_path(tmp_path / "b.gguf")
    manifest = read_manifest(manifest_path(tmp_path / "b.gguf"))
    names = {file.name: file for file in manifest.source.files}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names)
    for name, file in names.items():
        assert file.sha256 == sha256((MODEL / name).read_bytes())
    assert manifest.conversion is not None
    assert manifest.parameters == {"operation": "convert", "outtype": "BF16"}


def test_shards_have_one_manifest(half, tmp_path) -> None:
    report = quantize(
        half, "Q8_0", tmp_path / "s.gguf", options=QuantizeOptions(max_tensors=15), write=WriteOptions(manifest=True)
    )
    first = report.outputs[0].file
    assert [path.name for path in tmp_path.glob("*.json")] == [manifest_path(first).name]
    manifest = read_manifest(manifest_path(first))
    assert [file.name for file in manifest.files] == [path.name for path in report.outputs[0].files]
    for each in manifest.tensors:
        content = (tmp_path / manifest.files[each.file].name).read_bytes()
        assert each.sha256 == sha256(content[each.offset : each.offset + each.bytes])


def test_matrix_and_options_are_recorded(half, tmp_path) -> None:
    imatrix(half, TEXT, tmp_path / "im.gguf", chunks=1, n_ctx=64)
    quantize(
        half,
        ["IQ2_XS", "Q3_K_M"],
        tmp_path,
        imatrix=tmp_path / "im.gguf",
        options=QuantizeOptions(rules={"attn_v": "Q8_0"}, override={"general.name": "mine"}),
        write=WriteOptions(reserve=100, manifest=True),
    )
    found = read_manifest(manifest_path(tmp_path / "austen-IQ2_XS.gguf"))
    assert found.imatrix.file.sha256 == sha256((tmp_path / "im.gguf").read_bytes())
    given = parameters_of(found.parameters, "it")
    assert (given.recipe.name, given.options.rules, given.reserve) == ("IQ2_XS", (("attn_v", "Q8_0"),), 100)
    assert dict(given.override)["general.name"].data == "mine"
    assert parameters_of(given.as_dict(), "it") == given
    assert (tmp_path / "austen-Q3_K_M.gguf.manifest.json").is_file()


def test_a_repository_by_its_commit(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(Hub({"jane/austen-4m": MODEL})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        convert("hf://jane/austen-4m@main", tmp_path / "h.gguf", "Q8_0", write=WriteOptions(manifest=True))
        source = read_manifest(manifest_path(tmp_path / "h.gguf")).source
        assert (source.kind, source.name, source.commit) == ("hub", "hf://jane/austen-4m", COMMIT)
        [weights] = [file for file in source.files if file.name == "model.safetensors"]
        assert weights.sha256 == sha256((MODEL / "model.safetensors").read_bytes())  # as the hub says
        assert "127.0.0.1" not in manifest_path(tmp_path / "h.gguf").read_text()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("https://me:secret@host/m.gguf?token=x#y", "https://host/m.gguf"),
        ("/home/me/m.gguf", "m.gguf"),
        ("hf://a/b@main", "hf://a/b"),
    ],
)
def test_names_tell_no_secrets(given, name) -> None:
    assert public_name(given) == name


def test_what_cannot_be_said_is_refused_before_any_work(half, tmp_path) -> None:
    model = gguftools.open(half)
    model.tensors["blk.0.attn_q.weight"] = model.tensors["blk.0.attn_q.weight"].float32()
    with pytest.raises(OptionError):
        quantize(model, "Q8_0", tmp_path / "x.gguf", write=WriteOptions(manifest=True))
    with pytest.raises(OptionError):
        quantize(gguftools.open(MODEL), "Q8_0", tmp_path / "x.gguf", write=WriteOptions(manifest=True))
    with pytest.raises(OptionError, match="writes nothing"):
        quantize(half, "Q8_0", tmp_path / "x.gguf", write=WriteOptions(manifest=True, dry_run=True))
    (tmp_path / "x.gguf.manifest.json").write_text("mine")
    with pytest.raises(FileError, match="already exists"):
        quantize(half, "Q8_0", tmp_path / "x.gguf", write=WriteOptions(manifest=True))
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf.manifest.json"]


def test_who_replaces_a_file_removes_its_manifest(half, tmp_path) -> None:
    path = tmp_path / "x.gguf"
    quantize(half, "Q8_0", path, write=WriteOptions(manifest=True))
    quantize(half, "Q4_0", path, write=WriteOptions(overwrite=True))
    assert [each.name for each in tmp_path.iterdir()] == ["x.gguf"]
    manifest_path(path).write_text("somebody's own")
    quantize(half, "Q8_0", path, write=WriteOptions(overwrite=True))
    assert manifest_path(path).read_text() == "somebody's own"


def run_in_background(half: Path, target: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gguftools", "quantize", half, *words, "-o", target, "--manifest", "--overwrite"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def belongs(path: Path) -> bool:
    """Whether a manifest, if there is one, says what the file beside it is."""
    if not manifest_path(path).exists():
        return True
    return read_manifest(manifest_path(path)).files[0].sha256 == sha256(path.read_bytes())


@pytest.mark.parametrize("kills", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_killed_at_any_moment_no_manifest_is_of_another_file(kills, half, tmp_path) -> None:
    path = tmp_path / "x.gguf"
    started = time.monotonic()
    run_in_background(half, path, "Q8_0").wait()
    whole = time.monotonic() - started
    for number in range(kills):
        running = run_in_background(half, path, ("Q4_0", "Q8_0")[number % 2])
        time.sleep(whole * (0.5 + 0.56 * number / kills))
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert belongs(path)
    # What is left is of either recipe: the last runs may have been killed before they wrote.
    assert any(run_in_background(half, path, recipe, "--resume").wait() == 0 for recipe in ("Q8_0", "Q4_0"))
    assert manifest_path(path).exists()
    assert belongs(path)


def test_two_at_once(half, tmp_path) -> None:
    path = tmp_path / "x.gguf"
    both = [run_in_background(half, path, recipe) for recipe in ("Q4_0", "Q8_0")]
    assert 0 in [each.wait() for each in both]
    assert belongs(path)


def changed(written: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    found = json.loads(manifest_path(written).read_text())
    change(found)
    path = tmp_path / "lie.json"
    path.write_text(json.dumps(found))
    return path


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "schema": lambda m: m.update(schema="gguftools-manifest/9"),
    "files is missing": lambda m: m.pop("files"),
    "files is a list of 0": lambda m: m.update(files=[]),
    "tensors is": lambda m: m.update(tensors={}),
    "which is there before": lambda m: m["tensors"].append(m["tensors"][0]),
    "share bytes": lambda m: m["tensors"][1].update(offset=m["tensors"][0]["offset"]),
    "ends at byte": lambda m: m["tensors"][-1].update(offset=1 << 40),
    "offset is -1": lambda m: m["tensors"][0].update(offset=-1),
    "bytes is 1": lambda m: m["tensors"][0].update(bytes=10**30),
    "offset is True": lambda m: m["tensors"][0].update(offset=True),
    "file is 7": lambda m: m["tensors"][0].update(file=7),
    "sha256 is 'xyz'": lambda m: m["tensors"][0].update(sha256="xyz"),
    "files[0].sha256 is missing": lambda m: m["files"][0].update(sha256=None),
    "files[0].name is '../x'": lambda m: m["files"][0].update(name="../x"),
    "source.name is '/etc/passwd'": lambda m: m["source"].update(name="/etc/passwd"),
    "source.files[0].name is '..'": lambda m: m["source"]["files"][0].update(name="../../x"),
    "source.kind": lambda m: m["source"].update(kind="exec"),
    "shape": lambda m: m["tensors"][0].update(shape=[1 << 40, 1 << 40]),
    "encoders.Q4_K": lambda m: m["encoders"].update(Q4_K="0" * 63),
    "parameters is": lambda m: m.update(parameters=[]),
    "holds no JSON object": lambda m: None,
}


@pytest.mark.parametrize("said", LIES)
def test_manifests_that_lie(written, tmp_path, said) -> None:
    path = changed(written, tmp_path, LIES[said])
    if said == "holds no JSON object":
        path.write_text("[]")
    with pytest.raises(FileError) as caught:
        read_manifest(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_huge_and_deep_texts_are_refused_quickly(tmp_path) -> None:
    path = tmp_path / "m.json"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    for text in (None, b"[" * 100_000, b"9" * 10_000, b'{"a": 1, "a": 2}', b"\xff\xfe"):
        if text is not None:
            path.write_bytes(text)
        with pytest.raises(FileError, match="is no manifest"):
            read_manifest(path)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"operation": "exec"},
        {"operation": "convert"},
        {"operation": "quantize", "recipe": {"name": "Q9_K"}},
        {"operation": "quantize", "recipe": 7},
        {"operation": "convert", "outtype": "Q4_K"},
        {"operation": "quantize", "recipe": {"name": "Q8_0"}, "rules": [["(a+)+$", "Q8_0"]]},
        {"operation": "quantize", "recipe": {"name": "Q8_0"}, "rules": [["a", "Q99"]]},
        {"operation": "quantize", "recipe": {"name": "Q8_0"}, "prune_layers": ["1"]},
        {"operation": "quantize", "recipe": {"name": "Q8_0"}, "reserve": 1 << 62},
        {"operation": "quantize", "recipe": {"name": "Q8_0"}, "override": {"a": {"type": "UINT8", "value": 999}}},
        {"operation": "quantize", "recipe": {"name": "Q8_0"}, "gptq": {"own_texts": True}},
    ],
)
def test_parameters_that_lie(parameters) -> None:
    with pytest.raises(GgufToolsError):
        parameters_of(parameters, "it")


@pytest.mark.parametrize(
    ("pattern", "quick"),
    [
        (r"blk\.(1|2)\.ffn_.*_exps", True),
        (r"^blk\.\d+\.attn_v\.weight$", True),
        ("(a*)*", False),
        ("(x|y){9}", False),
        (".*.*.*.*", False),
        ("a" * 301, False),
        ("[+*]x", True),
    ],
)
def test_rules_of_strangers(pattern, quick) -> None:
    assert is_quick(pattern) is quick


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(data=st.data())
def test_whatever_is_in_a_manifest_is_read_or_refused(written, data) -> None:
    found = json.loads(manifest_path(written).read_text())
    at: Any = found
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], (dict, list)) or data.draw(st.booleans()):
            at[key] = data.draw(PLAIN)
            break
        at = at[key]
    path = manifest_path(written).with_name("fuzz.json")
    path.write_text(json.dumps(found))
    said = ""
    try:
        parameters_of(read_manifest(path).parameters, "it")
    except GgufToolsError as error:
        said = str(error)
    assert "\n" not in said

"""Files are made again from what they say they are made of, and every altered byte is found and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gguftools
from gguftools import convert, imatrix, quantize, reproduce, set_metadata
from gguftools.conversion.options import ConvertOptions
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.stores import block_cache, store
from gguftools.lab.reproduction.report import ALTERED, MADE_OTHERWISE, Reproduction, Sample
from gguftools.lab.reproduction.rerun import Selection
from gguftools.provenance import encoders
from gguftools.provenance.manifest import manifest_path
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, GgufToolsError, OptionError

from ....conftest import ROOT
from ...calls import options_of
from ...command_line import typed
from ...elsewhere import Elsewhere
from ...hub_server import Hub, serving
from ...tiny_models import metadata_of, write_model

MODEL = ROOT / "examples" / "austen-4m"
TEXT = ROOT / "examples" / "persuasion.txt"
TENSORS = 39


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A file and its matrix, and what was made of them, with manifests."""
    made = tmp_path_factory.mktemp("made")
    convert(MODEL, made / "austen-F16.gguf", "F16", write=WriteOptions(manifest=True))
    imatrix(made / "austen-F16.gguf", TEXT, made / "im.gguf", chunks=4, n_ctx=128)
    quantize(made / "austen-F16.gguf", "Q4_K_M", made / "plain.gguf", write=WriteOptions(manifest=True))
    quantize(
        made / "austen-F16.gguf",
        "IQ2_XS",
        made / "weighted.gguf",
        imatrix=made / "im.gguf",
        write=WriteOptions(manifest=True),
    )
    return made


def altered(path: Path, target: Path, offset: int, bit: int = 1) -> Path:
    """A copy of a file, and of its manifest, with one bit flipped."""
    content = bytearray(path.read_bytes())
    content[offset] ^= bit
    target.write_bytes(content)
    if manifest_path(path).exists():
        shutil.copy(manifest_path(path), manifest_path(target))
    return target


def counts(found: Reproduction) -> tuple[int, int]:
    return sum(tensor.is_good for tensor in found.tensors), len(found.tensors)


@pytest.mark.parametrize("name", ["plain.gguf", "weighted.gguf"])
def test_all_tensors_of_a_quantized_file(folder, name) -> None:
    """What it was made of lies beside it, so that nothing needs to be named."""
    found = reproduce(folder / name)
    assert found.equal, found.verdict
    assert {tensor.found for tensor in found.tensors} == {"equal"}
    assert counts(found) == (TENSORS, TENSORS)
    assert all(tensor.rows == tensor.of_rows for tensor in found.tensors)
    assert not found.warnings


def test_what_workers_made_is_made_again(folder, tmp_path) -> None:
    """A manifest does not depend on who did the work."""
    target, source = tmp_path / "plain.gguf", folder / "austen-F16.gguf"
    quantize(source, "Q4_K_M", target, write=WriteOptions(manifest=True, executor=Elsewhere()))
    assert manifest_path(target).read_bytes() == manifest_path(folder / "plain.gguf").read_bytes()
    found = reproduce(target, source)
    assert found.equal, found.verdict
    assert counts(found) == (TENSORS, TENSORS)


@pytest.mark.parametrize("outtype", ["F32", "F16", "BF16", "Q8_0", "EXACT", "Q4_K_M"])
def test_all_tensors_of_a_converted_file(tmp_path, outtype) -> None:
    convert(
        MODEL,
        tmp_path / "c.gguf",
        outtype,
        options=ConvertOptions(embed_tokenizer=True),
        write=WriteOptions(reserve=1000, manifest=True),
    )
    found = reproduce(tmp_path / "c.gguf", MODEL)
    assert found.equal, (found.verdict, found.keys, found.layout, found.causes)
    assert counts(found) == (TENSORS, TENSORS)


def test_from_a_repository(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(block_cache, "BLOCK", 1 << 17)
    monkeypatch.setattr(block_cache, "OWN_BLOCKS", 1 << 16)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(Hub({"jane/austen-4m": MODEL})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        convert("hf://jane/austen-4m", tmp_path / "h.gguf", "Q8_0", write=WriteOptions(manifest=True))
        with pytest.raises(OptionError, match="is not next to"):  # nor is a server asked that nobody named
            reproduce(tmp_path / "h.gguf")
        assert reproduce(tmp_path / "h.gguf", "hf://jane/austen-4m").equal
        before = hub.weight_bytes
        assert reproduce(tmp_path / "h.gguf", "hf://jane/austen-4m", compare=Selection(tensors=r"blk\.0\.attn_q")).equal
        assert hub.weight_bytes - before < 1_000_000
        hub.commit = "2" * 40
        [cause, *_] = reproduce(tmp_path / "h.gguf", "hf://jane/austen-4m").causes
        assert "is at commit 2222" in cause


@pytest.fixture
def memory():
    """A store in this process."""
    store.made_file_system.cache_clear()
    files = store.file_system("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


def test_in_stores(folder, memory) -> None:
    """Source, output, manifest and statement as URLs; no byte of them on this disk."""
    for path in (folder / "austen-F16.gguf", *MODEL.iterdir()):
        if path.is_file():
            memory.pipe_file(f"/in/{path.name}", path.read_bytes())
    quantize("memory://in/austen-F16.gguf", "Q4_K_M", "memory://out/q.gguf", write=WriteOptions(manifest=True))
    assert memory.cat_file("/out/q.gguf") == (folder / "plain.gguf").read_bytes()
    with pytest.raises(OptionError, match="is not next to"):
        reproduce("memory://out/q.gguf")
    for source in ("memory://in/austen-F16.gguf", folder / "austen-F16.gguf"):
        found = reproduce("memory://out/q.gguf", source)
        assert found.equal, (found.verdict, found.layout, found.causes)
        assert found.manifest is not None
    gguftools.attest("memory://out/q.gguf")
    assert gguftools.verify_attestation("memory://out/q.gguf").ok
    convert("memory://in", "memory://out/c.gguf", "Q8_0", write=WriteOptions(manifest=True))
    assert reproduce("memory://out/c.gguf", "memory://in", compare=Selection(sample=20)).equal
    content = bytearray(memory.cat_file("/out/q.gguf"))
    content[-40] ^= 1
    memory.pipe_file("/out/q.gguf", bytes(content))
    [wrong] = reproduce("memory://out/q.gguf", "memory://in/austen-F16.gguf").wrong
    assert (wrong.why, wrong.first.offset) == (ALTERED, len(content) - 40)


def test_a_repository_that_was_fetched(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(Hub({"examples/austen-4m": MODEL})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        convert("hf://examples/austen-4m", tmp_path / "h.gguf", "Q8_0", write=WriteOptions(manifest=True))
    fetched = shutil.copytree(MODEL, tmp_path / "examples" / "austen-4m")
    assert reproduce(tmp_path / "h.gguf", fetched).causes == ()
    (fetched / "config.json").write_text((fetched / "config.json").read_text() + " ")
    [cause] = reproduce(tmp_path / "h.gguf", fetched).causes
    assert "config.json is not the source's" in cause


@pytest.mark.parametrize(
    "options",
    [
        {"rules": {"attn_v": "Q8_0", "ffn_down": "F16"}},
        {"prune_layers": (1,)},
        {"max_tensors": 15},
        {"override": {"general.name": "mine"}, "reserve": 500},
        {"allow_requantize": True},
        {"pure": True, "output_type": "Q8_0"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_options(folder, tmp_path, options) -> None:
    report = quantize(
        folder / "austen-F16.gguf", "Q3_K_M", tmp_path / "o.gguf", **options_of("quantize", manifest=True, **options)
    )
    found = reproduce(report.outputs[0].files[-1], folder / "austen-F16.gguf")
    assert found.equal, (found.verdict, found.keys, found.layout, found.causes)


def test_recipes_from_texts(folder, tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("attn_q=Q5_K\nffn=Q3_K\n")
    report = quantize(
        folder / "austen-F16.gguf", str(tmp_path / "mine.txt"), tmp_path / "o.gguf", write=WriteOptions(manifest=True)
    )
    (tmp_path / "mine.txt").unlink()
    assert reproduce(report.outputs[0].file, folder / "austen-F16.gguf").equal


@pytest.mark.parametrize("bit", [1, 128])
def test_one_bit_is_found_and_named(folder, tmp_path, bit) -> None:
    file = open_gguf(folder / "plain.gguf")
    name, row, block = "blk.2.ffn_up.weight", 37, 0
    tensor = file.tensors[name]
    offset = file.offsets[name] + row * tensor.row_bytes + block * tensor.format.block_bytes + 77
    path = altered(folder / "plain.gguf", tmp_path / "x.gguf", offset, bit)
    for pattern in (None, "ffn_up"):
        found = reproduce(path, folder / "austen-F16.gguf", compare=Selection(pattern))
        [wrong] = found.wrong
        place = wrong.first
        assert (wrong.name, place.row, place.block, place.offset) == (name, row, block, offset)
        assert (wrong.blocks, wrong.why, found.causes) == (1, ALTERED, ())
    assert reproduce(path, folder / "austen-F16.gguf", compare=Selection(tensors="ffn_down")).equal


def test_any_bit_of_a_small_file_is_found(tmp_path) -> None:
    """Keys, the list of tensors, padding, rows: wherever it lies, unless the file cannot be opened any more."""
    values = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    metadata = metadata_of({"general.architecture": "llama", "general.name": "it", "llama.block_count": 1})
    write_model(tmp_path / "s.gguf", metadata, {"blk.0.ffn_up.weight": values, "norm.weight": values[0, :5]})
    quantize(tmp_path / "s.gguf", "Q8_0", tmp_path / "q.gguf", write=WriteOptions(manifest=True))
    size = (tmp_path / "q.gguf").stat().st_size
    assert reproduce(tmp_path / "q.gguf").equal
    missed = []
    for offset in range(size):
        path = altered(tmp_path / "q.gguf", tmp_path / "x.gguf", offset, 1 << offset % 8)
        try:
            if reproduce(path, tmp_path / "s.gguf", threads=1).equal:
                missed.append(offset)
        except GgufToolsError:
            pass
    assert missed == []


@pytest.mark.slow
def test_one_bit_in_a_gigabyte(tmp_path) -> None:
    """Found by reading the part of the source that is compared, and by a sample that is large enough."""
    rows, width = 4096, 16384
    rng = np.random.default_rng(1)
    tensors = {
        f"blk.{i}.ffn_up.weight": rng.standard_normal((rows, width), np.float32).astype(np.float16) for i in range(8)
    }
    metadata = metadata_of({"general.architecture": "llama", "llama.block_count": 8})
    with gguftools.open(write_model(tmp_path / "tiny.gguf", metadata, {"a": np.zeros((2, 32))})) as model:
        model.tensors = tensors
        model.save(tmp_path / "big.gguf")
    del tensors
    quantize(tmp_path / "big.gguf", "Q8_0", tmp_path / "q.gguf", write=WriteOptions(manifest=True))
    (tmp_path / "big.gguf.bak").unlink(missing_ok=True)
    assert (tmp_path / "big.gguf").stat().st_size > 1_000_000_000
    with (tmp_path / "q.gguf").open("r+b") as file:
        place = open_gguf(tmp_path / "q.gguf").offsets["blk.5.ffn_up.weight"] + 123_456_7
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 16]))
    [wrong] = reproduce(tmp_path / "q.gguf").wrong
    assert (wrong.name, wrong.first.offset, wrong.blocks) == ("blk.5.ffn_up.weight", place, 1)
    assert wrong.why == ALTERED


def test_a_wrong_source_is_named(folder, tmp_path) -> None:
    convert(MODEL, tmp_path / "other-Q8_0.gguf", "Q8_0")
    found = reproduce(folder / "plain.gguf", tmp_path / "other-Q8_0.gguf")
    assert not found.equal
    assert any(tensor.why == MADE_OTHERWISE for tensor in found.wrong)
    assert "other-Q8_0.gguf is not the source" in found.causes[0]
    values = altered(folder / "austen-F16.gguf", tmp_path / "f16.gguf", (folder / "austen-F16.gguf").stat().st_size - 9)
    found = reproduce(folder / "plain.gguf", values)
    assert "its SHA-256 is" in found.causes[0]
    other = shutil.copytree(MODEL, tmp_path / "austen-4m")
    (other / "generation_config.json").write_text('{"temperature": 2}')
    found = reproduce(folder / "austen-F16.gguf", other)
    assert any("generation_config.json" in cause for cause in found.causes)


def test_a_wrong_matrix_is_named(folder, tmp_path) -> None:
    imatrix(folder / "austen-F16.gguf", TEXT, tmp_path / "im2.gguf", chunks=2, n_ctx=128)
    found = reproduce(folder / "weighted.gguf", imatrix=tmp_path / "im2.gguf")
    assert any("im2.gguf is not the importance matrix" in cause for cause in found.causes)
    with pytest.raises(OptionError, match="without an importance matrix"):
        reproduce(folder / "plain.gguf", imatrix=folder / "im.gguf")
    alone = Path(shutil.copy(folder / "weighted.gguf", tmp_path / "w.gguf"))
    shutil.copy(manifest_path(folder / "weighted.gguf"), manifest_path(alone))
    with pytest.raises(OptionError, match=r"importance matrix, 'im.gguf', is not next to"):
        reproduce(alone, folder / "austen-F16.gguf")


@pytest.mark.parametrize("recipe", ["Q2_K", "IQ2_XS"])
def test_a_matrix_that_is_kept_nowhere(folder, tmp_path, recipe) -> None:
    """As a search measures one: what it weighed is told by digests, or made again if somebody has it after all."""
    matrix = gguftools.quantization.imatrix.read_imatrix(folder / "im.gguf")
    quantize(folder / "austen-F16.gguf", recipe, tmp_path / "q.gguf", imatrix=matrix, write=WriteOptions(manifest=True))
    found = reproduce(tmp_path / "q.gguf", folder / "austen-F16.gguf")
    assert found.equal, (found.verdict, found.keys, found.layout, found.causes)
    assert {tensor.found for tensor in found.tensors} == {"equal", "as its digest says"}
    again = reproduce(tmp_path / "q.gguf", folder / "austen-F16.gguf", imatrix=folder / "im.gguf")
    assert again.equal
    assert {tensor.found for tensor in again.tensors} == {"equal"}


def test_another_encoder_is_named(folder, tmp_path, monkeypatch) -> None:
    text = manifest_path(folder / "plain.gguf").read_text()
    path = tmp_path / "m.json"
    path.write_text(text.replace(encoders.encoder_digest("Q4_K"), "5" * 64))
    found = reproduce(folder / "plain.gguf", manifest=path)
    assert found.equal
    assert found.warnings == (
        "the encoder of Q4_K is another version than the one that made the file; the bytes are the same",
    )


def test_keys_are_compared(folder, tmp_path) -> None:
    path = Path(shutil.copy(folder / "plain.gguf", tmp_path / "x.gguf"))
    shutil.copy(manifest_path(folder / "plain.gguf"), manifest_path(path))
    set_metadata(path, {"general.name": "another"})
    found = reproduce(path, folder / "austen-F16.gguf", compare=Selection(sample=1))
    assert [key.key for key in found.keys] == ["general.name"]
    assert not found.equal


def test_files_without_manifests(folder, tmp_path) -> None:
    for name, source in (("plain", folder / "austen-F16.gguf"), ("austen-F16", MODEL)):
        path = Path(shutil.copy(folder / f"{name}.gguf", tmp_path / f"{name}.gguf"))
        with pytest.raises(OptionError, match="does not name the source"):
            reproduce(path)
        assert reproduce(path, source).equal
    path = Path(shutil.copy(folder / "weighted.gguf", tmp_path / "weighted.gguf"))
    assert reproduce(path, folder / "austen-F16.gguf", imatrix=folder / "im.gguf").equal
    found = reproduce(path, folder / "austen-F16.gguf")
    assert any("needs an importance matrix" in (tensor.why or "") for tensor in found.wrong)


def test_files_of_llama_cpp(shared, tmp_path) -> None:
    """What the reference wrote has no manifest; every tensor is what its recipe makes of the source, by its digest."""
    golden = json.loads((shared / "golden" / "austen-4m.json").read_text())["quantize"]["Q5_K_M"]["tensors"]
    convert(MODEL, tmp_path / "f16.gguf", "F16")
    quantize(tmp_path / "f16.gguf", "Q5_K_M", tmp_path / "q.gguf", write=WriteOptions(manifest=True))
    content = json.loads(manifest_path(tmp_path / "q.gguf").read_text())
    for tensor in content["tensors"]:
        tensor["sha256"] = golden[tensor["name"]][2]
    manifest_path(tmp_path / "q.gguf").write_text(json.dumps(content))
    assert reproduce(tmp_path / "q.gguf", tmp_path / "f16.gguf").equal


def test_samples_are_drawn_evenly_and_repeat(folder) -> None:
    found = reproduce(folder / "plain.gguf", compare=Selection(sample=7, seed=5))
    assert found.equal
    assert (found.sample.count, found.sample.seed) == (7, 5)
    assert sum(tensor.rows for tensor in found.tensors) > 0
    again = reproduce(folder / "plain.gguf", compare=Selection(sample=7, seed=5))
    assert again.tensors == found.tensors
    assert reproduce(folder / "plain.gguf", compare=Selection(sample=10**6)).sample.missed() == 0
    assert Sample(10, 100, 0).missed() == 0.9
    assert Sample(10, 100, 0).missed(2) == pytest.approx(90 / 100 * 89 / 99)


def test_the_probability_of_missing_is_as_documented(folder, tmp_path) -> None:
    file = open_gguf(folder / "plain.gguf")
    path = altered(folder / "plain.gguf", tmp_path / "x.gguf", file.offsets["token_embd.weight"] + 5)
    results = [
        reproduce(path, folder / "austen-F16.gguf", compare=Selection(sample=40, seed=seed), threads=1)
        for seed in range(30)
    ]
    missed = sum(found.equal for found in results) / 30
    assert abs(missed - results[0].sample.missed()) < 0.25


@pytest.mark.slow
def test_error_feedback_is_told_by_digests_or_made_again(folder, tmp_path) -> None:
    text = tmp_path / "t.txt"
    text.write_text(TEXT.read_text()[:40_000])
    calibration = gguftools.calibration.texts.Calibration(
        tuple(gguftools.measurement.texts.named_texts([str(text)])), own_texts=False, n_ctx=64, chunks=8
    )
    quantize(
        folder / "austen-F16.gguf", "Q3_K_S", tmp_path / "g.gguf", gptq=calibration, write=WriteOptions(manifest=True)
    )
    found = reproduce(tmp_path / "g.gguf", folder / "austen-F16.gguf")
    assert found.equal
    fed = [tensor for tensor in found.tensors if tensor.found == "as its digest says"]
    assert len(fed) > 20
    assert "were not made again" in found.verdict
    path = altered(tmp_path / "g.gguf", tmp_path / "x.gguf", open_gguf(tmp_path / "g.gguf").offsets[fed[0].name] + 3)
    [wrong] = reproduce(path, folder / "austen-F16.gguf").wrong
    assert (wrong.name, wrong.why) == (fed[0].name, ALTERED)
    again = reproduce(tmp_path / "g.gguf", folder / "austen-F16.gguf", gptq=text)
    assert again.equal, (again.verdict, again.causes)
    assert {tensor.found for tensor in again.tensors} == {"equal"}
    text.write_text(TEXT.read_text()[40_000:80_000])
    assert any(
        "t.txt is not the text" in cause
        for cause in reproduce(tmp_path / "g.gguf", folder / "austen-F16.gguf", gptq=text).causes
    )


def test_manifests_of_other_files_and_paths_that_lead_away(folder, tmp_path) -> None:
    path = Path(shutil.copy(folder / "plain.gguf", tmp_path / "x.gguf"))
    content = json.loads(manifest_path(folder / "plain.gguf").read_text())
    content["tensors"][0]["name"] = "another.weight"
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(FileError, match="is not of"):
        reproduce(path, folder / "austen-F16.gguf", manifest=tmp_path / "m.json")
    shutil.copy(manifest_path(folder / "plain.gguf"), manifest_path(path))
    (tmp_path / "austen-F16.gguf").symlink_to(folder / "austen-F16.gguf")
    with pytest.raises(OptionError, match="is not next to"):
        reproduce(path)


@pytest.mark.parametrize("name", ["..", ".", "x/../austen-F16.gguf", "a\0b", "hf://a/b", "/etc", "file:///etc"])
@pytest.mark.parametrize("kind", ["hub", "remote"])
def test_names_that_lead_away(folder, tmp_path, kind, name) -> None:
    content = json.loads(manifest_path(folder / "plain.gguf").read_text())
    content["source"] |= {"kind": kind, "name": name}
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(OptionError, match="is not next to"):
        reproduce(folder / "plain.gguf", manifest=tmp_path / "m.json")


def test_a_manifest_whose_digests_lie(folder, tmp_path) -> None:
    content = json.loads(manifest_path(folder / "plain.gguf").read_text())
    content["tensors"][3]["sha256"] = "0" * 64
    (tmp_path / "m.json").write_text(json.dumps(content))
    [wrong] = reproduce(folder / "plain.gguf", manifest=tmp_path / "m.json").wrong
    assert wrong.name == content["tensors"][3]["name"]
    assert wrong.why == "as the source makes it, but its digest is another"
    content["tensors"][3]["sha256"] = content["tensors"][2]["sha256"]
    content["source"]["files"][0]["sha256"] = "0" * 64
    (tmp_path / "m.json").write_text(json.dumps(content))
    assert "is not the source" in reproduce(folder / "plain.gguf", manifest=tmp_path / "m.json").causes[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """A file of two tensors, with its source and manifest beside it."""
    made = tmp_path_factory.mktemp("small")
    values = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    metadata = metadata_of({"general.architecture": "llama", "general.name": "it", "llama.block_count": 1})
    write_model(made / "s.gguf", metadata, {"blk.0.ffn_up.weight": values, "norm.weight": values[0, :5]})
    quantize(
        made / "s.gguf",
        "Q8_0",
        made / "q.gguf",
        options=QuantizeOptions(rules={"ffn": "Q4_0"}),
        write=WriteOptions(reserve=64, manifest=True),
    )
    return made


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 1 << 70)
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["Q4_0", "IQ2_XXS", "gguf", "checkpoint", "hub", "0" * 64, "../s.gguf", "s.gguf", "quantize"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_a_manifest_says_is_tried_or_refused_in_one_line(small, data) -> None:
    found = json.loads(manifest_path(small / "q.gguf").read_text())
    found["parameters"] |= data.draw(
        st.dictionaries(
            st.sampled_from(
                [
                    "pure",
                    "rules",
                    "prune_layers",
                    "reserve",
                    "override",
                    "outtype",
                    "recipe",
                    "pre",
                    "gptq",
                    "max_tensors",
                    "include_weights",
                    "keep_split",
                    "output_tensor_type",
                ]
            ),
            PLAIN,
            max_size=2,
        )
    )
    at = found
    for _ in range(data.draw(st.integers(0, 4))):
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys)) if keys else None
        if key is None:
            break
        if not isinstance(at[key], (dict, list)) or data.draw(st.booleans()):
            at[key] = data.draw(PLAIN)
            break
        at = at[key]
    path = small / "fuzz.json"
    path.write_text(json.dumps(found))
    said = ""
    try:
        reproduce(small / "q.gguf", manifest=path, threads=1)
    except GgufToolsError as error:
        said = str(error)
    assert "\n" not in said


def test_the_command(folder, tmp_path) -> None:
    done = typed("reproduce", str(folder / "plain.gguf"), "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["verdict"], len(said["tensors"]), said["manifest"]) == (
        "ok",
        TENSORS,
        str(manifest_path(folder / "plain.gguf")),
    )
    path = altered(folder / "plain.gguf", tmp_path / "x.gguf", (folder / "plain.gguf").stat().st_size - 40)
    done = typed("reproduce", str(path), "--source", str(folder / "austen-F16.gguf"))
    assert done.returncode == 1
    assert "altered since it was written" in done.stdout

"""Image and video models from every source, and the files of the parts that are published with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gguftools
from gguftools.conversion.options import ConvertOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, GgufToolsError, ModelError, OptionError
from tests import diffusion_models

from ...archs.checkpoints import FAMILIES, build_encoder
from ..command_line import run
from ..hub_server import Hub, serving
from ..image_checkpoints import clip, component, flux, open_clip, pipeline, t5, vae, wan, whole_checkpoint
from ..io.checkpoint.test_torch_pickle import REBUILD, archive, number, sizes


def tensors_of(path: Path) -> dict[str, tuple[str, bytes]]:
    with gguftools.open(path) as model:
        return {name: (each.format.name, each.raw().tobytes()) for name, each in model.tensors.items()}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The file of a single .safetensors file."""
    save_file(flux(), tmp_path / "flux.safetensors", {"modelspec.title": "tiny"})
    gguftools.convert(tmp_path / "flux.safetensors", tmp_path / "plain.gguf")
    return tmp_path / "plain.gguf"


def save(tensors: dict[str, np.ndarray], path: Path) -> Path:
    save_file(tensors, path)
    return path


def shards(folder: Path, name: str = "flux") -> list[Path]:
    """Write Flux in three shards."""
    folder.mkdir(exist_ok=True)
    whole, names = flux(), sorted(flux())
    paths = [folder / f"{name}-0000{i + 1}-of-00003.safetensors" for i in range(3)]
    for i, path in enumerate(paths):
        save_file({each: whole[each] for each in names[i::3]}, path)
    return paths


def test_a_file_gets_its_name_from_the_weights(plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = gguftools.convert(tmp_path / "flux.safetensors")
    assert report.outputs[0].file == Path("flux-F16.gguf")
    with gguftools.open(report.outputs[0].file) as model:
        assert model.metadata["general.architecture"] == "flux"
        assert model.metadata["general.name"] == model.metadata["modelspec.title"] == "tiny"
        assert set(model.tensors) == set(flux())


def test_one_shard_names_the_set(plain, tmp_path):
    paths = shards(tmp_path / "set")
    for i, source in enumerate([paths[0], paths[2], tmp_path / "set"]):
        gguftools.convert(source, tmp_path / f"{i}.gguf")
        assert tensors_of(tmp_path / f"{i}.gguf") == tensors_of(plain)
    paths[1].unlink()
    with pytest.raises(FileError, match="one of 3 files, 1 of which are not there: flux-00002-of-00003"):
        gguftools.convert(paths[0], tmp_path / "x.gguf")


def test_an_index_names_the_set(plain, tmp_path):
    paths = shards(tmp_path / "set", "part")
    for i, path in enumerate(paths):
        path.rename(path.with_name(f"{'abc'[i]}.safetensors"))
    index = tmp_path / "set" / "flux.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "c.safetensors"}}))
    gguftools.convert(index, tmp_path / "x.gguf")
    assert tensors_of(tmp_path / "x.gguf") == tensors_of(plain)
    for wrong in ({}, {"x": "../flux.safetensors"}, {"x": 1}):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(FileError, match="weight_map"):
            gguftools.convert(index, tmp_path / "y.gguf")


@pytest.mark.parametrize("variant", ["", ".fp16"])
def test_folders_of_diffusers(plain, tmp_path, variant):
    folder = tmp_path / "pipe" / "transformer"
    component(folder, flux(), {"_class_name": "X"}, f"diffusion_pytorch_model{variant}")
    for i, source in enumerate([folder, folder.parent]):
        gguftools.convert(source, tmp_path / f"{i}.gguf")
        assert tensors_of(tmp_path / f"{i}.gguf") == tensors_of(plain)


def text(value):
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def pickled(arrays, *around):
    """A file as torch.save writes it, of tensors in dictionaries."""
    program, members = b"}(", []
    for i, (name, array) in enumerate(arrays.items()):
        storage = {"float16": b"HalfStorage", "float32": b"FloatStorage"}[array.dtype.name]
        stored = (
            b"(" + text("storage") + b"ctorch\n" + storage + b"\n" + text(str(i)) + text("cpu") + number(array.size)
        )
        strides = [step // array.itemsize for step in array.strides]
        shape = number(0) + sizes(*array.shape) + sizes(*strides)
        program += text(name) + REBUILD + stored + b"tQ" + shape + b"\x89}tR"
        members.append((f"data/{i}", array.tobytes()))
    program += b"u"
    for key in around:
        program = b"}(" + text(key) + program + text("epoch") + number(3) + b"u"
    return archive(b"\x80\x02" + program + b".", members)


def test_a_pickle_in_dictionaries(plain, tmp_path):
    arrays = {name: np.ascontiguousarray(each) for name, each in flux().items()}
    for i, around in enumerate([(), ("state_dict",), ("model",), ("module",), ("module", "state_dict")]):
        (tmp_path / f"{i}.pt").write_bytes(pickled(arrays, *around))
        gguftools.convert(tmp_path / f"{i}.pt", tmp_path / f"{i}.gguf")
        assert tensors_of(tmp_path / f"{i}.gguf") == tensors_of(plain)


def test_a_wrong_suffix(plain, tmp_path):
    """Both are shared under the other's name."""
    arrays = {name: np.ascontiguousarray(each) for name, each in flux().items()}
    (tmp_path / "pickle.safetensors").write_bytes(pickled(arrays))
    save_file(arrays, tmp_path / "plain.ckpt")
    for name in ("pickle.safetensors", "plain.ckpt"):
        gguftools.convert(tmp_path / name, tmp_path / f"{name}.gguf")
        assert tensors_of(tmp_path / f"{name}.gguf") == tensors_of(plain)


def test_a_language_models_weights_alone_are_refused(tmp_path):
    save_file({"model.layers.0.self_attn.q_proj.weight": np.zeros((4, 4), "f4")}, tmp_path / "model.safetensors")
    with pytest.raises(FileError, match="language model") as error:
        gguftools.convert(tmp_path / "model.safetensors", tmp_path / "x.gguf")
    assert "name the folder of the whole checkpoint" in str(error.value.hint)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileError) as error:
        gguftools.convert(tmp_path / "model.safetensors", tmp_path / "x.gguf")
    assert str(tmp_path) in str(error.value.hint)


def test_two_models_of_a_pipeline(tmp_path):
    folder = tmp_path / "wan"
    for i, name in enumerate(("transformer", "transformer_2")):
        component(folder / name, wan(i), {"_class_name": "WanTransformer3DModel"})
    (folder / "model_index.json").write_text("{}")
    report = gguftools.convert(folder, tmp_path / "w-Q8_0.gguf", "Q8_0")
    names = [each.file.name for each in report.outputs]
    assert names == ["w-high-noise-Q8_0.gguf", "w-low-noise-Q8_0.gguf"]
    first, second = (tensors_of(tmp_path / name) for name in names)
    assert first.keys() == second.keys() == wan().keys()
    assert first["head.head.weight"] != second["head.head.weight"]
    with pytest.raises(FileError, match="has two models"):
        gguftools.open(folder)


def test_layouts_of_readers(tmp_path):
    save_file(wan(), tmp_path / "wan.safetensors")
    shapes = {}
    for reader in (None, "comfyui", "sdcpp", "diffusers"):
        path = tmp_path / f"{reader}.gguf"
        gguftools.convert(tmp_path / "wan.safetensors", path, options=ConvertOptions(reader=reader))
        with gguftools.open(path) as model:
            shapes[reader] = model.tensors["patch_embedding.weight"].shape
            assert ("comfy.gguf.orig_shape.patch_embedding.weight" in model.metadata) == (reader != "diffusers")
    folded = (256 * 16, 1, 2, 2)
    assert shapes == {None: folded, "comfyui": folded, "sdcpp": folded, "diffusers": (256, 16, 1, 2, 2)}


def test_a_gguf_file_for_another_reader(tmp_path):
    save_file(wan(), tmp_path / "wan.safetensors")
    gguftools.convert(tmp_path / "wan.safetensors", tmp_path / "wan.gguf", "Q4_K_M")
    gguftools.convert(tmp_path / "wan.gguf", tmp_path / "again.gguf", options=ConvertOptions(reader="diffusers"))
    before, after = tensors_of(tmp_path / "wan.gguf"), tensors_of(tmp_path / "again.gguf")
    assert before == after
    with gguftools.open(tmp_path / "again.gguf") as model:
        assert model.tensors["patch_embedding.weight"].shape == (256, 16, 1, 2, 2)
    gguftools.convert(tmp_path / "again.gguf", tmp_path / "back.gguf")
    assert tensors_of(tmp_path / "back.gguf") == before


def test_a_gguf_file_without_its_five_dimensional_tensors(tmp_path):
    """ComfyUI-GGUF's converter leaves them in a file of their own, and `_FIVE` in a GGUF file names that."""
    whole = wan()
    save_file(whole, tmp_path / "wan.safetensors")
    gguftools.convert(tmp_path / "wan.safetensors", tmp_path / "whole.gguf")
    with gguftools.open(tmp_path / "whole.gguf") as model:
        del model.tensors["patch_embedding.weight"]
        del model.metadata["comfy.gguf.orig_shape.patch_embedding.weight"]
        model.save(tmp_path / "cut.gguf")
    save_file({"patch_embedding.weight": whole["patch_embedding.weight"]}, tmp_path / "fix_5d_tensors_wan.safetensors")
    report = gguftools.convert(tmp_path / "cut.gguf", tmp_path / "mended.gguf")
    assert any("fix_5d_tensors_wan.safetensors" in each for each in report.warnings)
    assert tensors_of(tmp_path / "mended.gguf") == tensors_of(tmp_path / "whole.gguf")


def test_all_parts_of_a_checkpoint(tmp_path):
    save_file(whole_checkpoint(), tmp_path / "all.safetensors")
    report = gguftools.convert(tmp_path / "all.safetensors", tmp_path / "x-Q4_K_M.gguf", "Q4_K_M", part="all")
    names = ["x-Q4_K_M.gguf", "x-vae.safetensors", "x-clip-l.safetensors", "x-t5xxl-Q8_0.gguf"]
    assert sorted(each.file.name for each in report.outputs) == sorted(names)
    assert set(tensors_of(tmp_path / names[0])) == set(flux())
    for name, expected in ((names[1], vae()), (names[2], clip())):
        written = load_file(tmp_path / name)
        assert written.keys() == expected.keys()
        assert all(np.array_equal(written[each], expected[each]) for each in expected)
    with gguftools.open(tmp_path / names[3]) as model:
        assert model.metadata["general.architecture"] == "t5encoder"
        assert model.metadata["t5encoder.attention.head_count"] == 4
        assert "tokenizer.ggml.model" not in model.metadata
        assert np.array_equal(model.tensors["enc.output_norm.weight"], t5()["encoder.final_layer_norm.weight"])
    assert any("no tokenizer" in each for each in report.warnings)


def test_clip_encoders_are_told_apart(tmp_path):
    tensors = flux("model.diffusion_model.") | {"model_ema.decay": np.zeros(1, "f4"), "betas": np.zeros(3, "f4")}
    tensors |= {f"first_stage_model.{name}": each for name, each in vae().items()}
    tensors |= {f"conditioner.embedders.0.transformer.{name}": each for name, each in clip().items()}
    tensors |= {f"conditioner.embedders.1.model.{name}": each for name, each in open_clip().items()}
    save_file(tensors, tmp_path / "sdxl.safetensors")
    report = gguftools.convert(tmp_path / "sdxl.safetensors", tmp_path / "x.gguf", part="text-encoders")
    assert [each.file.name for each in report.outputs] == ["x-clip-l.safetensors", "x-clip-g.safetensors"]
    assert load_file(tmp_path / "x-clip-g.safetensors").keys() == open_clip().keys()
    report = gguftools.convert(tmp_path / "sdxl.safetensors", tmp_path / "g.safetensors", part="clip-g")
    assert load_file(tmp_path / "g.safetensors").keys() == open_clip().keys()
    report = gguftools.convert(tmp_path / "sdxl.safetensors", tmp_path / "m.gguf")
    assert report.warnings == [
        "1 tensor left out ('betas'): a schedule, which programs compute",
        "1 tensor left out ('model_ema.decay'): a moving average of the weights in training",
        'other parts are not written: vae, clip-l, clip-g; part="all" writes them, too',
    ]


def test_a_clip_without_its_prefix(tmp_path):
    """As transformers 5 saves it."""
    folder = pipeline(tmp_path / "FLUX")
    bare = {name.removeprefix("text_model."): each for name, each in clip().items()}
    shutil.rmtree(folder / "text_encoder")
    component(folder / "text_encoder", bare, {"architectures": ["CLIPTextModel"]}, "model")
    gguftools.convert(folder, tmp_path / "clip.safetensors", part="clip-l")
    assert load_file(tmp_path / "clip.safetensors").keys() == clip().keys()


def test_damage_in_one_block_is_named(tmp_path):
    tensors, block = flux(), "single_blocks.0."
    for i in (2, 3):
        tensors |= {
            name.replace(block, f"single_blocks.{i}."): each for name, each in flux().items() if name.startswith(block)
        }
    assert gguftools.convert(save(tensors, tmp_path / "whole.safetensors"), tmp_path / "whole.gguf").warnings == []
    del tensors["single_blocks.2.linear2.weight"]
    (warning,) = gguftools.convert(save(tensors, tmp_path / "cut.safetensors"), tmp_path / "cut.gguf").warnings
    assert warning.startswith("single_blocks.2.linear2.weight is missing, and is in blocks 1 and 3; a shard may be")


def test_all_parts_of_a_pipeline(tmp_path):
    folder, out = pipeline(tmp_path / "FLUX"), tmp_path / "out"
    out.mkdir()
    done = run("convert", str(folder), "-o", f"{out}/", "--outtype", "Q4_K_M", "--all-parts", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = ["FLUX-Q4_K_M.gguf", "FLUX-clip-l.safetensors", "FLUX-t5xxl-Q8_0.gguf", "FLUX-vae.safetensors"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert sorted(Path(each["file"]).name for each in json.loads(done.stdout)["outputs"]) == names
    with gguftools.open(out / names[2]) as model:
        assert model.metadata["general.name"] == "FLUX t5xxl"
        assert model.metadata["tokenizer.ggml.model"] == "t5"
        assert model.tokenizer.encode("a cat")
    gguftools.convert(folder, tmp_path / "t5.gguf", "Q4_K_M", part="t5xxl")
    assert {form for form, _ in tensors_of(tmp_path / "t5.gguf").values()} != {"Q8_0"}


def spec_tokenizer() -> str:
    """Return the name of Qwen2.5-VL's tokenizer among those of the tests."""
    spec = json.loads((FAMILIES / "qwen2-5-vl" / "spec.json").read_text(encoding="utf-8"))
    return str(spec["tokenizer"])


def qwen(folder: Path, window: int) -> Path:
    """Write a pipeline whose text encoder also reads images, with its preprocessor in another folder."""
    component(folder / "transformer", flux(), {"_class_name": "X"})
    build_encoder("qwen2-5-vl", folder / "text_encoder")
    config = json.loads((folder / "text_encoder" / "config.json").read_text(encoding="utf-8"))
    config["vision_config"]["window_size"] = window
    (folder / "text_encoder" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = json.loads((FAMILIES / "tokenizers" / spec_tokenizer() / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = {token: number for token, number in tokenizer["model"]["vocab"].items() if number < 64}
    tokenizer |= {"added_tokens": [], "model": {**tokenizer["model"], "vocab": vocab, "merges": []}}
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "processor").mkdir()
    shutil.move(folder / "text_encoder" / "preprocessor_config.json", folder / "processor")
    (folder / "model_index.json").write_text("{}")
    return folder


def test_a_language_model_with_its_encoder_of_images(tmp_path):
    """ComfyUI-GGUF looks for a file that is named with "mmproj" and the text encoder's name without its type."""
    folder = qwen(tmp_path / "QWEN", window=112)
    report = gguftools.convert(folder, tmp_path / "q-Q4_K_M.gguf", "Q4_K_M", part="all")
    names = [each.file.name for each in report.outputs]
    assert names == ["q-Q4_K_M.gguf", "q-llm-Q8_0.gguf", "q-llm-mmproj-Q8_0.gguf"]
    with gguftools.open(tmp_path / names[1]) as model:
        assert model.metadata["general.architecture"] == "qwen2vl"
    with gguftools.open(tmp_path / names[2]) as model:
        assert model.metadata["general.type"] == "mmproj"
        assert "v.blk.0.attn_q.weight" in model.tensors


def test_an_encoder_of_images_that_cannot_be_written_is_named(tmp_path):
    folder = qwen(tmp_path / "QWEN", window=8)
    report = gguftools.convert(folder, tmp_path / "q.gguf", part="llm")
    assert [each.file.name for each in report.outputs] == ["q.gguf"]
    assert any("the encoder of images in llm is not written" in each for each in report.warnings)


def test_either_all_parts_are_written_or_none(tmp_path):
    folder, out = pipeline(tmp_path / "FLUX"), tmp_path / "out"
    out.mkdir()
    (out / "FLUX-vae.safetensors").write_bytes(b"mine")
    with pytest.raises(FileError, match="FLUX-vae"):
        gguftools.convert(folder, f"{out}/", part="all")
    assert [path.name for path in out.iterdir()] == ["FLUX-vae.safetensors"]
    assert (out / "FLUX-vae.safetensors").read_bytes() == b"mine"


def test_a_dry_run_names_all_files(tmp_path):
    folder = pipeline(tmp_path / "FLUX")
    report = gguftools.convert(folder, f"{tmp_path}/", part="all", write=WriteOptions(dry_run=True))
    assert len(report.outputs) == 4
    assert report.dry_run
    assert [path.name for path in tmp_path.iterdir()] == ["FLUX"]


def test_an_encoder_of_an_unknown_class_is_written_as_published(tmp_path):
    folder = pipeline(tmp_path / "FLUX")
    (folder / "text_encoder_2" / "config.json").write_text('{"architectures": ["T7EncoderModel"]}')
    report = gguftools.convert(folder, f"{tmp_path}/", part="text-encoders")
    assert (tmp_path / "FLUX-t5xxl.safetensors").is_file()
    assert any(each.startswith("t5xxl is written as it was published") for each in report.warnings)
    with pytest.raises(GgufToolsError):
        gguftools.convert(folder, tmp_path / "t.gguf", part="t5xxl")


@pytest.mark.parametrize(
    ("part", "options", "problem"),
    [
        ("llm", {}, "has no part llm"),
        ("mmproj", {}, "has no part"),
        ("model", {"pre": "default"}, "`pre` has no effect"),
        ("model", {"no_mtp": True}, "`no_mtp` has no effect"),
        ("vae", {"outtype": "Q4_K_M"}, "cannot be Q4_K_M"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path, part, options, problem):
    folder = pipeline(tmp_path / "FLUX")
    outtype = options.pop("outtype", "auto")
    with pytest.raises((OptionError, ModelError), match=problem.replace("mmproj", "part")):
        gguftools.convert(folder, tmp_path / "x.gguf", outtype, part=part, options=ConvertOptions(**options))
    assert [path.name for path in tmp_path.iterdir()] == ["FLUX"]


def test_parts_whose_weights_were_not_fetched(tmp_path):
    folder = pipeline(tmp_path / "FLUX")
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    (folder / "text_encoder_2" / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    report = gguftools.convert(folder, tmp_path / "x.gguf")
    assert report.warnings == ['other parts are not written: clip-l; part="all" writes them, too']
    gguftools.convert(folder, tmp_path / "c.safetensors", part="clip-l")
    for part, problem in (("all", "git-lfs pointer"), ("vae", "vae has no weights"), ("text-encoders", "git-lfs")):
        with pytest.raises(FileError, match=problem):
            gguftools.convert(folder, tmp_path / "y.gguf", part=part)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["FLUX", "c.safetensors", "x.gguf"]


def test_every_tensor_is_written_or_named(tmp_path):
    tensors = whole_checkpoint() | {"betas": np.zeros(3, "f4"), "model_ema.decay": np.zeros(1, "f4")}
    tensors |= {"odd.thing": np.zeros(3, "f4"), "vocoder.x": np.zeros(3, "f4")}
    save_file(tensors, tmp_path / "all.safetensors")
    report = gguftools.convert(tmp_path / "all.safetensors", tmp_path / "x.gguf", part="all")
    written = [each.name for output in report.outputs for each in output.tensors]
    assert len(written) == len(tensors) - 3
    assert [each for each in report.warnings if "odd" in each] == ["1 tensors of no known part are left out: odd.thing"]
    assert load_file(tmp_path / "x-audio-vae.safetensors").keys() == {"vocoder.x"}


@pytest.mark.parametrize("config", [b"[]", b"{", b'{"_class_name": 3, "architectures": 7}', b"\xff"])
def test_configs_that_lie(tmp_path, config):
    component(tmp_path / "m", flux(), {})
    (tmp_path / "m" / "config.json").write_bytes(config)
    with pytest.raises(GgufToolsError):
        gguftools.convert(tmp_path / "m", tmp_path / "x.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("name", ["single_blocks.0.linear1.weight", "img_in.weight"])
def test_values_beyond_f16(tmp_path, name):
    """A weight that a recipe quantizes, and one that is kept."""
    tensors = flux(dtype=np.float32)
    tensors[name][1, 3] = 70000
    save_file(tensors, tmp_path / "big.safetensors")
    for outtype in ("F16", *(("Q4_K_M",) if "img_in" in name else ())):
        with pytest.raises(GgufToolsError, match=r"in row 1, column 3.* beyond the range of F16") as error:
            gguftools.convert(tmp_path / "big.safetensors", tmp_path / "x.gguf", outtype)
        assert "BF16" in str(error.value.hint)
    gguftools.convert(tmp_path / "big.safetensors", tmp_path / "x.gguf", "BF16")
    gguftools.quantize(tmp_path / "x.gguf", "Q4_K_M", tmp_path / "q.gguf")
    tensors[name][1, 3] = np.inf
    save_file(tensors, tmp_path / "inf.safetensors")
    with pytest.raises(GgufToolsError, match="infinity"):
        gguftools.convert(tmp_path / "inf.safetensors", tmp_path / "y.gguf", "BF16")


@pytest.mark.parametrize("outtype", ["F16", "Q8_0", "Q4_K_M"])
def test_a_manifest_is_reproduced(tmp_path, outtype):
    folder = pipeline(tmp_path / "FLUX")
    save_file(flux(dtype=np.float32), tmp_path / "flux.safetensors")
    for source in (folder, folder / "transformer", tmp_path / "flux.safetensors"):
        write = WriteOptions(manifest=True, overwrite=True)
        gguftools.convert(source, tmp_path / "x.gguf", outtype, write=write)
        done = run("reproduce", "x.gguf", "--source", str(source), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_sources_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    folder = pipeline(tmp_path / "FLUX")
    shards(folder / "split")
    save_file(flux(), folder / "flux1.safetensors", {"modelspec.title": "tiny"})
    gguftools.convert(folder, tmp_path / "local.gguf", "Q4_K_M")
    with serving(Hub({"jane/FLUX": folder})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        monkeypatch.chdir(tmp_path)
        name = "hf://jane/FLUX"
        assert gguftools.convert(name, outtype="Q4_K_M").outputs[0].file == Path("FLUX-Q4_K_M.gguf")
        assert tensors_of(Path("FLUX-Q4_K_M.gguf")) == tensors_of(tmp_path / "local.gguf")
        for inside in ("flux1.safetensors", "transformer", "split/flux-00002-of-00003.safetensors"):
            gguftools.convert(f"{name}/{inside}", "x.gguf", "Q4_K_M", write=WriteOptions(overwrite=True))
            assert tensors_of(Path("x.gguf")) == tensors_of(tmp_path / "local.gguf"), inside
        with gguftools.open(f"{name}/flux1.safetensors") as model:
            assert model.metadata["general.name"] == "tiny"
        for part in ("all", "vae"):
            with pytest.raises(FileError, match="not read over the network"):
                gguftools.convert(name, "y.gguf", part=part)
        with pytest.raises(FileError, match="has no file absent"):
            gguftools.convert(f"{name}/absent.safetensors", "y.gguf")


def test_a_vae_that_only_diffusers_reads_is_told(tmp_path):
    folder = pipeline(tmp_path / "FLUX")
    for name, is_read in (("norm1.weight", True), ("norm1.gamma", False)):
        tensors = {f"decoder.up_blocks.0.resnets.0.{name}": np.ones(8, "f4")}
        save_file(tensors, folder / "vae" / "diffusion_pytorch_model.safetensors")
        write = WriteOptions(overwrite=True)
        report = gguftools.convert(folder, tmp_path / "v.safetensors", part="vae", write=write)
        assert bool(report.warnings) != is_read


def test_convolutions_that_no_recipe_takes_are_told(tmp_path):
    """ComfyUI-GGUF alone reads them rearranged."""
    source = diffusion_models.write(tmp_path / "sdxl.safetensors", "sdxl")
    report = gguftools.convert(source, tmp_path / "a.gguf", "Q4_K_M")
    assert any("`reader` comfyui" in each for each in report.warnings)
    options = ConvertOptions(reader="comfyui")
    other = gguftools.convert(source, tmp_path / "b.gguf", "Q4_K_M", options=options)
    assert not other.warnings
    assert other.outputs[0].nbytes < report.outputs[0].nbytes

"""`export --mmproj`: a text model's file and its encoders' give the checkpoint that both were made of.

That transformers loads it and computes the same is what `python -m tests.verify.wholes` looks at.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, get_ident

import numpy as np
import pytest

import gguftools
from archs.plans.export.multimodal_checkpoint import plan_multimodal_checkpoint
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.metadata.difference import compare_metadata
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, ModelError, OptionError, VocabularyError

from ...archs import checkpoints
from ...archs.wholes import FOLDED, LOST, SPECIAL, SUMMED, files
from ..command_line import typed


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return files("gemma3", tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("name", SPECIAL)
def test_the_checkpoint_is_the_one_that_both_files_were_made_of(tmp_path, name):
    checkpoint, text, encoders = files(name, tmp_path)
    with gguftools.open(text) as model, gguftools.open(encoders) as beside:
        found = plan_multimodal_checkpoint(model.metadata, model.tensors, beside.metadata, beside.tensors)
        lost = LOST.get(name, ("nothing",))
        wanted, made = (
            {each: tensor for each, tensor in tensors.items() if not each.startswith(lost)}
            for tensors in (open_checkpoint(checkpoint).tensors, found.tensors)
        )
        assert {each: tensor.shape for each, tensor in made.items()} == {
            each: tensor.shape for each, tensor in wanted.items()
        }
        for each in wanted:
            if name in FOLDED and ".batch_norm." in each:
                continue
            values, before = (tensors[each].float32() for tensors in (found.tensors, wanted))
            if name in SUMMED and SUMMED[name] in each:
                values, before = (part.reshape(len(part), 2, -1) for part in (values, before))
                np.testing.assert_array_equal(values[:, 0], values[:, 1])
                values, before = values[:, 0] + values[:, 1], before[:, 0] + before[:, 1]
            np.testing.assert_array_equal(values, before, err_msg=each)
    assert found.differing == {}
    assert json.loads((checkpoint / "config.json").read_text())["architectures"] == found.config["architectures"]


def test_what_is_written_converts_to_both_files_again(gemma, tmp_path):
    _, text, encoders = gemma
    done = gguftools.export(text, tmp_path / "back", mmproj=encoders)
    assert done.hf_class == "Gemma3ForConditionalGeneration"
    assert {"config.json", "preprocessor_config.json", "tokenizer_config.json"} <= {*done.files}
    gguftools.convert(tmp_path / "back", tmp_path / "again.gguf", "f32", part="mmproj")
    with gguftools.open(tmp_path / "again.gguf") as found, gguftools.open(encoders) as wanted:
        assert not [each for each in compare_metadata(wanted.metadata, found.metadata) if "clip" in each.key]
        assert {each.name: each.raw().tobytes() for each in found.tensors.values()} == {
            each.name: each.raw().tobytes() for each in wanted.tensors.values()
        }
    with pytest.raises(FileError, match="already exists"):
        gguftools.export(text, tmp_path / "back", mmproj=encoders)


def test_processors_find_the_chat_templates(gemma, tmp_path):
    """In files of Jinja: they do not look into tokenizer_config.json."""
    _, text, encoders = gemma
    with gguftools.open(text) as model:
        keys = {"tokenizer.chat_template": "d", "tokenizer.chat_template.rag": "r", "tokenizer.chat_templates": ["rag"]}
        model.metadata.update(keys)
        gguftools.export(model, tmp_path / "back", mmproj=encoders)
        (tmp_path / "back" / "additional_chat_templates" / "old.jinja").write_text("another's")
        done = gguftools.export(model, tmp_path / "back", mmproj=encoders, write=WriteOptions(overwrite=True))
    assert {"chat_template.jinja", "additional_chat_templates/rag.jinja"} <= {*done.files}
    assert (tmp_path / "back" / "chat_template.jinja").read_text() == "d"
    assert [path.name for path in (tmp_path / "back" / "additional_chat_templates").iterdir()] == ["rag.jinja"]
    gguftools.convert(tmp_path / "back", tmp_path / "again.gguf", "f32")
    with gguftools.open(tmp_path / "again.gguf") as again:
        assert keys.items() <= dict(again.metadata).items()


def joined(family: str, encoder: str, own: tuple[str, ...], shapes: dict[str, list[int]], folder: Path) -> Path:
    """A checkpoint of a text model of tests/data/families and an encoder of tests/data/towers. own: how names of that
    begin; shapes: of those that bring it to the text model's width, by beginnings.
    """
    checkpoints.build(family, folder)
    text, others = (
        json.loads((path / "spec.json").read_text(encoding="utf-8"))["tensors"]
        for path in (checkpoints.FAMILIES / family, checkpoints.ENCODERS / encoder)
    )
    encoders = []
    for name, dtype, shape, *more in (row for row in others if row[0].startswith(own)):
        fitting = next((each for start, each in shapes.items() if name.startswith(start)), shape)
        encoders.append([name, dtype, fitting[: len(shape)], *more])
    checkpoints.write_tensors(folder / "model.safetensors", encoder, [*text, *encoders])
    said, config = (
        json.loads((path / "config.json").read_text(encoding="utf-8"))
        for path in (checkpoints.ENCODERS / encoder, folder)
    )
    config |= {key: value for key, value in said.items() if key.startswith(("vision_", "audio_", "image_"))}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if (said := checkpoints.ENCODERS / encoder / "preprocessor_config.json").is_file():
        (folder / said.name).write_bytes(said.read_bytes())
    return folder


EYES = ("vision.", "aligner.", "image_")


@pytest.fixture(scope="module")
def deepseek4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Of published form, as those of text models are: with experts in four bits."""
    folder, wider = tmp_path_factory.mktemp("eyes") / "source", {"image_": [64], "aligner.w2": [64, 64]}
    joined("deepseek-v4", "deepseek-v4-vision", EYES, wider, folder)
    return (folder, *both_files(folder, folder.parent))


def both_files(checkpoint: Path, folder: Path) -> tuple[Path, Path]:
    gguftools.convert(checkpoint, folder / "text.gguf", "f32")
    gguftools.convert(checkpoint, folder / "mmproj.gguf", "f32", part="mmproj")
    return folder / "text.gguf", folder / "mmproj.gguf"


def test_deepseek_v4_with_eyes_comes_back(deepseek4):
    checkpoint, text, encoders = deepseek4
    wanted = {name: each for name, each in open_checkpoint(checkpoint).tensors.items() if name.startswith(EYES)}
    with gguftools.open(text) as model, gguftools.open(encoders) as beside:
        found = plan_multimodal_checkpoint(model.metadata, model.tensors, beside.metadata, beside.tensors)
        assert {*wanted} == {name for name in found.tensors if name.startswith(EYES)}
        for name, each in wanted.items():
            np.testing.assert_array_equal(found.tensors[name].float32(), each.float32(), err_msg=name)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    seen = {key: value for key, value in config.items() if key.startswith("vision_")}
    assert {key: value for key, value in found.config.items() if key.startswith("vision_")} == seen
    assert (found.config["architectures"], found.differing) == (["DeepseekV4ForCausalLM"], {})


@pytest.fixture(scope="module")
def dots3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("dots3") / "source"
    adapters = {
        "vision_encoder.adapter.mlp.2": [64, 128],
        "audio_encoder.audio_adapter.proj.1": [64, 32],
        "audio_encoder.audio_adapter.proj.3": [64, 64],
    }
    joined("dots3-note", "dots3-note", ("vision_encoder.", "audio_encoder."), adapters, folder)
    text, encoders = both_files(folder, folder.parent)
    with gguftools.open(text) as model:
        words = list(model.metadata["tokenizer.ggml.tokens"])
        words[60:62] = ["<|imgpad|>", "<|audio_comp_pad|>"]
        model.metadata["tokenizer.ggml.tokens"] = words
        model.save(folder.parent / "named.gguf")
    return folder, folder.parent / "named.gguf", encoders


def test_dots3_note_comes_back(dots3):
    checkpoint, text, encoders = dots3
    with gguftools.open(text) as model, gguftools.open(encoders) as beside:
        found = plan_multimodal_checkpoint(model.metadata, model.tensors, beside.metadata, beside.tensors)
        wanted = open_checkpoint(checkpoint).tensors
        assert {*found.tensors} == {*wanted}
        for name, each in wanted.items():  # norms of latents to the last place
            np.testing.assert_allclose(found.tensors[name].float32(), each.float32(), rtol=3e-7, err_msg=name)
    assert found.differing == {}
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    for part in ("vision_config", "audio_config"):
        made = {key: found.config[part].get(key) for key in config[part]}
        made["rope_parameters"] = {**made.get("rope_parameters", {}), "rope_type": "default"}
        assert made == {**config[part], "rope_parameters": made["rope_parameters"]}


@pytest.mark.parametrize(
    ("lost", "wrong"),
    [
        ("v.blk.2.ffn_up_exps.weight", "no 'v.blk.2.ffn_up_exps'"),
        ("a.conv2d.2.weight", "no 'a.conv2d.2'"),
        ("v.blk.0.ffn_gate.weight", "no 'v.blk.0.ffn_gate'"),
        ("mm.a.mlp.3.weight", "no 'mm.a.mlp.3'"),
    ],
)
def test_encoders_of_dots3_note_that_lack_a_tensor_are_refused(dots3, lost, wrong):
    _, text, encoders = dots3
    with gguftools.open(text) as model, gguftools.open(encoders) as beside:
        others = {name: each for name, each in beside.tensors.items() if name != lost}
        with pytest.raises(ModelError, match=wrong):
            plan_multimodal_checkpoint(model.metadata, model.tensors, beside.metadata, others)


@pytest.mark.slow
def test_deepseek_v4_with_eyes_converts_again(deepseek4, tmp_path):
    _, *first = deepseek4
    gguftools.export(first[0], tmp_path / "back", mmproj=first[1])
    for before, again in zip(first, both_files(tmp_path / "back", tmp_path), strict=True):
        with gguftools.open(before) as own, gguftools.open(again) as other:
            assert {*own.tensors} == {*other.tensors}
            for name, each in own.tensors.items():
                if "_exps." not in name:  # floats by now
                    assert each.raw().tobytes() == other.tensors[name].raw().tobytes(), name


def test_keys_that_older_files_lack_are_listed(tmp_path):
    _, text, encoders = files("smolvlm", tmp_path)
    with gguftools.open(encoders) as model:
        del model.metadata["clip.vision.preproc_image_size"]
        model.save(tmp_path / "older.gguf")
    done = gguftools.export(text, tmp_path / "back", mmproj=tmp_path / "older.gguf")
    assert "clip.vision.preproc_image_size" in done.differing
    with gguftools.open(encoders) as model:
        del model.metadata["clip.vision.image_mean"]
        model.save(tmp_path / "less.gguf")
    with pytest.raises(ModelError, match=r"clip\.vision\.image_mean is missing"):
        gguftools.export(text, tmp_path / "less", mmproj=tmp_path / "less.gguf")


def test_quantized_encoders_are_decoded(gemma, tmp_path):
    checkpoint, text, _ = gemma
    gguftools.convert(checkpoint, tmp_path / "q8.gguf", "q8_0", part="mmproj")
    gguftools.export(text, tmp_path / "back", mmproj=tmp_path / "q8.gguf")
    name = "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight"
    found, wanted = (open_checkpoint(folder).tensors[name] for folder in (tmp_path / "back", checkpoint))
    assert found.format.name == "F32"
    assert 0 < np.abs(found.float32() - wanted.float32()).max() < 0.01


def changed(file: Path, target: Path, **keys) -> Path:
    with gguftools.open(file) as model:
        for key, value in keys.items():
            model.metadata[key.replace("__", ".")] = value
        model.save(target)
    return target


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("clip__vision__projection_dim", 64, "embeddings are 64 wide, those of the model 32"),
        ("clip__projector_type", "nothing", "'nothing' do not become a checkpoint again"),
        ("clip__projector_type", "janus_pro", "checkpoint again: Janus has parts that make images"),
        ("clip__projector_type", "qwen2vl_merger", "go with qwen2vl; the text model is 'gemma3'"),
        ("clip__vision__embedding_length", 16, "embedding_length is 16"),
        ("clip__vision__patch_size", 7, "patch_size is 7"),
        ("clip__vision__image_size", 112, "16 positions; images of 112 pixels have 64"),
        ("clip__vision__attention__head_count", 5, "5, which does not divide the width, 32"),
        ("clip__vision__block_count", 3, "3 layers"),
        ("general__architecture", "llama", "its general.architecture is 'llama', not 'clip'"),
    ],
)
def test_encoders_that_lie_are_refused_and_nothing_is_left(gemma, tmp_path, key, value, wrong):
    _, text, encoders = gemma
    lying = changed(encoders, tmp_path / "lying.gguf", **{key: value})
    with pytest.raises(ModelError, match=wrong):
        gguftools.export(text, tmp_path / "back", mmproj=lying)
    assert [each.name for each in tmp_path.iterdir()] == ["lying.gguf"]


@pytest.mark.parametrize(
    ("name", "shape", "wrong"),
    [
        ("v.blk.1.ln1.weight", None, "v.blk.1.ln1.weight is not there"),
        ("v.blk.0.ffn_up.weight", (48, 64), r"blk\.\d\.ffn_up\.weight is \(48, "),
        ("v.post_ln.weight", None, "the encoders' file has no 'v.post_ln'"),
        ("mm.soft_emb_norm.weight", None, "the encoders' file has no 'mm.soft_emb_norm'"),
        ("v.patch_embd.bias", (16,), "its weight has 32 outputs"),
        ("v.post_ln.bias", None, r"has no 'v\.post_ln\.bias'"),
        ("mm.input_projection.weight", (32, 24), "to which no other tensor's fits"),
        ("mm.input_projection.weight", (24, 32), "to which no other tensor's fits"),
        ("mm.soft_emb_norm.weight", (24,), "to which no other tensor's fits"),
        ("mm.more.weight", (32, 32), "the encoders have no place for 'mm.more.weight'"),
    ],
)
def test_encoders_that_lack_a_tensor_or_have_another_are_refused(gemma, tmp_path, name, shape, wrong):
    _, text, encoders = gemma
    with gguftools.open(encoders) as model:
        if shape is None:
            del model.tensors[name]
            if name.endswith("weight") and f"{name.removesuffix('weight')}bias" in model.tensors and "blk" not in name:
                del model.tensors[f"{name.removesuffix('weight')}bias"]
        else:
            model.tensors[name] = np.zeros(shape, np.float32)
        model.save(tmp_path / "lying.gguf")
    with pytest.raises(ModelError, match=wrong):
        gguftools.export(text, tmp_path / "back", mmproj=tmp_path / "lying.gguf")


@pytest.mark.parametrize(
    ("lost", "wrong"),
    [
        ("v.sam.blk.1.mlp.lin1.weight", r"v\.sam\.blk\.1\.mlp\.lin1\.weight is not there"),
        ("v.sam.blk.1.attn.pos_h.weight", r"pos_h\.weight is not there"),
        ("v.sam.blk.1.", "has 1 of SAM's layers"),
        ("v.sam.neck.2.weight", r"no 'v\.sam\.neck\.2'"),
        ("v.sam.net_3.weight", r"no 'v\.sam\.net_3'"),
        ("mm.model.fc.bias", r"no 'mm\.model\.fc\.bias'"),
    ],
)
def test_encoders_without_a_part_of_sam_are_refused(tmp_path, lost, wrong):
    _, text, encoders = files("deepseek-ocr", tmp_path)
    with gguftools.open(encoders) as model:
        for name in [each for each in model.tensors if each.startswith(lost)]:
            del model.tensors[name]
        model.save(tmp_path / "lying.gguf")
    with pytest.raises(ModelError, match=wrong):
        gguftools.export(text, tmp_path / "back", mmproj=tmp_path / "lying.gguf")


@pytest.fixture(scope="module")
def minicpm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return files("minicpm-v-2-6", tmp_path_factory.mktemp("minicpm"))


@pytest.mark.parametrize(
    ("number", "found"),
    [(3, ("MiniCPMV", 2.6, None)), (4, ("MiniCPMO", 2.6, False)), (6, "one of 'qwen3'"), (99, "99, which is no")],
)
def test_the_version_of_minicpm_says_its_class(minicpm, tmp_path, number, found):
    _, text, encoders = minicpm
    other = changed(encoders, tmp_path / "other.gguf", clip__minicpmv_version=number)
    with gguftools.open(text) as model, gguftools.open(other) as beside:
        if isinstance(found, str):
            with pytest.raises(ModelError, match=found):
                plan_multimodal_checkpoint(model.metadata, model.tensors, beside.metadata, beside.tensors)
        else:
            config = plan_multimodal_checkpoint(model.metadata, model.tensors, beside.metadata, beside.tensors).config
            assert (config["architectures"][0], config["version"], config.get("init_audio")) == found


def test_queries_of_another_number_are_refused(minicpm, tmp_path):
    _, text, encoders = minicpm
    lying = changed(encoders, tmp_path / "lying.gguf", clip__minicpmv_query_num=64)
    with pytest.raises(ModelError, match=r"'resampler\.query' has the shape \(8, 64\); 64 queries 64 wide"):
        gguftools.export(text, tmp_path / "back", mmproj=lying)


def test_positions_that_make_no_grid_are_refused(tmp_path):
    _, text, encoders = files("kimi-vl", tmp_path)
    with gguftools.open(encoders) as model:
        model.tensors["v.position_embd.weight"] = np.zeros((15, 32), np.float32)
        model.save(tmp_path / "lying.gguf")
    with pytest.raises(ModelError, match="has 15 positions; as many rows as columns"):
        gguftools.export(text, tmp_path / "back", mmproj=tmp_path / "lying.gguf")


def test_files_that_are_no_pair_are_refused(gemma, tmp_path):
    _, text, encoders = gemma
    for source, beside in ((encoders, text), (encoders, encoders), (encoders, None)):
        with pytest.raises(ModelError, match="has encoders for images or audio") as error:
            gguftools.export(source, tmp_path / "back", mmproj=beside)
        assert "--mmproj ENCODERS" in str(error.value.hint)
    with pytest.raises(ModelError, match="the second file is no encoders'"):
        gguftools.export(text, tmp_path / "back", mmproj=text)
    with pytest.raises(OptionError, match="mmproj has no effect"):
        gguftools.export(text, tmp_path / "x.safetensors", mmproj=encoders)
    nameless = changed(text, tmp_path / "nameless.gguf", tokenizer__ggml__tokens=[str(i) for i in range(64)])
    with pytest.raises((VocabularyError, ModelError), match="no <image_soft_token>"):
        gguftools.export(nameless, tmp_path / "back", mmproj=encoders)
    done = typed("export", text, "--mmproj", encoders, "-o", encoders, "--overwrite")
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_an_interrupted_export_leaves_nothing(gemma, tmp_path, share):
    """With a part of the weights written, or with all of them: the config is there from the beginning."""
    seen: list[set[str]] = []

    def stop(written: int, total: int, *_: object) -> None:
        seen.append({path.name for path in tmp_path.rglob("*") if path.is_file()})
        if written >= share * total:
            raise KeyboardInterrupt

    _, text, encoders = gemma
    with pytest.raises(KeyboardInterrupt):
        gguftools.export(text, tmp_path / "back", mmproj=encoders, write=WriteOptions(progress=stop))
    assert "config.json" in seen[-1]  # so that there was something to remove
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_export_leaves_nothing_under_its_name(gemma, tmp_path):
    _, text, encoders = gemma
    code = (
        "import os, signal, sys, gguftools\n"
        "stop = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "gguftools.export(sys.argv[1], sys.argv[3], mmproj=sys.argv[2], write=gguftools.WriteOptions(progress=stop))\n"
    )
    command = [sys.executable, "-c", code, str(text), str(encoders), str(tmp_path / "back")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "back").exists()
    gguftools.export(text, tmp_path / "back", mmproj=encoders)
    assert (tmp_path / "back" / "config.json").is_file()


def test_of_two_exports_at_once_one_is_there_whole(gemma, tmp_path):
    _, text, encoders = gemma
    wanted = gguftools.export(text, tmp_path / "alone", mmproj=encoders)
    both, began = Barrier(2, timeout=300), set()

    def together(*_: object) -> None:
        if get_ident() not in began:
            began.add(get_ident())
            both.wait()

    def run(_: int) -> object:
        try:
            return gguftools.export(
                text, tmp_path / "back", mmproj=encoders, write=WriteOptions(progress=together, threads=1)
            )
        except FileError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(run, range(2)))
    assert sorted(isinstance(each, FileError) for each in ends) == [False, True]
    for name in wanted.files:
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {"alone", "back"}

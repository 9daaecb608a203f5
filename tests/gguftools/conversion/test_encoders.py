"""`convert --mmproj`: encoders for images and sounds as llama.cpp's converter writes them, and nothing left behind."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.models.model import of_parts
from gguftools.models.sources import of_checkpoint, of_encoders
from quants.errors import FileError, FormatError, ModelError

from ...archs.checkpoints import DATA, ENCODERS, OUTTYPES, build, build_encoder, encoders, file_digest, write_tensors
from ..command_line import run

RECORDED = [name for name in encoders() if (ENCODERS / name / "reference.json").is_file()]


@pytest.fixture
def checkpoint(tmp_path: Path):
    def made(name: str, **changes) -> Path:
        folder = tmp_path / (f"{name}-changed" if changes else name)
        build_encoder(name, folder)
        if changes:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | changes
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return made


@pytest.mark.parametrize("name", RECORDED)
def test_files_are_those_of_the_reference(checkpoint, tmp_path, name):
    reference = json.loads((ENCODERS / name / "reference.json").read_text(encoding="utf-8"))
    folder = checkpoint(name)
    for outtype in OUTTYPES:
        output = tmp_path / f"{outtype}.gguf"
        gguftools.convert(folder, output, outtype, part="mmproj")
        place = 1 + OUTTYPES.index(outtype)
        with gguftools.open(output) as model:
            assert {t.name: [list(t.shape), t.format.name] for t in model.tensors.values()} == {
                tensor: [said[0], said[place]] for tensor, said in reference["tensors"].items()
            }
            assert list(model.metadata) == list(reference["keys"])
        assert file_digest(output) == reference["files"][outtype]


def test_llava_ends_where_its_output_is_taken(checkpoint, tmp_path):
    gguftools.convert(checkpoint("llava-1-5"), tmp_path / "x.gguf", "f16", part="mmproj")
    with gguftools.open(tmp_path / "x.gguf") as model:
        assert model.metadata["clip.projector_type"] == "mlp"
        assert model.metadata["clip.vision.block_count"] == 2
        assert list(model.metadata["clip.vision.feature_layer"]) == [2]
        assert not model.metadata["clip.use_gelu"]
        assert not [name for name in model.tensors if name.startswith(("v.blk.2", "v.post_ln"))]
        assert {"v.class_embd", "v.pre_ln.weight", "v.blk.1.ln1.bias", "mm.0.weight", "mm.2.bias"} <= {*model.tensors}
    whole = checkpoint("llava-1-5", vision_feature_select_strategy="full")
    with pytest.raises(ModelError, match="vision_feature_select_strategy = 'full'"):
        gguftools.convert(whole, tmp_path / "y.gguf", part="mmproj")


def test_older_minicpm_v_has_the_tensors_of_the_reference_script(checkpoint):
    written = json.loads((ENCODERS / "minicpm-v-2-6" / "spec.json").read_text(encoding="utf-8"))["written"]
    model = of_parts(of_encoders(checkpoint("minicpm-v-2-6")))
    waves = model.tensors["resampler.pos_embed_k"].float32(70 + 2, 70 + 3)[0]  # the second row, the third column
    rates = 1 / 10_000 ** (np.arange(16) / 16)
    assert np.allclose(waves, [*np.sin(2 * rates), *np.cos(2 * rates), *np.sin(rates), *np.cos(rates)], atol=1e-6)
    digests = {name: sha256(each.float32().tobytes()).hexdigest() for name, each in model.tensors.items()}
    digests["resampler.pos_embed_k"] = written["resampler.pos_embed_k"]  # sines are rounded otherwise elsewhere
    assert digests == written
    assert not gguftools.validate(model).problems
    assert model.metadata["clip.minicpmv_version"] == 3
    with pytest.raises(ModelError, match=r"version 9\.9, which is none of MiniCPMV 2\.5"):
        of_encoders(checkpoint("minicpm-v-2-6", version=9.9))


def test_glm_asr_of_transformers_becomes_what_the_published_one_does(checkpoint, tmp_path):
    gguftools.convert(checkpoint("glm-asr"), tmp_path / "x.gguf", "f32", part="mmproj")
    gguftools.convert(checkpoint("glm-asr-hf"), tmp_path / "y.gguf", "f32", part="mmproj")
    with gguftools.open(tmp_path / "x.gguf") as published, gguftools.open(tmp_path / "y.gguf") as saved:
        assert {*published.tensors} == {*saved.tensors}
        of_encoder = [key for key in published.metadata if key.startswith("clip.")]
        assert {*of_encoder} == {key for key in saved.metadata if key.startswith("clip.")}
        assert saved.metadata["clip.projector_type"] == "glma"
        assert not saved.tensors["a.position_embd.weight"].float32().any()
        rows = np.stack([saved.tensors[name].float32() for name in ("v.boi", "v.eoi")])
    checkpoint_tensors = open_checkpoint(tmp_path / "glm-asr-hf").tensors
    embedding = next(tensor for name, tensor in checkpoint_tensors.items() if "embed_tokens" in name)
    np.testing.assert_array_equal(rows, embedding.float32()[61:63])


def test_qwen3_asr_of_transformers_becomes_what_the_published_one_does(checkpoint, tmp_path):
    folder = checkpoint("qwen3-asr")
    with of_parts(of_encoders(folder)) as model:
        wanted = {each.name: each.raw().tobytes() for each in model.tensors.values()}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    inner = config.pop("thinker_config")
    (folder / "config.json").write_text(json.dumps({**inner, **config}), encoding="utf-8")
    renamed(
        folder,
        "qwen3-asr",
        **{
            "thinker.audio_tower.proj": "model.multi_modal_projector.linear_",
            "thinker.audio_tower.": "model.audio_tower.",
            "thinker.lm_head.": "lm_head.",
            "thinker.model.": "model.language_model.",
        },
    )
    with of_parts(of_encoders(folder)) as model:
        assert {each.name: each.raw().tobytes() for each in model.tensors.values()} == wanted


@pytest.mark.parametrize("name", ["idefics3", "kimi-vl", "qwen3-vl", "voxtral", "mimo-v2-5"])
def test_quantized_files_are_those_of_the_reference(checkpoint, tmp_path, name):
    reference = json.loads((ENCODERS / name / "reference.json").read_text(encoding="utf-8"))["quantized"]
    assert len(reference) > 2
    gguftools.convert(checkpoint(name), tmp_path / "f16.gguf", "f16", part="mmproj")
    report = gguftools.quantize(tmp_path / "f16.gguf", list(reference), tmp_path)
    for recipe, output in zip(reference, report.outputs, strict=True):
        assert sha256(output.file.read_bytes()).hexdigest() == reference[recipe], recipe


@pytest.mark.parametrize(
    ("name", "kept"),
    [("gemma3", {"mm.input_projection.weight": "F16"}), ("granite-speech", {"a.blk.0.conv_dw.weight": "F32"})],
)
def test_what_programs_read_in_one_format_alone_is_not_quantized(checkpoint, tmp_path, name, kept):
    """llama-quantize does quantize these: llama.cpp then stops, or gives nonsense (`python -m tests.verify.clip`)."""
    gguftools.convert(checkpoint(name), tmp_path / "f16.gguf", "f16", part="mmproj")
    gguftools.quantize(tmp_path / "f16.gguf", "Q4_0", tmp_path / "q.gguf")
    with gguftools.open(tmp_path / "q.gguf") as model:
        assert {each: model.tensors[each].format.name for each in kept} == kept
        assert "Q4_0" in {each.format.name for each in model.tensors.values()}


@pytest.mark.parametrize("name", RECORDED)
def test_files_are_valid(checkpoint, name):
    with of_parts(of_encoders(checkpoint(name))) as model:
        assert not gguftools.validate(model).problems


@pytest.mark.parametrize(
    ("change", "where", "wrong"),
    [
        ({"clip.has_vision_encoder": None}, "clip.has_vision_encoder", "no encoder"),
        ({"clip.projector_type": None}, "clip.projector_type", "is missing"),
        ({"clip.vision.image_std": None}, "clip.vision.image_std", "is missing"),
        ({"clip.vision.block_count": 3}, "v.blk.2", "3 layers"),
        ({"clip.vision.block_count": 1}, "v.blk.1", "too many"),
        ({"clip.vision.embedding_length": 64}, "v.blk.0.ln1.weight", "embedding_length is 64"),
        ({"mm.": None}, "tensors", "brings an encoder's output"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(checkpoint, change, where, wrong):
    with of_parts(of_encoders(checkpoint("gemma3"))) as model:
        for key, value in change.items():
            if value is None:
                model.metadata.pop(key, None)
                for name in [name for name in model.tensors if name.startswith(key)]:
                    del model.tensors[name]
            else:
                model.metadata[key] = value
        problems = gguftools.validate(model, data=False).problems
    assert [(each.severity, each.where) for each in problems] == [("error", where)]
    assert wrong in problems[0].message


def renamed(folder: Path, name: str, **beginnings: str) -> None:
    rows = json.loads((ENCODERS / name / "spec.json").read_text(encoding="utf-8"))["tensors"]
    write_tensors(folder / "model.safetensors", name, rows, beginnings)


@pytest.mark.parametrize(
    ("name", "beginnings"),
    [
        (
            "gemma3",
            {
                "vision_tower.vision_model.": "model.vision_tower.",
                "multi_": "model.multi_",
                "language_model.model.": "model.language_model.",
            },
        ),
        ("qwen2-vl", {"visual.": "model.visual.", "model.": "model.language_model."}),
        ("internvl-hf", {"vision_tower.": "model.vision_tower.", "multi_modal": "model.multi_modal"}),
    ],
)
def test_names_of_newer_checkpoints_mean_the_same(checkpoint, tmp_path, name, beginnings):
    folder = checkpoint(name)
    with of_parts(of_encoders(folder)) as model:
        wanted = {each.name: each.raw().tobytes() for each in model.tensors.values()}
    renamed(folder, name, **beginnings)
    with of_parts(of_encoders(folder)) as model:
        assert {each.name: each.raw().tobytes() for each in model.tensors.values()} == wanted


@pytest.mark.parametrize("name", RECORDED)
def test_every_tensor_is_in_one_of_both_files_or_nothing_is_written(checkpoint, tmp_path, name):
    folder = checkpoint(name)
    rows = json.loads((ENCODERS / name / "spec.json").read_text(encoding="utf-8"))["tensors"]
    write_tensors(folder / "model.safetensors", name, [*rows, ["vision_tower.extra.weight", "BF16", [4, 4], 0, 1]])
    with pytest.raises(ModelError, match=r"vision_tower\.extra\.weight"):
        gguftools.convert(folder, tmp_path / "x.gguf", part="mmproj")
    assert not (tmp_path / "x.gguf").exists()


def test_a_lost_layer_is_found(checkpoint, tmp_path):
    folder = checkpoint("gemma3")
    rows = json.loads((ENCODERS / "gemma3" / "spec.json").read_text(encoding="utf-8"))["tensors"]
    kept = [row for row in rows if "vision_model.encoder.layers.0." not in row[0]]
    write_tensors(folder / "model.safetensors", "gemma3", kept)
    with pytest.raises(ModelError, match="2 vision layers; the checkpoint lacks layer 0"):
        gguftools.convert(folder, tmp_path / "x.gguf", part="mmproj")


@pytest.mark.parametrize(
    ("name", "changes", "wrong"),
    [
        ("gemma3", {"architectures": ["LlamaForCausalLM"]}, "no encoders are known of LlamaForCausalLM"),
        ("gemma3", {"vision_config": {"hidden_size": 32}}, '"vision.image_size"'),
        ("gemma3", {"vision_config": {"hidden_size": "32"}}, 'vision_config.hidden_size" is "32"'),
        ("gemma3", {"vision_config": []}, '"vision_config" is '),
        ("qwen2-5-vl", {"vision_config": {"fullatt_block_indexes": [1, 2]}}, "every so many-th layer"),
        ("internvl", {"downsample_ratio": 0}, '"downsample_ratio" is 0'),
        ("dots3-note", {"vision_config": {"pyramid_num_routed": None}}, 'no "pyramid_num_routed"'),
        ("dots3-note", {"vision_config": {"pyramid_num_routed": ["x"]}}, "pyramid_num_routed"),
        ("ling3-vl", {"vision_config": {"patch_size": [3, 5]}}, "only squares"),
        ("ling3-vl", {"vision_config": {"disable_merger_proj": False}}, "cannot express"),
        ("granite4-vision", {"downsample_rate": "x"}, "QUERIES/PATCHES was expected"),
        ("minimax-m3", {"vision_config": {"num_attention_heads": 2}}, "2 heads of 80 each"),
        ("phi4-vision", {"vision_config": {"num_hidden_layers": None}}, 'no "num_hidden_layers"'),
        ("granite-speech", {"projector_config": []}, "projector_config"),
        ("gemma3n", {"audio_soft_tokens_per_image": 100}, "audio_soft_tokens_per_image"),
    ],
)
def test_configs_that_lie_are_refused(checkpoint, tmp_path, name, changes, wrong):
    before = json.loads((ENCODERS / name / "config.json").read_text(encoding="utf-8"))
    if isinstance(changes.get("vision_config"), dict) and name != "gemma3":
        changes = {"vision_config": {**before["vision_config"], **changes["vision_config"]}}
    with pytest.raises((ModelError, FormatError), match=wrong):
        gguftools.convert(checkpoint(name, **changes), tmp_path / "x.gguf", part="mmproj")


def test_a_missing_folder_of_a_encoder_is_said(checkpoint):
    folder = checkpoint("mimo-v2-5")
    (folder / "audio_tokenizer" / "model.safetensors").unlink()
    with pytest.raises(FileError, match="audio_tokenizer"):
        of_encoders(folder)
    (folder / "audio_tokenizer" / "config.json").unlink()
    with pytest.raises(FileError, match="audio_tokenizer"):
        of_encoders(folder)


def test_a_missing_preprocessor_or_token_is_said(checkpoint, tmp_path):
    folder = checkpoint("pixtral")
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match=r"does not say which token \[IMG_BREAK\] is"):
        gguftools.convert(folder, tmp_path / "x.gguf", part="mmproj")
    folder = checkpoint("gemma3")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r'no preprocessor_config\.json says "image_mean"'):
        gguftools.convert(folder, tmp_path / "x.gguf", part="mmproj")


def with_text(tmp_path: Path) -> Path:
    folder = tmp_path / "smolvlm"
    build("smolvlm", folder)
    said = (ENCODERS / "smolvlm" / "preprocessor_config.json").read_text(encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(said, encoding="utf-8")
    return folder


def test_all_parts_are_two_files_that_have_every_tensor(tmp_path):
    report = gguftools.convert(with_text(tmp_path), tmp_path, "q8_0", part="all")
    text, encoders = (output.file for output in report.outputs)
    assert [text.name, encoders.name] == ["smolvlm-Q8_0.gguf", "mmproj-smolvlm-Q8_0.gguf"]
    assert not report.warnings
    with gguftools.open(text) as first, gguftools.open(encoders) as second:
        assert (first.architecture, second.architecture) == ("llama", "clip")
        assert second.metadata["general.type"] == "mmproj"
    text.unlink()
    with pytest.raises(FileError, match=r"mmproj-smolvlm-Q8_0\.gguf already exists"):
        gguftools.convert(tmp_path / "smolvlm", tmp_path, "q8_0", part="all")
    assert not text.exists()


def test_the_text_model_alone_says_what_is_not_in_its_file(tmp_path):
    folder = with_text(tmp_path)
    [said] = gguftools.convert(folder, tmp_path / "x.gguf").warnings
    assert "are not in this file" in said
    assert "--mmproj" in said
    spec = json.loads((DATA / "families" / "smolvlm" / "spec.json").read_text(encoding="utf-8"))
    rows = [*spec["tensors"], ["vision_model.extra.weight", "BF16", [4, 4], 0, 1]]
    write_tensors(folder / "model.safetensors", "smolvlm", rows)
    with pytest.raises(ModelError, match=r"vision_model\.extra\.weight"):
        of_checkpoint(folder)


def test_the_command(checkpoint, tmp_path):
    done = run("convert", checkpoint("smolvlm"), "--mmproj", "-o", tmp_path, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [output] = json.loads(done.stdout)["outputs"]
    assert Path(output["file"]).name == "mmproj-smolvlm-BF16.gguf"
    with gguftools.open(output["file"]) as model:
        assert np.isfinite(model.tensors["v.patch_embd.weight"].float32()).all()
    done = run("convert", checkpoint("llama4"), "--mmproj", "--pre", "llama-bpe", "-o", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "--mmproj writes only the encoder" in done.stderr

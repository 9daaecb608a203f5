"""How files fit: what is chosen, the plan of what does not fit, the longest context, the command."""

from pathlib import Path

import pytest

import gguftools
from archs.metadata import Metadata, ValueType
from gguftools import FitOptions, GgufToolsError
from tests import wide_models

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of real widths, with holes in place of weights: a dense one, and one with experts."""
    made = tmp_path_factory.mktemp("fit")
    for name in ("llama-3.2-1b", "qwen3-30b-a3b", "mamba2-2.7b"):
        metadata, tensors = wide_models.wide(wide_models.MODELS[name])
        del metadata["tokenizer.ggml.model"]
        wide_models.write(made / f"{name}.gguf", metadata, tensors)
    return made


def test_needs_without_a_memory(folder: Path) -> None:
    """Weights and cache are those that follow from the shapes; the table of embeddings is in RAM and on the card."""
    report = gguftools.fit(folder / "llama-3.2-1b.gguf", context=4096)
    (file,) = report.files
    table = 128256 * 2048 * 2
    assert file.whole.weights[1] == table
    assert file.whole.weights[0] == file.size
    assert file.whole.cache == (4 * 2 * 4096 * 8 * 64 * 2, 0)
    assert file.fits
    assert report.chosen is None
    assert file.longest is None
    assert file.whole.device == sum(part[0] for part in (file.whole.weights, file.whole.cache, file.whole.compute))


def test_the_largest_that_fits_is_chosen(folder: Path) -> None:
    files = [folder / f"{name}.gguf" for name in ("llama-3.2-1b", "qwen3-30b-a3b", "mamba2-2.7b")]
    needs = [each.whole.device for each in gguftools.fit(files).files]
    between = sorted(needs)[-1] - 1
    report = gguftools.fit(files, between, margin=0)
    sizes = [each.size for each in report.files if each.fits]
    assert report.chosen is not None
    assert report.files[report.chosen].size == max(sizes)
    assert not report.files[1].fits
    assert gguftools.fit(files, between, margin=between).chosen is None
    assert gguftools.fit(files, max(needs), margin=0).chosen == 1


def test_experts_go_to_ram_first(folder: Path) -> None:
    """The plan fits, and with the experts of one layer less in RAM it would not."""
    path = folder / "qwen3-30b-a3b.gguf"
    whole = gguftools.fit(path).files[0].whole.device
    room = whole - 900 * MIB
    (file,) = gguftools.fit(path, room, margin=0).files
    assert file.gpu_layers == file.layers == 5
    assert 0 < file.cpu_moe < 4
    assert file.use.device <= room < whole
    assert file.command[-2:] == ("--n-cpu-moe", str(file.cpu_moe))
    assert file.use.weights[1] > file.whole.weights[1]


def test_layers_go_to_ram_where_there_are_no_experts(folder: Path) -> None:
    path = folder / "llama-3.2-1b.gguf"
    whole = gguftools.fit(path).files[0].whole.device
    (file,) = gguftools.fit(path, whole - 1, margin=0).files
    assert 0 < file.gpu_layers < file.layers == 5
    assert file.use.device <= whole - 1
    assert "-ngl" in file.command
    (none,) = gguftools.fit(path, 1, margin=0).files
    assert none.gpu_layers == 0
    assert none.longest is None


def test_longest_context(folder: Path) -> None:
    """It fits, and 256 tokens more do not."""
    path, room = folder / "llama-3.2-1b.gguf", 1600 * MIB
    (file,) = gguftools.fit(path, room, margin=0).files
    assert file.longest is not None
    assert 8192 < file.longest < 131072
    assert gguftools.fit(path, room, margin=0, context=file.longest).files[0].fits
    assert not gguftools.fit(path, room, margin=0, context=file.longest + 256).files[0].fits
    (quantized,) = gguftools.fit(path, room, margin=0, cache_type="q8_0").files
    assert quantized.longest is not None
    assert quantized.longest > 1.3 * file.longest


def test_states_do_not_grow_with_the_context(folder: Path) -> None:
    path = folder / "mamba2-2.7b.gguf"
    short, long = (gguftools.fit(path, context=context).files[0].whole.cache for context in (512, 65536))
    assert short == long
    assert gguftools.fit(path, parallel=3).files[0].whole.cache[0] == 3 * short[0]


def test_in_ram_alone(folder: Path) -> None:
    """Nothing is on a device, and tied embeddings count once."""
    options = FitOptions(cpu=True, context=512)
    (file,) = gguftools.fit(folder / "llama-3.2-1b.gguf", 4 << 30, options).files
    assert file.whole.device == 0
    assert file.whole.weights[1] == file.size
    assert file.gpu_layers == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cache_type": "q2_k"}, "cache_type is 'q2_k'"),
        ({"cache_type_v": 3}, "cache_type_v is 3"),
        ({"context": 0}, "context is 0"),
        ({"context": 1 << 40}, "at most"),
        ({"parallel": 0}, "parallel is 0"),
        ({"margin": -1}, "margin is -1"),
        ({"ctx": 4}, "'ctx'"),
        ({"mmproj": "none.gguf"}, "none.gguf"),
    ],
)
def test_wrong_options(folder: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(GgufToolsError, match=words):
        gguftools.fit(folder / "llama-3.2-1b.gguf", **changes)


def test_heads_that_are_no_whole_blocks(tmp_path: Path) -> None:
    """llama.cpp refuses a quantized cache of narrow heads."""
    wide_models.write(tmp_path / "m.gguf", *wide_models.small("qwen2"))
    assert gguftools.fit(tmp_path / "m.gguf").files[0].fits
    with pytest.raises(GgufToolsError, match="Q8_0 needs a multiple of 32"):
        gguftools.fit(tmp_path / "m.gguf", cache_type="q8_0")


def test_an_encoder_counts(folder: Path, tmp_path: Path) -> None:
    """Its weights, and a buffer that grows with the number of patches."""
    sums = []
    for size in (224, 448):
        metadata = Metadata()
        metadata.set("general.architecture", "clip", ValueType.STRING)
        numbers = {"embedding_length": 64, "feed_forward_length": 256, "attention.head_count": 4}
        for key, value in {**numbers, "image_size": size, "patch_size": 14}.items():
            metadata.set(f"clip.vision.{key}", value, ValueType.UINT32)
        tensors = {"v.blk.0.ffn_up.weight": wide_models.empty("v.blk.0.ffn_up.weight", (256, 64))}
        wide_models.write(tmp_path / "mmproj.gguf", metadata, tensors)
        (file,) = gguftools.fit(folder / "llama-3.2-1b.gguf", mmproj=tmp_path / "mmproj.gguf").files
        sums.append(file.whole.encoder)
        assert file.command[-2:] == ("--mmproj", str(tmp_path / "mmproj.gguf"))
    weights = 256 * 64 * 4
    assert weights < sums[0]
    assert 4 * (sums[0] - weights) < sums[1] - weights


def test_shards_of_a_set_are_one_file(folder: Path, tmp_path: Path) -> None:
    made = gguftools.example("persuasion.txt").parent / "austen-4m"
    gguftools.convert(made, tmp_path / "m.gguf", "f16")
    gguftools.split(tmp_path / "m.gguf", tmp_path / "m", max_tensors=20)
    shards = sorted(tmp_path.glob("m-0*.gguf"))
    assert len(shards) > 1
    (file,) = gguftools.fit(shards).files
    assert file.whole == gguftools.fit(tmp_path / "m.gguf").files[0].whole


def test_models_that_llama_server_does_not_run(tmp_path: Path) -> None:
    wide_models.write(tmp_path / "t5.gguf", *wide_models.small("t5"))
    with pytest.raises(GgufToolsError, match="does not run models like t5"):
        gguftools.fit(tmp_path / "t5.gguf")


def test_an_architecture_that_is_estimated(tmp_path: Path) -> None:
    wide_models.write(tmp_path / "m.gguf", *wide_models.small("kimi-linear"))
    (file,) = gguftools.fit(tmp_path / "m.gguf").files
    assert "kimi_delta" in file.estimated
    assert file.compute_low < sum(file.whole.compute)

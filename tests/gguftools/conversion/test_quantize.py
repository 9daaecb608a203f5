"""Whole files as the reference writes them, and everything that can be asked of the command."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.metadata import Metadata, Value, ValueType
from gguftools.cli.arguments import parse_override, parse_size
from gguftools.conversion.quantize import quantize
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants import Tensor, format_named, from_array
from quants.errors import FileError, FormatError, GgufToolsError, OptionError
from tests.conftest import DATA
from tests.gguftools.quantization.test_recipes import GOLDEN, expected, model

from ..tiny_models import create_gguf

E2E = DATA / "golden" / "e2e"
RESULTS = json.loads(gzip.decompress((E2E / "expected.json.gz").read_bytes()))["results"]
DENSE, MOE = E2E / "tiny-dense-f16.gguf", E2E / "tiny-moe-f16.gguf"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def matrix_of(model: str, kind: str) -> Path | None:
    return E2E / f"{model}.imatrix.gguf" if kind == "imatrix" else None


def write_gguf(path: Path, tensors: list[Tensor], **metadata: Any) -> Path:
    pairs = Metadata()
    for key, value in metadata.items():
        pairs[key.replace("__", ".")] = value
    layout = plan_file(pairs, [TensorInfo(t.name, t.shape, t.format) for t in tensors])
    with create_gguf(path, layout) as file:
        for index, tensor in enumerate(tensors):
            file.write(index, 0, tensor.raw())
    return path


def random_tensor(name: str, *shape: int) -> Tensor:
    return from_array(name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("kind", ["plain", "imatrix"])
@pytest.mark.parametrize("model", ["tiny-dense", "tiny-moe"])
def test_every_recipe_in_one_pass_gives_the_reference_files(model: str, kind: str, tmp_path: Path) -> None:
    keys = [key.split("/") for key in RESULTS]
    wanted = {recipe: RESULTS[f"{name}/{recipe}/{k}"] for name, recipe, k in keys if (name, k) == (model, kind)}
    assert len(wanted) == 36
    possible = [recipe for recipe, found in wanted.items() if not found["rc"]]
    source, matrix = E2E / f"{model}-f16.gguf", matrix_of(model, kind)
    report = quantize(source, possible, tmp_path, imatrix=matrix, options=QuantizeOptions(allow_missing_experts=True))
    got = {output.recipe: digest(output.file) for output in report.outputs}
    assert got == {recipe: wanted[recipe]["sha256"] for recipe in possible}
    assert {output.recipe: output.nbytes for output in report.outputs} == {r: wanted[r]["bytes"] for r in possible}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{model}-{recipe}.gguf" for recipe in possible)
    for recipe in wanted.keys() - set(possible):
        with pytest.raises(GgufToolsError, match=r"needs an importance matrix|no format to fall back to"):
            quantize(source, recipe, tmp_path, imatrix=matrix, options=QuantizeOptions(allow_missing_experts=True))


@pytest.mark.parametrize(("threads", "memory"), [(1, 1), (2, 1 << 16), (3, 1 << 30)])
def test_threads_and_memory_change_no_byte(threads: int, memory: int, tmp_path: Path) -> None:
    quantize(DENSE, "Q4_0", tmp_path / "out.gguf", write=WriteOptions(threads=threads, memory=memory))
    assert digest(tmp_path / "out.gguf") == RESULTS["tiny-dense/Q4_0/plain"]["sha256"]


def test_dry_run_knows_the_exact_size_and_writes_nothing(tmp_path: Path) -> None:
    report = quantize(DENSE, ["Q4_K_M", "Q8_0"], tmp_path, write=WriteOptions(dry_run=True))
    assert [o.nbytes for o in report.outputs] == [RESULTS[f"tiny-dense/{r}/plain"]["bytes"] for r in ("Q4_K_M", "Q8_0")]
    assert not list(tmp_path.iterdir())
    assert report.fits
    shown = json.loads(json.dumps(report.as_dict()))["outputs"][0]
    assert shown["recipe"] == "Q4_K_M"
    down = next(t for t in shown["tensors"] if t["name"] == "blk.0.ffn_down.weight")
    assert (down["from"], down["to"]) == ("F16", "Q5_0")
    assert down["fallback"] == "rows of 288 values; Q4_K needs a multiple of 256"
    assert "rmse" not in down
    assert sum(kind["size_bytes"] for kind in shown["types"].values()) == sum(t["size_bytes"] for t in shown["tensors"])


def test_dry_run_warns_of_what_a_run_would_refuse(tmp_path: Path) -> None:
    quantize(DENSE, "Q8_0", tmp_path / "q8.gguf")
    report = quantize(tmp_path / "q8.gguf", ["IQ2_XXS", "Q4_K_M"], tmp_path, write=WriteOptions(dry_run=True))
    needs, again = "IQ2_XXS needs an importance matrix: 'blk.0.attn_k.weight'", "'output.weight' is Q8_0 in q8.gguf"
    assert [next(w for w in (needs, again) if w in line) for line in report.warnings] == [again, needs, again]
    assert {t.format for t in report.outputs[0].tensors} >= {"IQ2_XXS", "Q4_K"}
    matrix = E2E / "tiny-dense.imatrix.gguf"
    report = quantize(
        DENSE,
        "IQ2_XXS",
        tmp_path,
        imatrix=matrix,
        options=QuantizeOptions(exclude_weights=["attn_q"]),
        write=WriteOptions(dry_run=True),
    )
    assert "has no entry for 'blk.0.attn_q.weight' and 1 more" in report.warnings[0]


@pytest.mark.parametrize("name", ["llama-3.1-70b", "gpt-oss-20b-mxfp4-source", "deepseek-v2-lite"])
def test_dry_run_of_a_large_model(name: str, tmp_path: Path) -> None:
    """Header and a hole: the sizes that the reference's dry run prints, in seconds, whatever the model's size."""
    facts, tensors = model(name)
    metadata = Metadata()
    metadata["general.architecture"] = facts.architecture
    for key in ("block_count", "expert_count", "attention.head_count", "attention.head_count_kv"):
        if key in GOLDEN["shapes"][name]["kv"]:
            metadata[f"{facts.architecture}.{key}"] = GOLDEN["shapes"][name]["kv"][key]
    layout = plan_file(metadata, [TensorInfo(*tensor) for tensor in tensors])
    with (tmp_path / "model.gguf").open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.total)
    recorded = {n: r for n, r in GOLDEN["models"][name]["recipes"].items() if not r["rc"]}
    report = quantize(tmp_path / "model.gguf", list(recorded), tmp_path, write=WriteOptions(dry_run=True))
    for output in report.outputs:
        assert {t.name: t.format for t in output.tensors} == expected(recorded[output.recipe], tensors)
        assert round(output.bits_per_weight, 2) == pytest.approx(recorded[output.recipe]["bpw"], abs=0.0051)


def test_statistics_are_those_of_what_was_written(tmp_path: Path) -> None:
    report = quantize(DENSE, ["Q8_0", "COPY"], tmp_path, write=WriteOptions(statistics=True, memory=1 << 16))
    source, written = open_gguf(DENSE), open_gguf(report.outputs[0].file)
    for tensor in report.outputs[0].tensors:
        error = written.tensors[tensor.name].float32().astype(float) - source.tensors[tensor.name].float32()
        assert tensor.rmse == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-6)
        assert tensor.max_error == pytest.approx(np.abs(error).max())
    assert all(t.rmse == t.max_error == 0 for t in report.outputs[1].tensors)
    assert report.as_dict()["outputs"][0]["tensors"][0]["seconds"] > 0


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    report = quantize(DENSE, "Q8_0", tmp_path, write=WriteOptions(progress=lambda *step: seen.append(step)))
    assert seen[0][2] == "compiling Q8_0"
    assert seen[-1][0] == seen[-1][1] == report.source_bytes
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_default_name_drops_the_old_type(tmp_path: Path) -> None:
    source = tmp_path / "Model-1B-bf16.gguf"
    shutil.copy(DENSE, source)
    assert quantize(source, "q8_0", write=WriteOptions(dry_run=True)).outputs[0].file == tmp_path / "Model-1B-Q8_0.gguf"
    folder = tmp_path / "out"
    folder.mkdir()
    assert (
        quantize(source, "q8_0", folder, write=WriteOptions(dry_run=True)).outputs[0].file
        == folder / "Model-1B-Q8_0.gguf"
    )
    assert (
        quantize(source, "q8_0", folder / "x.gguf", write=WriteOptions(dry_run=True)).outputs[0].file
        == folder / "x.gguf"
    )


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    shutil.copy(DENSE, source)
    before = digest(source)
    with pytest.raises(FileError, match="no folder"):
        quantize(source, "Q8_0", tmp_path / "nowhere" / "x.gguf")
    with pytest.raises(OptionError, match="2 recipes need a folder"):
        quantize(source, ["Q8_0", "Q4_0"], tmp_path / "x.gguf")
    with pytest.raises(OptionError, match="is read, so it cannot be written"):
        quantize(source, "Q8_0", source)
    (tmp_path / "link.gguf").symlink_to(source)
    with pytest.raises(OptionError, match="is read, so it cannot be written"):
        quantize(source, "Q8_0", tmp_path / "link.gguf")
    with pytest.raises(OptionError, match="no recipe 'Q4_KM'"):
        quantize(source, "Q4_KM", tmp_path / "x.gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "link.gguf"]
    assert digest(source) == before


def test_a_quantized_source_needs_permission(tmp_path: Path) -> None:
    q8 = tmp_path / "q8.gguf"
    quantize(DENSE, "Q8_0", q8)
    with pytest.raises(OptionError, match=r"output\.weight.*Q8_0.*loses quality") as caught:
        quantize(q8, "Q4_0", tmp_path / "x.gguf")
    assert "`allow_requantize`" in str(caught.value.hint)
    quantize(q8, "COPY", tmp_path / "copy.gguf")
    assert digest(tmp_path / "copy.gguf") == digest(q8)
    report = quantize(q8, "Q4_0", tmp_path / "x.gguf", options=QuantizeOptions(allow_requantize=True))
    assert report.outputs[0].nbytes == RESULTS["tiny-dense/Q4_0/plain"]["bytes"]


def test_no_fallback_fails_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"2 tensors cannot take.*blk\.0\.ffn_down\.weight"):
        quantize(DENSE, "Q4_K_M", tmp_path / "x.gguf", options=QuantizeOptions(no_fallback=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("form", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("recipe", ["Q8_0", "COPY"])
def test_what_is_not_finite_is_named(value: float, word: str, form: str, recipe: str, tmp_path: Path) -> None:
    values = np.ones((70, 64), np.float32)
    values[67, 5] = value
    raw = format_named(form).encode(values)
    bad = Tensor("blk.0.attn_q.weight", (70, 64), format_named(form), lambda a, b: raw[a:b])
    source = write_gguf(tmp_path / "bad.gguf", [bad], general__architecture="llama")
    for look in (False, True):
        with pytest.raises(FormatError, match=rf"'blk\.0\.attn_q\.weight' has {word} in row 67, column 5"):
            quantize(
                source,
                recipe,
                tmp_path / "x.gguf",
                options=QuantizeOptions(check_tensors=look),
                write=WriteOptions(memory=1 << 14),
            )
    assert [p.name for p in tmp_path.iterdir()] == ["bad.gguf"]


def test_check_tensors_looks_into_quantized_tensors_that_are_copied(tmp_path: Path) -> None:
    raw = np.zeros((4, 34), np.uint8)
    raw[2, :2] = 0xFF  # the scale is NaN
    raw[:, 2:] = 1
    bad = Tensor("blk.0.attn_q.weight", (4, 32), format_named("Q8_0"), lambda a, b: raw[a:b])
    source = write_gguf(tmp_path / "bad.gguf", [bad])
    with pytest.raises(FormatError, match="NaN in row 2, column 0"):
        quantize(source, "COPY", tmp_path / "x.gguf", options=QuantizeOptions(check_tensors=True))


def test_a_value_that_f16_cannot_hold_is_an_error(tmp_path: Path) -> None:
    values = np.ones((4, 64), np.float32)
    values[1, 2] = 70_000
    source = write_gguf(tmp_path / "big.gguf", [from_array("a.weight", values)])
    with pytest.raises(FormatError, match="row 1, column 2 that is beyond the range of F16"):
        quantize(source, "F16", tmp_path / "x.gguf")
    quantize(source, "BF16", tmp_path / "x.gguf")


def test_any_architecture_and_any_key_is_carried_over(tmp_path: Path) -> None:
    tensors = [
        random_tensor("double_blocks.0.img_attn.qkv.weight", 96, 256),
        random_tensor("final_layer.very.long." + "x" * 60 + ".bias", 64),
        random_tensor("vae.conv.weight", 8, 4, 3, 3),
        random_tensor("scalar", 1),
    ]
    source = write_gguf(
        tmp_path / "flux.gguf", tensors, general__architecture="flux", **{"comfy.gguf.orig_shape.x": [3, 5]}
    )
    report = quantize(source, "Q4_0", tmp_path / "out.gguf")
    written = open_gguf(tmp_path / "out.gguf")
    assert {n: t.format.name for n, t in written.tensors.items()} == {
        tensors[0].name: "Q4_0",
        tensors[1].name: "F32",
        tensors[2].name: "F32",  # of an image model, matrices alone are quantized
        "scalar": "F32",
    }
    assert list(written.metadata["comfy.gguf.orig_shape.x"]) == [3, 5]
    assert written.metadata["general.file_type"] == 2
    assert not report.outputs[0].fallbacks
    assert report.warnings[0].startswith("no known model with the tag 'flux' has tensors of these names")


def test_copy_of_a_file_without_a_type_says_guessed(tmp_path: Path) -> None:
    quantize(DENSE, "COPY", tmp_path / "x.gguf")
    assert open_gguf(tmp_path / "x.gguf").metadata["general.file_type"] == 1024 + 1


def test_overrides_keep_the_type_of_a_key(tmp_path: Path) -> None:
    given = dict(
        [
            parse_override("llama.context_length=int:64"),
            parse_override("general.name=str:a=b"),
            parse_override("x.flag=bool:true"),
            parse_override("x.ratio=float:0.5"),
        ]
    )
    quantize(DENSE, "Q8_0", tmp_path / "x.gguf", options=QuantizeOptions(override=given, new=True))
    written = open_gguf(tmp_path / "x.gguf").metadata
    assert written.value("llama.context_length") == Value(64, ValueType.UINT32)
    assert (written["general.name"], written["x.flag"], written["x.ratio"]) == ("a=b", True, 0.5)
    for wrong in ("a", "a=int", "a=int:x", "a=bool:1", "a=short:1"):
        with pytest.raises(OptionError):
            parse_override(wrong)


def test_pruning_renumbers_layers_and_lists(tmp_path: Path) -> None:
    tensors = [random_tensor(f"blk.{i}.attn_q.weight", 8, 32 + 32 * i) for i in range(12)]
    source = write_gguf(
        tmp_path / "m.gguf",
        [random_tensor("token_embd.weight", 8, 32), *tensors],
        general__architecture="llama",
        llama__block_count=12,
        llama__attention__head_count_kv=list(range(12)),
        llama__leading_dense_block_count=2,
    )
    quantize(source, "Q8_0", tmp_path / "x.gguf", options=QuantizeOptions(prune_layers=[1, 10]))
    written = open_gguf(tmp_path / "x.gguf")
    kept = [0, 2, 3, 4, 5, 6, 7, 8, 9, 11]
    assert written.metadata["llama.block_count"] == 10
    assert list(written.metadata["llama.attention.head_count_kv"]) == kept
    assert written.metadata["llama.leading_dense_block_count"] == 1
    assert [written.tensors[f"blk.{i}.attn_q.weight"].width for i in range(10)] == [32 + 32 * i for i in kept]
    assert len(written.tensors) == 11
    with pytest.raises(OptionError, match="no layer 12 to prune"):
        quantize(source, "Q8_0", tmp_path / "x.gguf", options=QuantizeOptions(prune_layers=[12]))


def test_pruned_layers_keep_their_importance(tmp_path: Path) -> None:
    matrix = E2E / "tiny-dense.imatrix.gguf"
    quantize(DENSE, "Q4_0", tmp_path / "whole.gguf", imatrix=matrix, options=QuantizeOptions(pure=True))
    quantize(DENSE, "Q4_0", tmp_path / "x.gguf", imatrix=matrix, options=QuantizeOptions(pure=True, prune_layers=[0]))
    whole, pruned = open_gguf(tmp_path / "whole.gguf"), open_gguf(tmp_path / "x.gguf")
    name = "blk.{}.attn_q.weight"
    assert np.array_equal(pruned.tensors[name.format(0)].raw(), whole.tensors[name.format(1)].raw())


def test_split_outputs_join_to_the_whole(tmp_path: Path) -> None:
    report = quantize(DENSE, "Q8_0", tmp_path / "x.gguf", options=QuantizeOptions(max_tensors=8))
    assert [p.name for p in report.outputs[0].files] == [f"x-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    shards = [open_gguf(path, join=False) for path in report.outputs[0].files]
    assert [len(s.tensors) for s in shards] == [8, 8, 5]
    assert list(shards[1].metadata) == ["split.no", "split.count", "split.tensors.count"]
    assert shards[2].metadata.value("split.tensors.count") == Value(21, ValueType.INT32)
    quantize(report.outputs[0].files[1], "COPY", tmp_path / "joined.gguf")
    assert digest(tmp_path / "joined.gguf") == RESULTS["tiny-dense/Q8_0/plain"]["sha256"]
    kept = quantize(
        report.outputs[0].files[0], "COPY", tmp_path / "kept.gguf", options=QuantizeOptions(keep_split=True)
    )
    assert [digest(p) for p in kept.outputs[0].files] == [digest(p) for p in report.outputs[0].files]
    default = quantize(report.outputs[0].files[0], "COPY", write=WriteOptions(dry_run=True))
    assert default.outputs[0].file == tmp_path / "x-COPY.gguf"


def test_split_by_size(tmp_path: Path) -> None:
    report = quantize(DENSE, "COPY", tmp_path / "x.gguf", options=QuantizeOptions(max_size=parse_size("300K")))
    assert len(report.outputs[0].files) > 3
    for path in report.outputs[0].files:
        shard = open_gguf(path, join=False)
        assert sum(t.nbytes for t in shard.tensors.values()) <= 300_000
    with pytest.raises(OptionError, match="`keep_split`"):
        quantize(DENSE, "COPY", tmp_path / "x.gguf", options=QuantizeOptions(max_size=1, keep_split=True))


def test_a_rule_that_decides_nothing_is_told(tmp_path: Path) -> None:
    rules = (("attn_norm", "Q8_0"), ("attn_q", "Q8_0"))
    assert quantize(
        DENSE, ["Q4_0", "F16"], tmp_path, options=QuantizeOptions(rules=rules), write=WriteOptions(dry_run=True)
    ).warnings == [
        "the rule attn_norm=Q8_0 decides nothing in Q4_0",
        "the rule attn_norm=Q8_0 decides nothing in F16",
        "the rule attn_q=Q8_0 decides nothing in F16",
    ]
    with pytest.raises(FormatError, match="no format 'Q9'"):
        quantize(DENSE, "Q4_0", tmp_path, options=QuantizeOptions(token_embedding_type="Q9"))


def test_reserve_leaves_slack(tmp_path: Path) -> None:
    plain = quantize(DENSE, "COPY", tmp_path / "x.gguf", write=WriteOptions(dry_run=True)).outputs[0].nbytes
    slack = (
        quantize(DENSE, "COPY", tmp_path / "x.gguf", write=WriteOptions(dry_run=True, reserve=4096)).outputs[0].nbytes
        - plain
    )
    assert 4096 <= slack <= 4096 + 96


def test_what_the_matrix_lacks(tmp_path: Path) -> None:
    matrix = E2E / "tiny-dense.imatrix.gguf"
    left_out = ["attn_q", "ffn_up"]
    report = quantize(
        DENSE,
        "Q4_0",
        tmp_path / "x.gguf",
        imatrix=matrix,
        options=QuantizeOptions(exclude_weights=left_out),
        write=WriteOptions(dry_run=True),
    )
    assert set(report.without_importance) == {
        "output.weight",
        "token_embd.weight",
        *(f"blk.{i}.{n}.weight" for i in (0, 1) for n in ("attn_q", "ffn_up")),
    }
    with pytest.raises(OptionError, match=r"no entry for 'blk\.0\.attn_q\.weight' and 1 more"):
        quantize(
            DENSE, "IQ2_XXS", tmp_path / "x.gguf", imatrix=matrix, options=QuantizeOptions(exclude_weights=["attn_q"])
        )
    with pytest.raises(OptionError, match="not both"):
        quantize(
            DENSE,
            "Q4_0",
            tmp_path / "x.gguf",
            imatrix=matrix,
            options=QuantizeOptions(exclude_weights=["a"], include_weights=["b"]),
        )
    with pytest.raises(OptionError, match="no importance matrix"):
        quantize(DENSE, "Q4_0", tmp_path / "x.gguf", options=QuantizeOptions(include_weights=["attn_q"]))


def test_unseen_experts_are_an_error_unless_allowed(tmp_path: Path) -> None:
    matrix = E2E / "tiny-moe.imatrix.gguf"
    with pytest.raises(FileError, match=r"1 of 2 experts of 'blk\.0\.ffn_\w+_exps\.weight' saw no input"):
        quantize(MOE, "Q4_0", tmp_path / "x.gguf", imatrix=matrix)
    report = quantize(
        MOE,
        "Q4_0",
        tmp_path / "x.gguf",
        imatrix=matrix,
        options=QuantizeOptions(allow_missing_experts=True),
        write=WriteOptions(dry_run=True),
    )
    assert len(report.warnings) == 3
    assert "1 of 2 experts saw no input" in report.warnings[0]


def test_a_read_error_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, calls = os.preadv, [0]

    def failing(fd: int, buffers: Any, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 5:
            raise OSError(5, os.strerror(5))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(FileError, match=r"tiny-dense-f16\.gguf: [\w.]+ cannot be read: Input/output error"):
        quantize(DENSE, "Q8_0", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_a_source_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf"
    shutil.copy(DENSE, source)

    def cut(done: int, total: int, what: str) -> None:
        os.truncate(source, 100_000)

    with pytest.raises(FileError, match=r"m\.gguf ends at byte \d+: it was cut short while it was read"):
        quantize(source, "Q8_0", tmp_path / "x.gguf", write=WriteOptions(progress=cut, memory=1 << 16))
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_a_big_endian_source(tmp_path: Path) -> None:
    little = open_gguf(DENSE)
    tensors = list(little.tensors.values())
    infos = [TensorInfo(t.name, t.shape, t.format) for t in tensors]
    layout = plan_file(little.metadata, infos, byte_order="big")
    data = bytearray(layout.header.ljust(layout.total, b"\0"))
    for offset, tensor in zip(layout.offsets, tensors, strict=True):
        data[offset : offset + tensor.nbytes] = tensor.elements().byteswap().tobytes()
    (tmp_path / "big.gguf").write_bytes(data)
    quantize(tmp_path / "big.gguf", "Q8_0", tmp_path / "x.gguf")
    assert digest(tmp_path / "x.gguf") == RESULTS["tiny-dense/Q8_0/plain"]["sha256"]

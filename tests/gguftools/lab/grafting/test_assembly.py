"""Grafts: what is moved, what is refused, and that the result is a model, here and in llama.cpp."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (numpy reads bfloat16 by it)
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import gguftools
from archs.metadata import Value, ValueType
from gguftools.io.gguf.assembly import stored_tensors
from gguftools.io.gguf.reader import open_gguf
from gguftools.lab.grafting.assembly import GraftOptions
from gguftools.lab.grafting.expert_choice import ExpertOptions
from gguftools.lab.grafting.expert_scores import expert_scores
from gguftools.lab.grafting.experts import Mixture, read_list, without_experts, worst_experts, worst_groups
from gguftools.metadata.difference import compare_metadata
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants import Tensor
from quants.dialects import meanings
from quants.errors import FileError, FormatError, GgufToolsError, ModelError, OptionError, VocabularyError
from tests import zoo_build
from tests.archs import checkpoints

from ....conftest import ROOT
from ...calls import options_of
from ...command_line import run
from ...tiny_models import edited, metadata_of, write_model

TEXT = ROOT / "examples" / "persuasion.txt"
MIXTURES = (
    "glm4-moe-lite",
    "qwen3-5-moe",
    "llama4",
    "lfm2-moe",
    "hunyuan-moe",
    "afmoe",
    "granitemoe-swa",
    "gemma4-moe",
)

OF_EXPERTS = re.compile(
    r"router\.(layer|proj|per_expert|weight|bias)|gate\.|experts\.|expert_bias|correction|moe\.(input|output)_linear"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of small models, made once: `austen.gguf`, and of each family ENTRY/ and ENTRY.gguf (float32)."""
    folder = tmp_path_factory.mktemp("graft")
    gguftools.convert(ROOT / "examples" / "austen-4m", folder / "austen.gguf", "f16")
    return folder


def model_of(folder: Path, entry: str) -> Path:
    path = folder / f"{entry}.gguf"
    if not path.exists():
        checkpoints.build(entry, folder / entry)
        gguftools.convert(folder / entry, path, "f32")
    return path


def raw(path: Path) -> dict[str, tuple[Any, str, bytes]]:
    return {name: (t.shape, t.format.name, t.raw().tobytes()) for name, t in open_gguf(path).tensors.items()}


def is_sound(path: Path) -> bool:
    return gguftools.validate(path).ok


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Donors


def test_a_tensor_takes_the_place_of_one(made: Path, tmp_path: Path) -> None:
    gguftools.quantize(made / "austen.gguf", "Q4_K_M", tmp_path / "q.gguf")
    report = gguftools.graft(tmp_path / "q.gguf", tmp_path / "out.gguf", [(made / "austen.gguf", r"blk\.[01]\.attn_v")])
    assert [each.name for each in report.moved] == ["blk.0.attn_v.weight", "blk.1.attn_v.weight"]
    old, donor, new = raw(tmp_path / "q.gguf"), raw(made / "austen.gguf"), raw(tmp_path / "out.gguf")
    for name, each in new.items():
        assert each == (donor if "attn_v" in name and name[4] in "01" else old)[name]
    assert list(new) == list(old)
    assert report.nbytes == (tmp_path / "out.gguf").stat().st_size
    assert is_sound(tmp_path / "out.gguf")
    gguftools.load(tmp_path / "out.gguf").logits([1, 2, 3])


def test_from_and_of_split_sets(made: Path, tmp_path: Path) -> None:
    gguftools.quantize(made / "austen.gguf", "Q8_0", tmp_path / "q.gguf")
    for name, source in (("t", tmp_path / "q.gguf"), ("d", made / "austen.gguf")):
        gguftools.split(source, tmp_path / name, max_tensors=9)
    target, donor = sorted(tmp_path.glob("t-*"))[2], sorted(tmp_path.glob("d-*"))[1]
    gguftools.graft(target, tmp_path / "split.gguf", [(donor, ["ffn_down", "embeddings"])])
    gguftools.graft(tmp_path / "q.gguf", tmp_path / "whole.gguf", [(made / "austen.gguf", ["ffn_down", "embeddings"])])
    assert digest(tmp_path / "split.gguf") == digest(tmp_path / "whole.gguf")


def test_keys_tokenizer_and_template(made: Path, tmp_path: Path) -> None:
    donor = edited(
        made / "austen.gguf",
        tmp_path / "donor.gguf",
        {
            "tokenizer.chat_template": "{{ messages }}",
            "general.url": "here",
            "tokenizer.ggml.remove_extra_whitespaces": True,
        },
    )
    report = gguftools.graft(made / "austen.gguf", tmp_path / "a.gguf", [(donor, ["template", r"key:general\.url"])])
    found = gguftools.open(tmp_path / "a.gguf").metadata
    assert (found["tokenizer.chat_template"], found["general.url"]) == ("{{ messages }}", "here")
    assert {change.key for change in report.keys} == {"tokenizer.chat_template", "general.url"}
    assert raw(tmp_path / "a.gguf") == raw(made / "austen.gguf")
    gguftools.graft(made / "austen.gguf", tmp_path / "b.gguf", [(donor, "tokenizer")])
    kept = {key: value for key, value in gguftools.open(tmp_path / "b.gguf").metadata.items() if "tokenizer" in key}
    assert list(kept) == [key for key in gguftools.open(donor).metadata if key.startswith("tokenizer.")]
    gguftools.graft(donor, tmp_path / "c.gguf", [(made / "austen.gguf", "tokenizer")])  # what the donor lacks goes
    assert "tokenizer.ggml.remove_extra_whitespaces" not in gguftools.open(tmp_path / "c.gguf").metadata


@pytest.mark.parametrize("entry", ["glm4-moe-lite", "qwen3-5-moe", "qwen3-next", "exaone-moe"])
def test_the_layer_that_predicts_further(made: Path, tmp_path: Path, entry: str) -> None:
    """Taken out, and put back: the file that it was; and put into another in another format."""
    whole = model_of(made, entry)
    gguftools.graft(whole, tmp_path / "trunk.gguf", drop="mtp")
    trunk = gguftools.open(tmp_path / "trunk.gguf")
    assert not any(".nextn." in name for name in trunk.tensors)
    assert f"{trunk.architecture}.nextn_predict_layers" not in trunk.metadata
    assert is_sound(tmp_path / "trunk.gguf")
    ids = np.arange(40, 60)
    before = gguftools.load(whole).logits(ids)
    np.testing.assert_array_equal(gguftools.load(tmp_path / "trunk.gguf").logits(ids), before)
    gguftools.graft(tmp_path / "trunk.gguf", tmp_path / "again.gguf", [(whole, "mtp")])
    again = gguftools.open(tmp_path / "again.gguf")
    assert {k: again.metadata.value(k) for k in again.metadata} == {
        k: gguftools.open(whole).metadata.value(k) for k in gguftools.open(whole).metadata
    }
    assert raw(tmp_path / "again.gguf") == raw(whole)
    assert is_sound(tmp_path / "again.gguf")
    gguftools.quantize(whole, "Q8_0", tmp_path / "q8.gguf")
    report = gguftools.graft(tmp_path / "q8.gguf", tmp_path / "mixed.gguf", [(whole, "mtp")])
    last = again.metadata[f"{again.architecture}.block_count"] - 1
    assert all(each.name.startswith(f"blk.{last}.") for each in report.moved)
    assert raw(tmp_path / "mixed.gguf")[f"blk.{last}.nextn.eh_proj.weight"][1] == "F32"
    if entry in ("glm4-moe-lite", "qwen3-5-moe"):
        net, other = gguftools.load(tmp_path / "again.gguf"), gguftools.load(whole)
        texts = ids[None]
        np.testing.assert_array_equal(
            net.mtp_logits(texts, net.lazy_logits(texts).x).float32(),
            other.mtp_logits(texts, other.lazy_logits(texts).x).float32(),
        )


def test_a_further_layer_of_a_shorter_file_is_renumbered(made: Path, tmp_path: Path) -> None:
    whole = model_of(made, "qwen3-next")
    gguftools.graft(whole, tmp_path / "short.gguf", drop_layers=[1], drop="mtp")
    with pytest.raises(ModelError, match="its trunk has 4 layers, not 3"):
        gguftools.graft(tmp_path / "short.gguf", tmp_path / "out.gguf", [(whole, "mtp")])
    assert not (tmp_path / "out.gguf").exists()
    report = gguftools.graft(
        tmp_path / "short.gguf", tmp_path / "out.gguf", [(whole, "mtp")], options=GraftOptions(force=True)
    )
    assert {each.name[:6] for each in report.moved} == {"blk.3."}
    assert {each.donor_name[:6] for each in report.moved} == {"blk.4."}
    assert any("its trunk" in text for text in report.warnings)


def test_layers_are_dropped_as_pruning_does(made: Path, tmp_path: Path) -> None:
    gguftools.graft(made / "austen.gguf", tmp_path / "a.gguf", drop_layers=[1, 2])
    gguftools.quantize(made / "austen.gguf", "COPY", tmp_path / "b.gguf", options=QuantizeOptions(prune_layers=[1, 2]))
    assert raw(tmp_path / "a.gguf") == raw(tmp_path / "b.gguf")
    found = [gguftools.open(tmp_path / name).metadata["llama.block_count"] for name in ("a.gguf", "b.gguf")]
    assert found[0] == found[1]
    assert is_sound(tmp_path / "a.gguf")


def test_a_size_label_that_was_counted_is_counted_again(made: Path, tmp_path: Path) -> None:
    def millions(path: Path) -> str:
        return f"{sum(tensor.size for tensor in gguftools.open(path).tensors.values()) / 1e6:.1f}M"

    labels = []
    for label in (millions(made / "austen.gguf"), "7B"):
        values = {"general.size_label": label}
        gguftools.set_metadata(made / "austen.gguf", values, output=tmp_path / "m", overwrite=True)
        gguftools.graft(tmp_path / "m", tmp_path / "out.gguf", drop_layers=[1, 2], write=WriteOptions(overwrite=True))
        labels.append(gguftools.open(tmp_path / "out.gguf").metadata["general.size_label"])
    assert labels == [millions(tmp_path / "out.gguf"), "7B"]


def test_a_dropped_further_layer_is_not_counted(made: Path, tmp_path: Path) -> None:
    whole = model_of(made, "qwen3-next")
    gguftools.graft(whole, tmp_path / "out.gguf", drop_layers=[4])
    assert gguftools.open(tmp_path / "out.gguf").metadata["qwen3next.nextn_predict_layers"] == 0
    gguftools.load(tmp_path / "out.gguf").logits([1, 2, 3])


@pytest.mark.parametrize("entry", ["qwen3-5-moe", "exaone-moe"])
def test_lists_lose_the_items_of_layers_that_go(made: Path, tmp_path: Path, entry: str) -> None:
    """Those with an item for each layer, also where they leave out what is behind the trunk; no others."""
    gguftools.graft(model_of(made, entry), tmp_path / "out.gguf", drop_layers=[1])
    old, new = (gguftools.open(path) for path in (model_of(made, entry), tmp_path / "out.gguf"))
    per_layer = {"recurrent_layers": 4, "sliding_window_pattern": 3, "sections": 4}
    found = {key: len(new.metadata[key]) for key in new.metadata if key.endswith(tuple(per_layer))}
    assert found
    for key, count in found.items():
        end = next(end for end in per_layer if key.endswith(end))
        assert count == per_layer[end]
        kept = list(old.metadata[key]) if end == "sections" else [*old.metadata[key][:1], *old.metadata[key][2:]]
        assert list(new.metadata[key]) == kept
    gguftools.load(tmp_path / "out.gguf").logits([1, 2, 3])


# What is refused


def refused(error: type[GgufToolsError], match: str, made: Path, tmp_path: Path, **options: Any) -> None:
    source = options.pop("target", made / "austen.gguf")
    with pytest.raises(error, match=match):
        gguftools.graft(source, tmp_path / "out.gguf", **options_of("graft", **options))
    assert not (tmp_path / "out.gguf").exists()


def test_what_does_not_fit_is_refused(made: Path, tmp_path: Path) -> None:
    other, austen = model_of(made, "glm4-moe-lite"), made / "austen.gguf"
    narrow = edited(austen, tmp_path / "n.gguf", {}, {"blk.0.attn_v.weight": np.ones((3, 5))})
    tokens = list(gguftools.open(austen).metadata["tokenizer.ggml.tokens"])
    renamed = edited(austen, tmp_path / "r.gguf", {"tokenizer.ggml.tokens": [*tokens[:-1], "another"]})
    fewer = edited(austen, tmp_path / "f.gguf", {"tokenizer.ggml.tokens": tokens[:-1]})
    big = tmp_path / "big.gguf"
    gguftools.convert_endian(austen, "big", big)
    refused(ModelError, "is of architecture 'deepseek2', .* of 'llama'", made, tmp_path, donors=[(other, "blk")])
    refused(ModelError, r"attn_v.weight' has shape \[3, 5\] in", made, tmp_path, donors=[(narrow, "attn_v")])
    refused(VocabularyError, "1 tokens of .* are others", made, tmp_path, donors=[(renamed, "embeddings")])
    refused(
        VocabularyError,
        "the vocabulary has .* tokens, token_embd.weight",
        made,
        tmp_path,
        donors=[(fewer, "tokenizer")],
    )
    refused(FileError, "big endian", made, tmp_path, donors=[(big, "attn_v")])
    refused(OptionError, "no tensor of .* matches 'nothing'", made, tmp_path, donors=[(austen, "nothing")])
    refused(OptionError, "no key of .* matches", made, tmp_path, donors=[(austen, "key:nothing")])
    refused(OptionError, "is not a regular expression", made, tmp_path, donors=[(austen, "(")])
    refused(OptionError, "an empty pattern", made, tmp_path, donors=[(austen, "")])
    refused(OptionError, "nothing is named", made, tmp_path, donors=[(austen, [])])
    refused(OptionError, "has no MTP layers", made, tmp_path, donors=[(austen, "mtp")])
    refused(OptionError, "has no MTP layers", made, tmp_path, drop="mtp")
    refused(OptionError, "there is nothing to change", made, tmp_path)
    refused(ModelError, "would not be a valid model: .*ffn_up.* is missing", made, tmp_path, drop=r"blk\.1\.ffn_up")
    refused(OptionError, "no program loads a model without", made, tmp_path, drop="key:block_count")
    refused(ModelError, "has no experts to drop", made, tmp_path, drop_experts=1, text=TEXT)
    refused(FileError, "there is no file|cannot be read", made, tmp_path, drop_layers=[1], measure=tmp_path / "absent")


def test_force_writes_what_does_not_fit(made: Path, tmp_path: Path) -> None:
    report = gguftools.graft(
        made / "austen.gguf", tmp_path / "out.gguf", drop=r"blk\.1\.ffn_up", options=GraftOptions(force=True)
    )
    assert any("would not be a valid model" in text for text in report.warnings)
    assert "blk.1.ffn_up.weight" not in open_gguf(tmp_path / "out.gguf").tensors


def test_big_endian_files_among_themselves(made: Path, tmp_path: Path) -> None:
    gguftools.graft(made / "austen.gguf", tmp_path / "little.gguf", drop_layers=[1])
    gguftools.convert_endian(made / "austen.gguf", "big", tmp_path / "big.gguf")
    gguftools.graft(tmp_path / "big.gguf", tmp_path / "out.gguf", drop_layers=[1])
    gguftools.convert_endian(tmp_path / "out.gguf", "little", tmp_path / "back.gguf")
    assert raw(tmp_path / "back.gguf") == raw(tmp_path / "little.gguf")


def test_outputs_are_no_inputs_and_are_kept(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes((made / "austen.gguf").read_bytes())
    before = digest(path)
    with pytest.raises(OptionError, match="is read, so it cannot be written"):
        gguftools.graft(made / "austen.gguf", path, [(path, "head|attn")], write=WriteOptions(overwrite=True))
    with pytest.raises(OptionError, match="is read, so it cannot be written"):
        gguftools.graft(path, path, drop_layers=[1], write=WriteOptions(overwrite=True))
    with pytest.raises(FileError, match="already exists"):
        gguftools.graft(made / "austen.gguf", path, drop_layers=[1])
    assert digest(path) == before
    assert (
        gguftools.graft(
            made / "austen.gguf", tmp_path / "x.gguf", drop_layers=[1], write=WriteOptions(dry_run=True)
        ).nbytes
        > 0
    )
    assert not (tmp_path / "x.gguf").exists()


# Experts


def without_in_checkpoint(folder: Path, target: Path, dropped: Mapping[int, Sequence[int]], count: int) -> Path:
    """A checkpoint with experts left out of its tensors and its config, by names as transformers gives them."""
    target.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    tensors = {}
    for name, values in load_file(folder / "model.safetensors").items():
        layer = re.search(r"layers\.(\d+)\.", name)
        number = max(dropped) if name.startswith("mtp.") else int(layer[1]) if layer else -1
        lost = dropped.get(number, ())
        left = [i for i in range(count) if i not in lost]
        one = re.search(r"(?<!shared_)experts\.(\d+)\.", name)
        if lost and one:
            if int(one[1]) in lost:
                continue
            name = f"{name[: one.start(1)]}{left.index(int(one[1]))}{name[one.end(1) :]}"
        elif lost and values.shape[:1] == (count,) and OF_EXPERTS.search(name) and "shared" not in name:
            values = values[left]
        tensors[name] = np.ascontiguousarray(values)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = (target / "config.json").read_text()
    left_over = count - len(next(iter(dropped.values())))
    keys = "num_experts|num_local_experts|n_routed_experts"
    config = re.sub(rf'("({keys})"): {count}\b', rf"\1: {left_over}", config)
    (target / "config.json").write_text(config)
    return target


@pytest.mark.parametrize("entry", MIXTURES)
def test_experts_dropped_as_from_the_checkpoint(made: Path, tmp_path: Path, entry: str) -> None:
    source = model_of(made, entry)
    report = gguftools.graft(
        source,
        tmp_path / "out.gguf",
        experts=ExpertOptions(drop="25%", text=TEXT),
        options=GraftOptions(n_ctx=64, chunks=2),
    )
    assert is_sound(tmp_path / "out.gguf")
    count = len(next(iter(report.scores.values())))
    folder = without_in_checkpoint(made / entry, tmp_path / entry, report.experts, count)
    gguftools.convert(folder, tmp_path / "direct.gguf", "f32")
    assert raw(tmp_path / "out.gguf") == raw(tmp_path / "direct.gguf")
    ours, direct = (gguftools.open(tmp_path / f"{name}.gguf").metadata for name in ("out", "direct"))
    assert not list(compare_metadata(ours, direct))


@pytest.mark.parametrize(
    "entry",
    [
        "mixtral",
        "qwen2-moe",
        "qwen3-moe",
        "deepseek-v2-lite",
        "gpt-oss-mxfp4",
        "gpt-oss-bf16",
        "granitemoe",
        "olmoe",
        "jamba",
    ],
)
def test_experts_of_the_zoo(entry: str, shared: Path, made: Path, tmp_path: Path) -> None:
    """The same of other families; what config.json of each calls its experts stands there."""
    source = of_zoo(shared, made, entry)
    report = gguftools.graft(
        source,
        tmp_path / "out.gguf",
        experts=ExpertOptions(drop=0.25, text=TEXT),
        options=GraftOptions(n_ctx=64, chunks=2),
    )
    count = len(next(iter(report.scores.values())))
    folder = without_in_checkpoint(made / entry, tmp_path / entry, report.experts, count)
    gguftools.convert(folder, tmp_path / "direct.gguf", "f32")
    assert raw(tmp_path / "out.gguf") == raw(tmp_path / "direct.gguf")
    assert is_sound(tmp_path / "out.gguf")


def of_zoo(shared: Path, folder: Path, entry: str) -> Path:
    path = folder / f"{entry}.gguf"
    if not path.exists():
        zoo_build.build(shared / "zoo", entry, folder / entry)
        gguftools.convert(folder / entry, path, "f32")
    return path


def logits_of_llama(path: Path, ids: Any) -> Any:
    import llama_cpp

    whole = llama_cpp.Llama(str(path), logits_all=True, n_ctx=128, n_threads=1, type_k=0, type_v=0, verbose=False)
    whole.eval([int(token) for token in ids])
    return np.array(whole.scores[: len(ids)])


def check_in_llama(path: Path, most: float = 1e-3) -> None:
    ids = np.arange(40, 90)
    ours = gguftools.load(path).logits(ids)
    assert np.abs(logits_of_llama(path, ids) - ours).max() < most * ours.std()


@pytest.mark.verify
@pytest.mark.parametrize("entry", ["glm4-moe-lite", "exaone-moe", "lfm2-moe", "hunyuan-moe", "afmoe"])
def test_fewer_experts_in_llama(made: Path, tmp_path: Path, entry: str) -> None:
    source = model_of(made, entry)
    gguftools.graft(
        source,
        tmp_path / "out.gguf",
        experts=ExpertOptions(drop=0.25, text=TEXT),
        options=GraftOptions(n_ctx=64, chunks=2),
    )
    check_in_llama(tmp_path / "out.gguf")


@pytest.mark.verify
@pytest.mark.parametrize("entry", ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss-mxfp4", "granitemoe", "olmoe"])
def test_fewer_experts_of_the_zoo_in_llama(entry: str, shared: Path, made: Path, tmp_path: Path) -> None:
    source = of_zoo(shared, made, entry)
    gguftools.graft(
        source,
        tmp_path / "out.gguf",
        experts=ExpertOptions(drop=0.25, text=TEXT),
        options=GraftOptions(n_ctx=64, chunks=2),
    )
    check_in_llama(tmp_path / "out.gguf", 0.2 if "mxfp4" in entry else 1e-3)  # llama.cpp rounds activations for it


@pytest.mark.verify
@pytest.mark.parametrize("entry", ["glm4-moe-lite", "exaone-moe"])
def test_a_grafted_further_layer_in_llama(made: Path, tmp_path: Path, entry: str) -> None:
    whole = model_of(made, entry)
    gguftools.graft(whole, tmp_path / "trunk.gguf", drop="mtp")
    gguftools.graft(tmp_path / "trunk.gguf", tmp_path / "out.gguf", [(whole, "mtp")])
    check_in_llama(tmp_path / "trunk.gguf")
    check_in_llama(tmp_path / "out.gguf")


@pytest.mark.parametrize("form", ["Q8_0", "Q4_0", "IQ4_NL", "BF16"])
def test_experts_of_any_format(made: Path, tmp_path: Path, form: str) -> None:
    """Dropping and then quantizing is quantizing and then dropping."""
    source, dropped = model_of(made, "glm4-moe-lite"), {1: (0, 7), 2: (3, 4), 3: (6, 1)}
    gguftools.graft(source, tmp_path / "fewer.gguf", experts=ExpertOptions(drop=dropped))
    for name, path in (("a", tmp_path / "fewer.gguf"), ("b", source)):
        gguftools.open(path).save(tmp_path / f"{name}.gguf", rules={"_exps": form})
    gguftools.graft(tmp_path / "b.gguf", tmp_path / "c.gguf", experts=ExpertOptions(drop=dropped))
    assert raw(tmp_path / "c.gguf") == raw(tmp_path / "a.gguf")


def test_an_expert_that_is_never_chosen_costs_nothing(made: Path, tmp_path: Path) -> None:
    """REAP drops it, and the logits stay what they were, while dropping others changes them."""
    source = model_of(made, "lfm2-moe")
    model, ids = gguftools.open(source), np.arange(40, 104)
    silent = {}
    for layer, expert in ((1, 7), (2, 2)):
        name = f"blk.{layer}.exp_probs_b.bias"
        bias = np.asarray(model.tensors[name]).copy()
        bias[expert] = -1e4
        silent[name] = bias
    path = edited(source, tmp_path / "silent.gguf", {}, silent)
    report = gguftools.graft(
        path,
        tmp_path / "out.gguf",
        experts=ExpertOptions(drop=1, text=TEXT),
        options=GraftOptions(n_ctx=64, chunks=2, measure=TEXT),
    )
    assert report.experts == {1: (7,), 2: (2,)}
    assert (report.scores[1][7], report.scores[2][2]) == (0, 0)
    assert min(score for i, score in enumerate(report.scores[2]) if i != 2) > 0
    assert report.divergence is not None
    assert report.divergence.files[0].kl_divergence["mean"] < 1e-9
    before = gguftools.load(path).logits(ids)
    after = gguftools.load(tmp_path / "out.gguf").logits(ids)
    np.testing.assert_allclose(after, before, atol=1e-5)  # the narrower router is multiplied in another order
    gguftools.graft(path, tmp_path / "other.gguf", experts=ExpertOptions(drop={1: (4,), 2: (3,)}))
    assert np.abs(gguftools.load(tmp_path / "other.gguf").logits(ids) - before).max() > 1e-3


def test_scores_by_an_importance_matrix(made: Path, tmp_path: Path) -> None:
    source = model_of(made, "hunyuan-moe")
    matrix = gguftools.imatrix(source, TEXT, tmp_path / "k.gguf", n_ctx=64, chunks=2)
    report = gguftools.graft(source, tmp_path / "out.gguf", experts=ExpertOptions(drop=2, imatrix=tmp_path / "k.gguf"))
    for layer, lost in report.experts.items():
        counts = matrix.entries[f"blk.{layer}.ffn_down_exps.weight"].counts
        assert max(counts[list(lost)]) <= min(np.delete(counts, lost))
    other = model_of(made, "granitemoe-swa")
    refused(
        ModelError,
        "has nothing on layer",
        made,
        tmp_path / "..",
        target=other,
        drop_experts=2,
        imatrix=tmp_path / "k.gguf",
    )


def test_fewer_experts_than_a_token_is_given_to(made: Path, tmp_path: Path) -> None:
    dropped = dict.fromkeys((0, 1), range(2, 8))
    report = gguftools.graft(model_of(made, "hunyuan-moe"), tmp_path / "out.gguf", experts=ExpertOptions(drop=dropped))
    found = gguftools.open(tmp_path / "out.gguf").metadata
    assert (found["hunyuan-moe.expert_count"], found["hunyuan-moe.expert_used_count"]) == (2, 2)
    assert "a token is given to 2 experts, not to 3: no more are left" in report.warnings
    gguftools.load(tmp_path / "out.gguf").logits([1, 2, 3])


LISTS = [
    ("0: 1\n", "layer 1 loses 0 experts, layer 0 loses 1"),
    ("0: 1\n1: 9\n", "there is no expert 9 in layer 1"),
    ("0: 1\n1: 2\n7: 1\n", "layer 7 has no experts"),
    ("0: 0-7\n1: 0-7", "no expert would be left"),
    ("0: a\n", "line 1: '0: a' is no layer"),
    ("0: 1\n0: 2\n", "layer 0 is there twice"),
    ("# none\n", "names no experts"),
    ("0 1\n", "is no layer"),
    ("\xff", "is not UTF-8 text: byte 0 is 0xff; a list of experts is expected"),
]


@pytest.mark.parametrize(("text", "message"), LISTS)
def test_lists_that_mean_nothing(made: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list").write_bytes(text.encode("latin-1"))
    refused(
        GgufToolsError, message, made, tmp_path, target=model_of(made, "hunyuan-moe"), drop_experts=tmp_path / "list"
    )


@pytest.mark.parametrize("wanted", [0, 8, -1, 1.5, 0.01, "100%", "0%", "nothing", True, [1]])
def test_numbers_that_cannot_be_dropped(made: Path, tmp_path: Path, wanted: Any) -> None:
    source = model_of(made, "hunyuan-moe")
    refused(
        OptionError,
        "drop|experts|neither",
        made,
        tmp_path,
        target=source,
        drop_experts=wanted,
        text=TEXT,
        n_ctx=64,
        chunks=1,
    )


def test_which_to_drop_has_to_be_told(made: Path, tmp_path: Path) -> None:
    source = model_of(made, "hunyuan-moe")
    refused(
        OptionError, "are chosen by a text or by an importance matrix", made, tmp_path, target=source, drop_experts=1
    )
    refused(OptionError, "are listed", made, tmp_path, target=source, drop_experts={0: [1], 1: [1]}, text=TEXT)


def test_a_list_has_ranges_and_remarks(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("# mine\n 3 : 0, 5-7 # of layer 3\n\n12:1\n")
    assert read_list(tmp_path / "list") == {3: (0, 5, 6, 7), 12: (1,)}


def test_groups_lose_as_many_each() -> None:
    mixture = Mixture("x", (0,), 12, 3, 3, 2)
    scores = {0: [9, 1, 2, 8, 0, 0, 0, 0, 5, 7, 6, 4]}
    assert worst_experts(mixture, scores, 3) == {0: (1, 7, 11)}  # of equals the last one
    assert worst_experts(mixture, scores, 0.5) == {0: (1, 2, 6, 7, 8, 11)}
    with pytest.raises(OptionError, match="evenly from 3 groups"):
        worst_experts(mixture, scores, 4)


@pytest.mark.parametrize("lost", [(0,), (0, 1, 2), (0, 4)])
def test_groups_that_cannot_be(made: Path, lost: Sequence[int]) -> None:
    path = model_of(made, "nemotron-h-moe")
    opened = open_gguf(path)
    mixture = Mixture("nemotron_h_moe", (1, 3), 8, 3, 4, 2)
    with pytest.raises(OptionError):
        without_experts(opened.metadata, stored_tensors(opened), mixture, dict.fromkeys((1, 3), lost))


def test_grouped_experts_run(made: Path, tmp_path: Path) -> None:
    """Of a router with groups: four of two become two of four, and lose one each."""
    source = model_of(made, "nemotron-h-moe")
    two = {
        "nemotron_h_moe.expert_group_count": Value(2, ValueType.UINT32),
        "nemotron_h_moe.expert_group_used_count": Value(1, ValueType.UINT32),
    }
    path = edited(source, tmp_path / "two.gguf", two)
    report = gguftools.graft(
        path,
        tmp_path / "out.gguf",
        experts=ExpertOptions(drop=0.25, text=TEXT),
        options=GraftOptions(n_ctx=64, chunks=2),
    )
    assert all(sum(number < 4 for number in lost) == 1 for lost in report.experts.values())
    assert is_sound(tmp_path / "out.gguf")


def test_whole_groups_go(made: Path, tmp_path: Path) -> None:
    """Those whose scores sum to least; where all that are left are used, there is no choice of groups any more."""
    mixture = Mixture("x", (0, 1), 8, 2, 4, 2)
    assert worst_groups(mixture, {0: [9, 0, 1, 2, 5, 5, 0, 1], 1: [3, 3, 3, 3, 3, 3, 3, 3]}, 2) == {
        0: (2, 3, 6, 7),
        1: (4, 5, 6, 7),
    }
    for count in (0, 4, 9):
        with pytest.raises(OptionError, match="groups of experts cannot be dropped"):
            worst_groups(mixture, {}, count)
    head = "nemotron_h_moe.expert_"
    opened = open_gguf(model_of(made, "nemotron-h-moe"))
    experts = opened.metadata[f"{head}count"]
    for groups, used, wanted, left in ((4, 1, "2groups", (2, 1)), (4, 2, "2groups", (0, 0)), (2, 1, "1group", (0, 0))):
        numbers = {f"{head}group_count": groups, f"{head}group_used_count": used, f"{head}used_count": 2}
        values = {key: Value(number, ValueType.UINT32) for key, number in numbers.items()}
        path = edited(opened.path, tmp_path / "grouped.gguf", values)
        options = {"text": TEXT, "n_ctx": 64, "chunks": 1, "overwrite": True, "drop_experts": wanted}
        report = gguftools.graft(path, tmp_path / "out.gguf", **options_of("graft", **options))
        size = experts // groups
        for lost in report.experts.values():
            assert all((number // size * size + place) in lost for number in lost for place in range(size))
        assert is_sound(tmp_path / "out.gguf")
        made_of = gguftools.open(tmp_path / "out.gguf").metadata
        assert (made_of[f"{head}group_count"], made_of[f"{head}group_used_count"]) == left
        assert made_of[f"{head}count"] == experts - int(wanted[0]) * size
        gguftools.load(tmp_path / "out.gguf").logits([1, 2, 3])
        path.unlink()


def test_what_is_not_known_of_experts_is_refused(made: Path, tmp_path: Path) -> None:
    more = {"blk.0.ffn_up_chexps.weight": np.ones((2, 4, 4))}
    path = edited(model_of(made, "hunyuan-moe"), tmp_path / "m.gguf", {}, more)
    refused(
        ModelError,
        "it is not known what 'blk.0.ffn_up_chexps.weight' holds",
        made,
        tmp_path,
        target=path,
        drop_experts={0: [1], 1: [1]},
    )


def test_a_router_that_lies(made: Path, tmp_path: Path) -> None:
    router = {"blk.1.ffn_gate_inp.weight": np.ones((7, 64))}
    path = edited(model_of(made, "hunyuan-moe"), tmp_path / "m.gguf", {}, router)
    refused(
        ModelError,
        r"ffn_gate_inp.weight' has shape \[7, 64\]",
        made,
        tmp_path,
        target=path,
        drop_experts={0: [1], 1: [1]},
    )


def test_as_dict_is_json(made: Path, tmp_path: Path) -> None:
    report = gguftools.graft(
        model_of(made, "hunyuan-moe"), tmp_path / "o.gguf", experts=ExpertOptions(drop={0: [1], 1: [2]})
    )
    found = json.loads(json.dumps(report.as_dict()))
    assert found["experts"] == {"0": [1], "1": [2]}
    assert found["size_bytes"] == (tmp_path / "o.gguf").stat().st_size


def test_files_without_architecture(tmp_path: Path) -> None:
    name = {"general.architecture": "clip"}
    a = write_model(tmp_path / "a.gguf", metadata_of(name), {"mm.0.weight": np.ones((2, 4))})
    b = write_model(
        tmp_path / "b.gguf", metadata_of({**name, "clip.x": 5}), {"mm.0.weight": np.zeros((2, 4)), "v.x": np.ones(3)}
    )
    gguftools.graft(a, tmp_path / "out.gguf", [(b, [r"^mm\.", r"key:clip\.", r"^v\."])])
    found = gguftools.open(tmp_path / "out.gguf")
    assert not np.array(found.tensors["mm.0.weight"]).any()
    assert found.metadata["clip.x"] == 5
    assert list(found.tensors) == ["mm.0.weight", "v.x"]


# Merging experts


def test_merged_experts_are_means(made: Path, tmp_path: Path) -> None:
    source = model_of(made, "hunyuan-moe")
    report = gguftools.graft(
        source,
        tmp_path / "out.gguf",
        experts=ExpertOptions(drop=2, merge=True, text=TEXT),
        options=GraftOptions(n_ctx=64, chunks=2),
    )
    old, new = gguftools.open(source).tensors, gguftools.open(tmp_path / "out.gguf").tensors
    counts = expert_scores(gguftools.open(source), TEXT, n_ctx=64, chunks=2).routed
    for layer, into in report.merged.items():
        assert sorted(each for others in into.values() for each in others) == list(report.experts[layer])
        kept = [i for i in range(8) if i not in report.experts[layer]]
        router = np.asarray(old[f"blk.{layer}.ffn_gate_inp.weight"], np.float64)
        alike = router @ router.T / np.outer(*2 * [np.linalg.norm(router, axis=1)])
        for name in ("ffn_gate_inp", "ffn_up_exps", "ffn_down_exps", "ffn_gate_exps"):
            before, after = (np.asarray(each[f"blk.{layer}.{name}.weight"], np.float64) for each in (old, new))
            for place, expert in enumerate(kept):
                members = [expert, *into.get(expert, ())]
                used = counts[layer][members] / counts[layer][members].sum()
                np.testing.assert_allclose(after[place], np.tensordot(used, before[members], 1), rtol=1e-5, atol=1e-8)
        for expert, others in into.items():
            assert all(alike[other, expert] > alike[other, kept].max() - 1e-12 for other in others)
    assert is_sound(tmp_path / "out.gguf")
    gguftools.load(tmp_path / "out.gguf").logits([1, 2, 3])


def test_merging_in_blocks_has_to_be_allowed(made: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "experts": ExpertOptions(2, text=TEXT, merge=True),
        "options": GraftOptions(n_ctx=64, chunks=2),
    }
    source, blocks = model_of(made, "hunyuan-moe"), tmp_path / "q.gguf"
    gguftools.open(source).save(blocks, rules={"down_exps": "BF16", "_exps": "Q4_0"})
    refused(FormatError, "is Q4_0: experts are averaged by encoding", made, tmp_path, target=blocks, **options)
    refused(
        OptionError,
        "which a list does not have",
        made,
        tmp_path,
        target=blocks,
        experts=ExpertOptions({0: [1], 1: [2]}, merge=True),
    )
    options["experts"] = replace(options["experts"], allow_requantize=True)
    report = gguftools.graft(blocks, tmp_path / "out.gguf", **options)
    old, new = raw(blocks), raw(tmp_path / "out.gguf")
    for layer, into in report.merged.items():
        kept = [i for i in range(8) if i not in report.experts[layer]]
        name = f"blk.{layer}.ffn_up_exps.weight"
        size = len(old[name][2]) // 8
        for place, expert in enumerate(kept):
            same = new[name][2][place * size : (place + 1) * size] == old[name][2][expert * size : (expert + 1) * size]
            assert same == (expert not in into)  # what nothing is merged into keeps its bytes
    big = tmp_path / "big.gguf"
    gguftools.convert_endian(blocks, "big", big)
    dropped = gguftools.graft(big, tmp_path / "b.gguf", **options).experts
    assert dropped == report.experts
    gguftools.convert_endian(tmp_path / "b.gguf", "little", tmp_path / "little.gguf")
    assert raw(tmp_path / "little.gguf") == raw(tmp_path / "out.gguf")


# Strangers' files


@settings(max_examples=50, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_files_that_lie(data: st.DataObject, made: Path, tmp_path: Path) -> None:
    """Whatever is done to a target's or a donor's header: a file that opens, or one line and none."""
    source = model_of(made, "glm4-moe-lite")
    opened, raw_bytes = open_gguf(source), bytearray(source.read_bytes())
    keys = [key.encode() for key in opened.metadata if "expert" in key or "count" in key or "next" in key]
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):  # a number that counts
            key = data.draw(st.sampled_from(keys))
            at = raw_bytes.find(key) + len(key) + 4
            raw_bytes[at : at + 4] = data.draw(st.sampled_from([0, 1, 2, 3, 5, 7, 255, 1 << 31])).to_bytes(4, "little")
        else:
            at = data.draw(st.integers(0, opened.data_offset - 1))
            raw_bytes[at] = data.draw(st.integers(0, 255))
    lying, out = tmp_path / "lying.gguf", tmp_path / "out.gguf"
    lying.write_bytes(raw_bytes)
    out.unlink(missing_ok=True)
    patterns = data.draw(st.sampled_from(["mtp", "tokenizer", "head", "embeddings", "ffn", "key:expert", "key:count"]))
    target, donors = data.draw(st.sampled_from([(lying, [(source, patterns)]), (source, [(lying, patterns)])]))
    dropped = data.draw(st.sampled_from([None, {1: [1, 2], 2: [0, 7], 3: [3, 4]}]))
    try:
        gguftools.graft(
            target,
            out,
            donors,
            drop=data.draw(st.sampled_from([(), ["mtp"], ["key:rope"]])),
            experts=ExpertOptions(drop=dropped),
            drop_layers=data.draw(st.sampled_from([(), [1], [3], [0, 2]])),
            options=GraftOptions(force=data.draw(st.booleans())),
        )
    except GgufToolsError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert not out.exists()
    else:
        open_gguf(out)


def test_formats_of_forks(made: Path, tmp_path: Path) -> None:
    """Rows that are stored together, and bytes behind the last row, go along; what cannot be cut is refused."""
    rows = np.random.default_rng(0).integers(0, 256, (4 * 8, 76), np.uint8)
    form = next(each for each in meanings(137) if each.name == "IQ2_K")
    stacked = Tensor("blk.0.ffn_up_exps.weight", (4, 8, 256), form, lambda a, b: rows[a:b])
    head = metadata_of({"general.architecture": "unknown", "unknown.expert_count": 4, "unknown.expert_used_count": 1})
    router = {"blk.0.ffn_gate_inp.weight": np.ones((4, 256))}
    path = write_model(tmp_path / "m.gguf", head, {stacked.name: stacked, **router})
    gguftools.graft(path, tmp_path / "out.gguf", experts=ExpertOptions(drop={0: [1]}))
    found = open_gguf(tmp_path / "out.gguf").tensors[stacked.name]
    assert (found.format.name, found.shape) == ("IQ2_K", (3, 8, 256))
    np.testing.assert_array_equal(found.raw(), rows.reshape(4, 8, 76)[[0, 2, 3]].reshape(-1, 76))


def test_the_command(made: Path, tmp_path: Path) -> None:
    """Words behind --from up to the next option belong to it."""
    austen = made / "austen.gguf"
    done = run(
        "graft",
        austen,
        "--from",
        austen,
        "embeddings",
        "attn_v",
        "-o",
        "out.gguf",
        f"--from={austen}",
        "template",
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["moved"]) == 5
    done = run(
        "graft",
        austen,
        "-o",
        "other.gguf",
        "--drop-layers",
        "1-2",
        "--measure",
        TEXT,
        "-c",
        128,
        "--chunks",
        2,
        cwd=tmp_path,
    )
    assert "KL divergence" in done.stdout, done.stderr
    for words in (["--from", austen, "-o", "x.gguf"], ["-o", "x.gguf", "--from"], ["--from", "-o", "x.gguf"]):
        done = run("graft", austen, *words, cwd=tmp_path)
        assert done.returncode in (1, 2)
        assert done.stderr.count("error:") == 1, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.gguf", "out.gguf"]

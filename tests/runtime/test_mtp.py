"""The layer behind the last one that predicts a token further. Its sums beside llama.cpp's: test_importance.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from quants import from_array
from quants.errors import ModelError
from runtime.kv_cache import KVCache
from runtime.model import RunningModel
from runtime.speculation.draft_files import reader_of
from tests.archs import checkpoints
from tests.conftest import DATA
from tests.verify.further import APART, POSITIONS, TOKENS
from tests.verify.further import TEXT as FURTHER_TEXT

TEXT = np.arange(40, 64)[None]
TRUTH = json.loads((DATA / "further.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=["qwen3-5-moe", "glm4-moe-lite"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> gguftools.Model:
    return converted(request.param, tmp_path_factory.mktemp("next"))


def converted(entry: str, folder: Path) -> gguftools.Model:
    checkpoints.build(entry, folder / entry)
    gguftools.convert(folder / entry, folder / "f32.gguf", "f32")
    return gguftools.load(folder / "f32.gguf")


def further(model: RunningModel, tokens: Any) -> Any:
    ids = np.asarray(tokens)
    return model.mtp_logits(ids, model.lazy_logits(ids).states).float32()


def test_nothing_is_seen_before_it_comes(source: gguftools.Model) -> None:
    model, changed = RunningModel(source.metadata, source.tensors, precision="exact"), TEXT.copy()
    changed[0, 12] += 1
    one, other = further(model, TEXT), further(model, changed)
    assert one.shape == (1, TEXT.size - 1, model.vocabulary_size)
    same = np.abs(one - other).max(axis=(0, 2)) < 1e-4
    assert same[:11].all()  # which are given tokens 1 to 11
    assert not same[11:13].any()


@pytest.mark.parametrize("entry", [entry for entry in TRUTH if entry not in APART])
def test_logits_are_those_of_transformers(entry: str, tmp_path: Path) -> None:
    model, wanted = converted(entry, tmp_path), TRUTH[entry]
    found = further(model, FURTHER_TEXT[None])[0][np.ix_(POSITIONS, [*TOKENS])]
    assert np.abs(found - np.array(wanted["logits"])).max() < 1e-4 * wanted["std"]


@pytest.mark.parametrize("entry", APART)
def test_logits_of_a_layer_with_a_file_to_itself(entry: str, tmp_path: Path) -> None:
    model, wanted = converted(entry, tmp_path), TRUTH[entry]
    gguftools.convert(tmp_path / entry, tmp_path / "mtp.gguf", "f32", part="mtp")
    assert not [each for each in gguftools.validate(tmp_path / "mtp.gguf").problems if each.severity == "error"]
    with gguftools.open(tmp_path / "mtp.gguf") as file:
        reader = reader_of(model, file.metadata, file.tensors)
        assert reader is not None
        states = reader.begin(model.lazy_logits(FURTHER_TEXT).states[:-1])
        found, made = reader.read(states, FURTHER_TEXT[1:].tolist(), None)
        some = found.float32()[np.ix_(POSITIONS, [*TOKENS])]
        assert np.abs(some - np.array(wanted["logits"])).max() < 1e-5 * wanted["std"]
        cache, pieces = KVCache(), [slice(0, 5), slice(5, 6), slice(6, 43)]
        each = [reader.read(states[piece], FURTHER_TEXT[1:][piece].tolist(), cache) for piece in pieces]
    np.testing.assert_allclose(np.concatenate([part.float32() for part, _ in each]), found.float32(), atol=1e-4)
    np.testing.assert_allclose(np.concatenate([part for _, part in each]), made, atol=1e-4)


def test_texts_do_not_see_each_other(source: gguftools.Model) -> None:
    model = RunningModel(source.metadata, source.tensors, precision="exact")
    both = further(model, np.concatenate([TEXT, TEXT[:, ::-1]]))
    np.testing.assert_allclose(both[:1], further(model, TEXT), atol=1e-4)


def changed(source: gguftools.Model, keys: dict[str, Any], tensors: dict[str, Any]) -> RunningModel:
    """keys: without the architecture; tensors: values for those whose names end so, None for taking them out."""
    name = source.metadata["general.architecture"]
    own = {**source.metadata, **{f"{name}.{key}": value for key, value in keys.items()}}
    found = dict(source.tensors)
    for end, values in tensors.items():
        for tensor in [each for each in found if each.endswith(end)]:
            del found[tensor]
            if values is not None:
                found[tensor] = from_array(tensor, np.asarray(values, np.float32))
    return RunningModel(own, found)


LIES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"nextn.enorm.weight": np.ones(3)}, r"nextn.enorm.weight' has shape \[3\]; \[64\] is expected"),
    ({}, {"nextn.eh_proj.weight": np.ones((64, 64))}, r"eh_proj.weight' has shape \[64, 64\]"),
    ({}, {"nextn.hnorm.weight": None}, r"no tensor 'blk.\d.nextn.hnorm.weight'"),
    ({"nextn_predict_layers": 2}, {}, "can't run here: there are 2"),
    (
        {},
        {
            ".nextn.eh_proj.weight": None,
            ".nextn.enorm.weight": None,
            ".nextn.hnorm.weight": None,
            ".nextn.shared_head_norm.weight": None,
        },
        "no MTP layer",
    ),
]


@pytest.mark.parametrize(("keys", "tensors", "message"), LIES)
def test_files_that_lie(source: gguftools.Model, keys: dict[str, Any], tensors: dict[str, Any], message: str) -> None:
    model = changed(source, keys, tensors)
    with pytest.raises(ModelError, match=message):
        _ = model.next_tokens


def test_a_layer_of_other_widths(source: gguftools.Model) -> None:
    last = int(source.metadata[f"{source.metadata['general.architecture']}.block_count"]) - 1
    model = changed(source, {}, {f"blk.{last}.attn_norm.weight": np.ones(5)})
    with pytest.raises(ModelError, match=rf"blk.{last}.attn_norm.weight"):
        _ = model.next_tokens


def test_keys_that_end_before_it_go_on_as_they_begin(tmp_path: Path) -> None:
    source = converted("exaone-moe", tmp_path)
    model = RunningModel(source.metadata, source.tensors)
    assert [own.window for own in model.next_tokens.hparams.layers] == [8, 8, 8, None, 8]
    config = json.loads((tmp_path / "exaone-moe" / "config.json").read_text(encoding="utf-8"))
    other = tmp_path / "exaone-moe" / "config.json"
    other.write_text(json.dumps({**config, "mtp_layer_types": ["full_attention"]}), encoding="utf-8")
    gguftools.convert(tmp_path / "exaone-moe", tmp_path / "full.gguf", "f32")
    assert gguftools.load(tmp_path / "full.gguf").next_tokens.hparams.layers[-1].window is None

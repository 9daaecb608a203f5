"""Sizes of buffers as llama.cpp prints them: models of real widths at three contexts, and all small ones."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from runtime.memory.caches import LayerCache, layer_caches
from runtime.memory.compute import compute_buffers
from runtime.memory.description import Described, Settings, described
from runtime.memory.estimates import cache_interval, compute_interval, unmodelled
from runtime.memory.placement import IN_RAM, Placement, weights
from tests import wide_models
from tests.conftest import DATA

CLOSE = 0.03
APART = {"mamba-2.8b": 0.08}  # with a part of its layers on a device
RECORD: dict[str, Any] = json.loads((DATA / "buffers.json").read_text(encoding="utf-8"))


@cache
def model(name: str) -> Described:
    return described(*wide_models.model(name))


def settings(case: list[Any]) -> Settings:
    context, kind, sequences, rows, unified, _ = case
    return Settings(context, sequences, kind, kind, all_logits=not rows, unified=bool(unified))


def caches(name: str, chosen: Settings) -> int:
    return sum(each.attention_bytes(chosen) + each.state_bytes(chosen) for each in layer_caches(model(name), chosen))


@pytest.mark.parametrize("name", RECORD["wide"])
def test_wide_models_in_ram(name: str) -> None:
    """Weights and caches are exact, compute buffers within 3 %: three contexts, two types, with all logits or few."""
    checked = 0
    for case, found in zip(RECORD["cases"], RECORD["wide"][name], strict=True):
        chosen = settings(case)
        if found is None or case[-1]:
            continue
        of_weights, of_caches, of_compute = found["CPU"]
        assert weights(model(name)).ram == of_weights
        assert caches(name, chosen) == of_caches
        assert compute_buffers(model(name), chosen).ram == pytest.approx(of_compute, rel=CLOSE)
        checked += 1
    assert checked == 12


@pytest.mark.parametrize("name", RECORD["wide"])
def test_wide_models_on_a_device(name: str) -> None:
    """A device that has all layers, or the last ones, as RPC shows it: it does not compute with weights in RAM."""
    for case, found in zip(RECORD["cases"], RECORD["wide"][name], strict=True):
        if not case[-1]:
            continue
        placement = Placement(case[-1], copies_weights=False)
        loaded, buffers = weights(model(name), placement), compute_buffers(model(name), settings(case), placement)
        assert loaded.device == pytest.approx(found["RPC"][0], rel=1e-5)
        assert loaded.ram == pytest.approx(found["CPU"][0], rel=1e-5)
        assert buffers.device == pytest.approx(found["RPC"][2], rel=APART.get(name, CLOSE))
        assert buffers.ram == pytest.approx(found["CPU"][2], rel=CLOSE)


@pytest.mark.parametrize("name", RECORD["small"])
def test_small_models(name: str) -> None:
    """All architectures: caches exact and compute buffers within 3 %, or else within the interval."""
    if any(prefix.startswith(("enc.", "dec.", "posnet.")) for prefix in model(name).grouped):
        return  # llama-server does not run those
    for case, found in zip(RECORD["small_cases"], RECORD["small"][name], strict=True):
        if found is None:
            continue
        chosen, (_, of_caches, of_compute) = settings(case), found["CPU"]
        if unmodelled(model(name)):
            kept, computed = layer_caches(model(name), chosen), compute_interval(model(name), chosen)
            bounds = cache_interval(model(name), chosen, kept)
            assert computed.low <= of_compute <= computed.high
            assert bounds.low <= of_caches <= bounds.high
        else:
            assert compute_buffers(model(name), chosen, IN_RAM).ram == pytest.approx(of_compute, rel=CLOSE)
            assert caches(name, chosen) == of_caches


def test_most_architectures_are_exact() -> None:
    """Nine in ten small models that llama-server runs are modelled, most to the byte."""
    exact = modelled = 0
    for name, found in RECORD["small"].items():
        if found[0] is None or unmodelled(model(name)):
            continue
        modelled += 1
        exact += compute_buffers(model(name), settings(RECORD["small_cases"][0])).ram == found[0]["CPU"][2]
    assert modelled > 210
    assert exact > 200


def test_figures_that_users_published() -> None:
    """Gemma 3 270M with one slot; DeepSeek V3 with its whole context; the states of Qwen 3.6 27B with four slots."""
    keys = wide_models.body(640, 2048, 32768) | wide_models.attention(4, 1, 256) | {"attention.sliding_window": 512}
    small = described(*wide_models.wide(wide_models.Wide("gemma3", (0,) * 18, keys, {"vocabulary": 262144})))
    for context, mib in ((4096, 27.0), (8192, 39.0)):
        chosen = Settings(context)
        assert sum(each.attention_bytes(chosen) for each in layer_caches(small, chosen)) == mib * (1 << 20)
    large = replace(wide_models.MODELS["deepseek-v3"], layers=(0, 0, 0, *[1] * 58))
    chosen = Settings(163840)
    kept = layer_caches(described(*wide_models.wide(large)), chosen)
    assert sum(each.attention_bytes(chosen) for each in kept) / (1 << 30) == pytest.approx(10.72, abs=0.005)
    delta = LayerCache(shift=3 * (6144 + 2 * 16 * 128), state=128 * 6144)
    assert 48 * delta.state_bytes(Settings(sequences=4)) == 598.5 * (1 << 20)

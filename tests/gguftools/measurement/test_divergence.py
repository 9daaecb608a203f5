"""Divergence of quantized files from the one they were made of."""

from __future__ import annotations

import json

import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.measurement.divergence import divergence
from gguftools.measurement.perplexity import perplexity
from quants.errors import OptionError

from ...conftest import ROOT

TEXT = ROOT / "examples" / "persuasion.txt"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    source = ROOT / "examples" / "austen-4m"
    return {name: convert(source, folder / f"{name}.gguf", name).outputs[0].file for name in ("F16", "Q8_0", "Q4_0")}


def test_fewer_bits_diverge_further(files):
    fine, coarse = (divergence(files[name], files["F16"], TEXT, n_ctx=128, chunks=4) for name in ("Q8_0", "Q4_0"))
    assert 0 < 20 * fine.kl_mean < coarse.kl_mean
    assert fine.same_top > coarse.same_top
    assert coarse.perplexity == pytest.approx(perplexity(files["Q4_0"], TEXT, n_ctx=128, chunks=4).perplexity)
    plain = coarse.as_dict()
    assert (plain["base"], plain["file"], plain["n_ctx"]) == (str(files["F16"]), str(files["Q4_0"]), 128)
    assert json.loads(json.dumps(plain))["kl_mean"] == coarse.kl_mean


def test_vocabularies_have_to_be_equal(files, tmp_path):
    opened = gguftools.open(files["F16"])
    merges = list(opened.metadata["tokenizer.ggml.merges"])[:100]
    gguftools.set_metadata(files["F16"], {"tokenizer.ggml.merges": merges}, output=tmp_path / "other.gguf")
    with pytest.raises(OptionError, match="make different tokens of the text"):
        divergence(tmp_path / "other.gguf", files["F16"], TEXT, n_ctx=128, chunks=2)

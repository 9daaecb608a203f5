"""Errors of weights in a report."""

from __future__ import annotations

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.measurement.divergence import divergence
from gguftools.measurement.options import DivergenceOptions
from gguftools.publish.report.weights import tensor_errors

from ....conftest import ROOT


def test_what_quantizing_changed(tmp_path):
    source = ROOT / "examples" / "austen-4m"
    base, other = (convert(source, tmp_path / f"{name}.gguf", name).outputs[0].file for name in ("F16", "Q4_0"))
    found = tensor_errors(base, other)
    was, now = gguftools.open(base).tensors, gguftools.open(other).tensors
    assert set(found) == {name for name in was if now[name].format != was[name].format}
    for name, figures in found.items():
        wanted = was[name].float32().astype(np.float64)
        apart = now[name].float32() - wanted
        relative = np.sqrt((apart**2).sum() / (wanted**2).sum())
        assert set(figures) == {"rmse", "relative", "sqnr"}
        assert figures["rmse"] == pytest.approx(np.sqrt((apart**2).mean()), rel=1e-4)
        assert figures["relative"] == pytest.approx(relative, rel=1e-4)
        assert figures["sqnr"] == pytest.approx(-20 * np.log10(relative), rel=1e-4)
    assert tensor_errors(base, base) == {}
    saved = tmp_path / "base.gguf"
    divergence(
        base, options=DivergenceOptions(save_base=saved), text=ROOT / "examples" / "persuasion.txt", n_ctx=128, chunks=1
    )
    assert tensor_errors(saved, other) == {}

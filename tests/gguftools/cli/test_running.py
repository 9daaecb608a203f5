"""`perplexity --running` prints while it runs."""

from __future__ import annotations

import pytest

import gguftools.measurement.perplexity as measurement

from ...conftest import ROOT
from ..command_line import program


@pytest.mark.parametrize(("options", "passes"), [([], 1), (["--sparse"], 2), (["--sparse", "--no-dense"], 1)])
def test_each_window_is_printed_when_it_is_done(
    options: list[str], passes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    printed: list[str] = []

    def measured(*_, progress, **__):
        for _ in range(passes):
            for done in (1, 2):
                progress(done, 2, 10.0 / done)
                printed.append(capsys.readouterr().out)
        raise KeyError

    monkeypatch.setattr(measurement, "perplexity", measured)
    model = ROOT / "tests" / "data" / "golden" / "e2e" / "tiny-dense-f16.gguf"
    with pytest.raises(KeyError):
        program()(["perplexity", str(model), "-f", "text", "--running", *options])
    assert printed == ["", ""] * (passes - 1) + ["    1  10.0000\n", "    2  5.0000\n"]

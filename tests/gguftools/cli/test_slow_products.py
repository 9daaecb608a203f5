"""Commands that multiply say once, before they begin, what in the environment makes them slow."""

import pytest

from gguftools.cli import terminal, ui
from runtime.kernels import blas

from ...conftest import ROOT
from ..command_line import program

NOTE = "note: BLAS is held back: unset X=1"
MODEL = ROOT / "tests" / "data" / "golden" / "e2e" / "tiny-dense-f16.gguf"


@pytest.fixture
def held_back(monkeypatch):
    asked = []
    monkeypatch.setattr(blas, "hindrance", lambda threads: asked.append(threads) or "BLAS is held back: unset X=1")
    monkeypatch.setattr(terminal, "quiet", False)
    ui.note_slow_products.cache_clear()
    yield asked
    ui.note_slow_products.cache_clear()


def call(*words):
    with pytest.raises(SystemExit) as ended:
        program()([str(word) for word in words])
    return ended.value.code


@pytest.mark.parametrize(
    "arguments",
    [
        ("perplexity", MODEL, "-f", "TEXT"),
        ("imatrix", MODEL, "-f", "TEXT", "-o", "OUT"),
        ("demo", "MISSING", "-f", "TEXT", "-o", "OUT"),
    ],
)
@pytest.mark.parametrize("quiet", [False, True])
def test_said_once_before_the_work(arguments, quiet, held_back, tmp_path, capsys):
    (tmp_path / "TEXT").write_text("too short", encoding="utf-8")
    words = [tmp_path / word if str(word).isupper() else word for word in arguments]
    for _ in range(2):
        assert call(*words, *(["--quiet"] if quiet else [])) == 1
    said = capsys.readouterr()
    assert said.err.splitlines().count(NOTE) == (not quiet)
    assert NOTE not in said.out
    assert len(held_back) == 1


def test_of_as_many_threads_as_the_command_has(held_back, tmp_path, capsys):
    (tmp_path / "text").write_text("too short", encoding="utf-8")
    call("perplexity", MODEL, "-f", tmp_path / "text", "--threads", 3)
    assert held_back == [3]


def test_a_command_that_does_not_multiply(held_back, capsys):
    assert call("show", MODEL) == 0
    assert not held_back

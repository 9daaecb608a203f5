"""Models and texts that are replaced while they are measured, and texts that no figure can be of."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import gguftools
from gguftools.conversion.convert import convert
from gguftools.inspection.original.check import check
from gguftools.measurement.divergence import divergence
from gguftools.measurement.evaluation import evaluate
from gguftools.measurement.importance import imatrix
from gguftools.measurement.options import DivergenceOptions, ImatrixOptions
from gguftools.measurement.perplexities import perplexities
from gguftools.measurement.perplexity import perplexity
from quants.errors import FileError, OptionError

from ...conftest import ROOT

TEXT = ROOT / "examples" / "persuasion.txt"
CHANGED = r"model\.gguf was changed while it was read"
FEW = {"n_ctx": 64, "chunks": 2}


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    return convert(ROOT / "examples" / "austen-4m", tmp_path_factory.mktemp("model") / "model.gguf").outputs[0].file


@pytest.fixture
def model(converted, tmp_path) -> Path:
    return Path(shutil.copy(converted, tmp_path / "model.gguf"))


def replacing(path: Path) -> Callable[..., None]:
    """A progress function that replaces a file by a copy of itself, once."""
    left = [True]

    def progress(*_: object) -> None:
        if left.pop() if left else False:
            shutil.copy(path, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)

    return progress


def test_perplexity(model):
    with pytest.raises(FileError, match=CHANGED):
        perplexity(model, TEXT, **FEW, progress=replacing(model))


def test_perplexity_of_several_models(model, tmp_path):
    models = [gguftools.open(model), gguftools.open(shutil.copy(model, tmp_path / "other.gguf"))]
    table = perplexities(models, TEXT, **FEW, progress=replacing(model))
    assert [Path(each.file).name for each in table.failed] == ["model.gguf"]
    assert [Path(each.file).name for each in table.files] == ["other.gguf"]


def test_a_text_that_is_replaced_between_models(model, tmp_path):
    text = Path(shutil.copy(TEXT, tmp_path / "text"))
    with pytest.raises(FileError, match="text was changed while it was read"):
        perplexities([gguftools.open(model)] * 2, text, **FEW, progress=replacing(text))


def test_files_of_other_vocabularies_are_not_compared(model, tmp_path):
    one, other = gguftools.open(model), gguftools.open(model)
    tokens = list(other.metadata["tokenizer.ggml.tokens"])
    other.metadata["tokenizer.ggml.tokens"] = [*tokens[:-1], f"{tokens[-1]}x"]
    files = perplexities([one, other], TEXT, **FEW).files
    assert [each.difference for each in files] == [None, None]


def test_divergence(model, tmp_path):
    base = Path(shutil.copy(model, tmp_path / "base.gguf"))
    with pytest.raises(FileError, match=CHANGED):
        divergence(base, model, text=TEXT, **FEW, progress=replacing(model))
    record, saved = tmp_path / "record", tmp_path / "saved.gguf"
    options = DivergenceOptions(save_base=saved, record=record)
    with pytest.raises(FileError, match=r"base\.gguf was changed"):
        divergence(base, model, text=TEXT, **FEW, options=options, progress=replacing(base))
    assert not saved.exists()
    assert record.exists()


def test_a_stored_base(model, tmp_path):
    saved = tmp_path / "saved.gguf"
    divergence(model, text=TEXT, **FEW, options=DivergenceOptions(save_base=saved))
    with pytest.raises(FileError, match=r"saved\.gguf was changed"):
        divergence(saved, model, text=TEXT, progress=replacing(saved))


def test_importance(model, tmp_path):
    output = tmp_path / "imatrix.gguf"
    with pytest.raises(FileError, match=CHANGED):
        imatrix(model, TEXT, output, **FEW, options=ImatrixOptions(save_every=1), progress=replacing(model))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf"]


def test_evaluation(model, tmp_path):
    tasks = tmp_path / "tasks"
    tasks.write_text("it is a truth: that\n0\n" + "he is\nshe is\nwe are\nthey are\n", encoding="utf-8")
    with pytest.raises(FileError, match=CHANGED):
        evaluate(model, hellaswag=tasks, progress=replacing(model))


def test_tasks_longer_than_the_context(model, tmp_path):
    tasks = tmp_path / "tasks"
    tasks.write_text("a truth: " + "it is " * 200 + "\n0\n" + "he\nshe\nwe\nthey\n", encoding="utf-8")
    source = gguftools.open(model)
    source.metadata["llama.context_length"] = 64
    report = evaluate(source, hellaswag=tasks)
    assert report.warnings == [f"{model}: 1 tasks are longer than the model's context of 64 tokens"]
    source.metadata["llama.context_length"] = 4096
    assert evaluate(source, hellaswag=tasks).warnings == []


def test_check(model):
    with pytest.raises(FileError, match=CHANGED):
        check(model, only=["keys", "runs"], progress=replacing(model))


def test_a_window_of_no_tokens_is_not_the_default(model):
    with pytest.raises(OptionError, match="a window of 0 tokens"):
        divergence(model, model, text=TEXT, n_ctx=0)


def test_texts_without_text(model, tmp_path):
    text = tmp_path / "text"
    for content, message in (("", "the text has "), ("one two", "enough for 0 of the at least 2 windows of 512")):
        text.write_text(content, encoding="utf-8")
        for measure in (perplexity, imatrix):
            with pytest.raises(OptionError, match=message) as caught:
                measure(model, text)
            assert "text" in str(caught.value).split(":")[0]
        with pytest.raises(OptionError, match=message):
            divergence(model, model, text=text)


def test_texts_with_nul(model, tmp_path):
    """A few are measured, as llama.cpp does; ASCII in UTF-16, which is valid UTF-8, is refused."""
    text = tmp_path / "text"
    words = TEXT.read_text(encoding="utf-8")[9000:12000]
    text.write_text(words.replace(".", "\0"), encoding="utf-8")
    assert perplexity(model, text, **FEW).tokens == 128
    text.write_bytes(words.encode("ascii", "replace").decode().encode("utf-16-le"))
    for measure in (perplexity, imatrix):
        with pytest.raises(FileError, match="text is not text in UTF-8: 3,000 of its 6,000 characters are NUL"):
            measure(model, text)

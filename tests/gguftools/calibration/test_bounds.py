"""Wide inputs: their matrices within a bound, whatever is left out of them."""

from pathlib import Path

import numpy as np
import pytest

from gguftools.calibration.bounds import DEFAULT_MEMORY, columns_within
from gguftools.calibration.choosing import choose, loss, pieces_of
from gguftools.calibration.computed import Processor
from gguftools.calibration.texts import Calibration
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.measurement.divergence import divergence
from gguftools.writing.options import WriteOptions
from quants import Tensor, format_named
from quants.errors import FileError, OptionError
from runtime.hessians import Hessians

from ...conftest import ROOT
from .test_feedback import SMALL


def weight(*shape: int) -> Tensor:
    return Tensor("w", shape, format_named("F16"), lambda start, stop: np.zeros((0, 0), np.uint8))


@pytest.mark.parametrize(
    ("memory", "shapes", "columns"),
    [
        (DEFAULT_MEMORY, [(2048, 2048)] * 4 + [(2048, 8192)], 8192),
        (DEFAULT_MEMORY, [(576, 1536)], 1536),
        (1, [(576, 1536)], 256),
        (1, [(576, 100)], 256),
        (DEFAULT_MEMORY, [(16384, 53248)], 2536),
        (DEFAULT_MEMORY, [], 256),
        (DEFAULT_MEMORY, [(256, 2048, 7168)] * 2 + [(256, 7168, 2048)], 256),
    ],
)
def test_columns_follow_from_the_bound(memory: int, shapes: list[tuple[int, ...]], columns: int) -> None:
    assert columns_within(memory, [weight(*shape) for shape in shapes]) == columns


def test_a_bound_on_all_experts_together() -> None:
    one, many = [weight(512, 2048)], [weight(64, 512, 2048)]
    assert columns_within(10**9, one) == 2048
    assert columns_within(10**9, many) == 683


def test_feedback_within_cut_columns() -> None:
    """What is far apart goes together, too, and is not made up for; what is near is."""
    random = np.random.default_rng(0)
    mixing = random.standard_normal((768, 768))
    x = (random.standard_normal((2000, 768)) @ mixing).astype(np.float32)
    rows = random.standard_normal((64, 768)).astype(np.float32)
    form, errors = format_named("Q4_0"), {}
    for columns in (256, 768):
        found = Hessians(2, columns)
        found.observe("w", x)
        (piece,) = pieces_of(found.pieces("w", 64), found.pieces("w", 64))
        chosen = [choose(rows, piece, form, form.encode, "plain", Processor(threads)) for threads in (1, 2)]
        assert np.array_equal(chosen[0].raw, chosen[1].raw)
        assert chosen[0].method == "feedback"
        assert len(piece.inputs.blocks) == 768 // columns
        errors[columns] = loss(form.decode(chosen[0].raw) - rows, piece.inputs)
    assert errors[256] != errors[768]


@pytest.mark.slow
def test_a_small_bound_is_worth_most_of_it(tmp_path: Path) -> None:
    model = convert(ROOT / "examples" / "austen-4m", tmp_path / "m.gguf", "f16").outputs[0].file
    cut = Calibration(SMALL.texts, own_texts=False, n_ctx=128, chunks=16, memory=1000)
    paths = [tmp_path / name for name in ("plain.gguf", "whole.gguf", "cut.gguf", "again.gguf")]
    for path, texts, threads in zip(paths, (None, SMALL, cut, cut), (2, 2, 1, 2), strict=True):
        quantize(model, "Q4_0", path, gptq=texts, write=WriteOptions(threads=threads))
    assert paths[2].read_bytes() == paths[3].read_bytes() != paths[1].read_bytes()
    found = divergence(model, *paths[:3], text=[SMALL.texts[0].path], chunks=4).as_dict()["files"]
    plain, whole, few = (file["kl_divergence"]["mean"] for file in found)
    assert whole < few < 0.6 * plain


def test_a_run_with_another_bound_is_not_gone_on_with(tmp_path: Path) -> None:
    model = convert(ROOT / "examples" / "austen-4m", tmp_path / "m.gguf", "f16").outputs[0].file

    def fail(done: int, total: int, name: str) -> None:
        if name == "blk.1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(model, "Q4_0", tmp_path / "x.gguf", gptq=SMALL, write=WriteOptions(progress=fail))
    other = Calibration(SMALL.texts, own_texts=False, n_ctx=128, chunks=16, memory=1000)
    with pytest.raises(FileError, match="with other options"):
        quantize(model, "Q4_0", tmp_path / "x.gguf", gptq=other, write=WriteOptions(resume=True))


def test_no_memory_at_all() -> None:
    with pytest.raises(OptionError, match="memory"):
        Calibration(memory=0)

"""Options of a conversion: what goes together, and what of them no function has a use for."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools.conversion.options import EXCLUSIONS, PARTS, ConvertOptions, check_options
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.cost_model import CostModel
from gguftools.writing.options import WriteOptions
from quants.errors import OptionError

from ..command_line import EXAMPLE, run

VALUES: dict[str, Any] = {
    "manifest": True,
    "resume": True,
    "cost_model": CostModel(),
    "merge_lora": ["adapter"],
    "quantize": QuantizeOptions(),
    "no_mtp": True,
    "embed_tokenizer": True,
    "sentence_transformers_dense_modules": True,
}
PAIRS = sorted({(name, other) for name, others, _ in EXCLUSIONS for other in others.split()})


def given(*names: str) -> tuple[ConvertOptions, WriteOptions]:
    made = []
    for each in (ConvertOptions, WriteOptions):
        known = {field.name for field in fields(each)}
        made.append(each(**{name: VALUES.get(name, "x") for name in names if name in known}))
    return made[0], made[1]


@pytest.mark.parametrize(("name", "other"), PAIRS)
def test_what_does_not_go_together_is_refused(name: str, other: str) -> None:
    parts = [each for each in (name, other) if each in PARTS]
    if len(parts) == 2:
        pytest.skip("a conversion has one part")
    part: Any = parts[0] if parts else "model"
    options, write = given(name, other, *parts)
    with pytest.raises(
        OptionError, match=f'(`{name}`|part="{name}") cannot be combined with (`{other}`|part="{other}")'
    ):
        check_options(part, options, write, [each for each in (name, other) if each in ("imatrix", "gptq")])


def test_each_part_goes_by_itself() -> None:
    for part in PARTS:
        check_options(part, ConvertOptions(lora="x" if part == "lora" else None), WriteOptions())
    with pytest.raises(OptionError, match="no part 'tower'"):
        check_options("tower", ConvertOptions(), WriteOptions())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no adapter is named"):
        check_options("lora", ConvertOptions(), WriteOptions())
    with pytest.raises(OptionError, match="not written into the part model"):
        check_options("model", ConvertOptions(lora="x"), WriteOptions())


def test_what_a_function_has_no_use_for_is_refused(tmp_path: Path) -> None:
    for write in (WriteOptions(resume=True), WriteOptions(memory=1 << 20), WriteOptions(manifest=True)):
        with pytest.raises(OptionError, match="has no effect for export"):
            gguftools.export("model.gguf", tmp_path / "back", write=write)
        with pytest.raises(OptionError, match="has no effect for graft"):
            gguftools.graft("model.gguf", tmp_path / "out.gguf", drop="x", write=write)


def test_options_are_shown_as_the_call_that_makes_them() -> None:
    assert repr(WriteOptions()) == "WriteOptions()"
    assert repr(WriteOptions(threads=2, overwrite=True)) == "WriteOptions(threads=2, overwrite=True)"
    assert repr(QuantizeOptions({"attn_v": "Q8_0"})) == "QuantizeOptions(rules=(('attn_v', 'Q8_0'),))"


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"reserve": -1}, {"memory": True}])
def test_numbers_that_mean_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        WriteOptions(**wrong)


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    for outtype in ("auto", "exact", "Q4_0"):
        report = gguftools.convert(EXAMPLE, tmp_path / "x.gguf", outtype, write=WriteOptions(dry_run=True))
        assert report.dry_run
        assert report.outputs[0].nbytes > 1_000_000
    assert not list(tmp_path.iterdir())


def test_the_command_line_names_its_options(tmp_path: Path) -> None:
    for words, hint in ((["--mtp"], "--mtp"), (["--outtype", "f16", "--imatrix", "README.md"], "--imatrix")):
        done = run("convert", EXAMPLE, "-o", "x.gguf", *words, cwd=tmp_path)
        assert done.returncode == 1
        assert f"leave out {hint}" in done.stderr

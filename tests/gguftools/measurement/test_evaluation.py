"""Right answers counted as the reference counts them, task by task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gguftools.conversion.convert import convert
from gguftools.measurement.divergence import divergence
from gguftools.measurement.evaluation import BENCHMARKS, evaluate
from gguftools.measurement.evaluation_report import EvaluationReport, paired, score_of, wilson
from gguftools.measurement.options import DivergenceOptions, EvaluationOptions
from quants.errors import FileError, OptionError

from ...conftest import DATA, ROOT
from ..command_line import typed
from . import task_files

TEXT = ROOT / "examples" / "persuasion.txt"

GOLDEN = json.loads((DATA / "golden" / "austen-4m-evaluation.json").read_text())
FEW = 40  # the first so many draws are those of a longer draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    task_files.write(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return convert(ROOT / "examples" / "austen-4m", folder / "F16.gguf", "f16").outputs[0].file


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, Path]:
    return {
        "hellaswag": folder / "hellaswag.txt",
        "winogrande": folder / "winogrande.csv",
        "multiple_choice": folder / "choices.bin",
    }


def bits(right: list[bool]) -> str:
    return "".join(str(int(each)) for each in right)


@pytest.fixture(scope="module")
def quantized(folder: Path) -> Path:
    return convert(ROOT / "examples" / "austen-4m", folder / "q.gguf", "Q4_K_M").outputs[0].file


def check_choices(result: EvaluationReport, tasks: int) -> None:
    """Every answer of F16, whose products round least, and of Q4_K_M."""
    for file, name in zip(result.files, ("F16", "Q4_K_M"), strict=True):
        for test, score in file.tests.items():
            assert bits(score.right) == GOLDEN[name][test]["right"][:tasks], (name, test)
    for own, theirs in zip(
        result.files[0].tests["winogrande"].scores, GOLDEN["F16"]["winogrande"]["scores"], strict=False
    ):
        assert own == pytest.approx(theirs, abs=2e-3)


@pytest.mark.slow
def test_all_tasks_as_the_reference(model, quantized, files):
    check_choices(
        evaluate([model, quantized], **files, options=EvaluationOptions(tasks=400, precision="llama.cpp")), 400
    )


def test_a_quantized_file_beside_another(model, quantized, files):
    """Answers of both as the reference's, and how far the second file is from the first."""
    told = []
    result = evaluate(
        [model, quantized],
        **files,
        options=EvaluationOptions(tasks=FEW, precision="llama.cpp"),
        progress=lambda *each: told.append(each),
    )
    check_choices(result, FEW)
    first, second = result.files
    for name, score in second.tests.items():
        assert score.difference == pytest.approx(score.score - first.tests[name].score)
        assert (
            0 <= score.difference_standard_error < 1.2 * first.tests[name].standard_error
        )  # they stumble over the same tasks
    assert first.tests["hellaswag"].difference is None
    assert [(test.available, test.tasks) for test in result.tests] == [(430, FEW), (429, FEW), (430, FEW)]
    assert len(result.warnings) == 1  # the last line of Winogrande
    assert {total for _, total, _ in told} == {6 * FEW}
    assert told.pop(0)[0] == 0
    done = [done for done, _, _ in told]
    assert done == sorted(set(done))
    scores = [score.score for file in result.files for score in file.tests.values()]
    assert [share for done, _, share in told if done % FEW == 0] == scores


def test_an_interrupted_run_goes_on_at_its_tasks(model, quantized, files, tmp_path):
    record = tmp_path / "record"
    given = {"winogrande": files["winogrande"], "multiple_choice": files["multiple_choice"]}
    chosen = EvaluationOptions(tasks=40, record=record)
    want = evaluate([model, quantized], options=EvaluationOptions(tasks=40), **given)
    begun = []

    def progress(done, total, score):
        begun.append(done)
        if done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate([model, quantized], options=chosen, progress=progress, **given)
    lines = record.read_bytes().count(b"\n")
    assert lines == len(begun)  # a heading; the first call comes before the first task
    others = [
        ({"seed": 2}, "seed was 1, it is 2 now"),
        ({"tasks": 41}, "tasks was 40, it is 41 now"),
        ({"precision": "exact"}, "precision was float32"),
        ({"winogrande": None}, "winogrande is another"),
        ({"hellaswag": files["hellaswag"]}, "hellaswag is another"),
    ]
    for other, what in others:
        changed = {name: value for name, value in other.items() if name not in files}
        tests = {**given, **{name: value for name, value in other.items() if name in files}}
        with pytest.raises(FileError, match=what):
            evaluate([model, quantized], options=replace(chosen, **changed), **tests)
    with pytest.raises(FileError, match="its files are in another order"):
        evaluate([quantized, model], options=chosen, **given)
    with pytest.raises(FileError, match=r"measurement was evaluation, it is divergence now"):
        divergence(model, quantized, options=DivergenceOptions(record=record), text=TEXT, n_ctx=128, chunks=2)
    times = []

    def kept(done, total, score):
        times.append(record.read_bytes().count(b"\n"))

    got = evaluate([model, quantized], options=chosen, progress=kept, **given)
    assert times[: lines - 1] == [lines] * (lines - 1)
    assert times[lines] > lines
    assert plain(got) == plain(want)
    assert not record.exists()
    for file, other in zip(got.files, want.files, strict=True):
        assert all(score.seconds > 0 for score in file.tests.values())
        assert list(file.tests) == list(other.tests)


def plain(result):
    """All but the seconds."""
    found = result.as_dict()
    for file in found["files"]:
        for score in file["tests"].values():
            del score["seconds"]
    return found


@pytest.mark.parametrize("test", ["hellaswag", "winogrande", "multiple_choice"])
def test_figures_of_400_tasks_as_the_reference_prints_them(test, files):
    """Of tasks that are answered as the reference's run of F16 did."""
    tasks = {each.name: each for each in BENCHMARKS}[test].load(files[test], 400, 1).tasks
    golden = GOLDEN["F16"][test]
    scores = []
    for task, hit in zip(tasks, golden["right"], strict=True):
        wrong = next(i for i in range(len(task.texts)) if i not in task.right)
        chosen = min(task.right) if hit == "1" else wrong
        scores.append([-float(i != chosen) for i in range(len(task.texts))])
    score = score_of(tasks, scores, None, 0.0)
    assert bits(score.right) == golden["right"]
    if test == "hellaswag":
        assert (100 * score.low, 100 * score.high) == pytest.approx(golden["interval"], abs=1e-4)
    else:
        assert (100 * score.score, 100 * score.standard_error) == pytest.approx(golden["final"], abs=1e-4)
    if test == "multiple_choice":
        assert 100 * score.chance == pytest.approx(golden["chance"], abs=1e-4)


def test_an_interval_of_nothing_and_of_all():
    assert wilson(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)  # textbook values
    assert wilson(10, 10) == pytest.approx((0.7225, 1), abs=1e-4)
    assert paired([True, True, False], [False, True, False])[0] == pytest.approx(1 / 3)
    assert paired([True], [False]) == (1.0, 0.0)


def test_tasks_too_long_are_found_before_anything_runs(model, folder):
    long = folder / "long.txt"
    long.write_text("A: b\n0\n" + "word " * 300 + "\nx.\ny.\nz.\n")
    with pytest.raises(OptionError, match=r"the task at line 1 of .*long.txt needs \d+ tokens; 4 windows of 64"):
        evaluate(model, hellaswag=long, n_ctx=64)


def test_what_is_asked_has_to_make_sense(model, files):
    with pytest.raises(OptionError, match="no test is given"):
        evaluate(model)
    with pytest.raises(OptionError, match="no model is given"):
        evaluate([], **files)
    with pytest.raises(OptionError, match="tasks is 0"):
        evaluate(model, **files, options=EvaluationOptions(tasks=0))
    with pytest.raises(OptionError, match="n_ctx is 0"):
        evaluate(model, **files, n_ctx=0)
    with pytest.raises(OptionError, match="seed is -1"):
        evaluate(model, **files, options=EvaluationOptions(seed=-1))
    with pytest.raises(FileError, match="cannot be read"):
        evaluate(model, hellaswag="absent")


def test_the_command(model, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", model, model, "--winogrande", files["winogrande"], "--tasks", 30]
    done = typed(*words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Winogrande"
    assert lines[2].split()[1:] == lines[3].split()[1:6]
    assert lines[3].split()[-2:] == ["+0.00", "0.00"]
    assert lines[4] == "30 of 429 tasks; chance 50.00 %"
    result = json.loads(typed(*words, "--json").stdout)
    assert bits(result["files"][0]["tests"]["winogrande"]["right"])[:5] == GOLDEN["F16"]["winogrande"]["right"][:5]
    assert "| file | score % |" in typed(*words, "--markdown").stdout


def test_without_a_test(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = typed("evaluate", model)
    assert done.returncode == 2
    assert "no benchmark is given" in done.stderr

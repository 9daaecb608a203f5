"""A release: what is in the folder, what a second run does, and what a killed one leaves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import gguftools
from gguftools.publish.names import hub_label
from gguftools.publish.release.journal import only_run
from gguftools.publish.release.release import release
from gguftools.publish.release.settings import LADDERS, ReleaseOptions, read_settings, settings_of
from gguftools.quantization.imatrix import read_imatrix, write_imatrix
from quants.errors import FileError, GgufToolsError, OptionError
from tests.archs.checkpoints import ENCODERS, build
from tests.conftest import ROOT
from tests.gguftools.hub_server import Hub, serving

SOURCE = ROOT / "examples" / "austen-4m"
OPTIONS = ReleaseOptions(
    ladder="",
    recipes=("Q8_0", "Q4_K_M", "Q2_K_S"),
    imatrix=str(ROOT / "examples" / "persuasion.txt"),
    imatrix_chunks=2,
    texts=(f"novel={ROOT / 'examples' / 'persuasion.txt'}",),
    chunks=2,
    base_model="org/austen-4m",
    repository="me/austen-4m-GGUF",
)
KILLED = """
import os, signal, sys
from tests.gguftools.publish.release.test_release import OPTIONS, SOURCE, release
calls = 0
def count(part, done, total):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
release(SOURCE, sys.argv[1], options=OPTIONS, threads=2, progress=count)
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "austen-4m-GGUF"
    release(SOURCE, folder, options=OPTIONS, threads=2)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the published files' bytes, without what differs by where and when they were made."""
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir()) if each.is_file()}


def test_the_folder_has_all_that_is_published(released: Path) -> None:
    names = {each.name for each in released.iterdir()}
    models = {f"austen-4m-{recipe}.gguf" for recipe in OPTIONS.recipes}
    assert models | {"austen-4m-imatrix.gguf", "README.md", "SHA256SUMS", "divergence.json", "report.html"} <= names
    assert {"Modelfile", "params", "release.toml"} <= names
    assert {f"{each}.manifest.json" for each in models} | {f"{each}.intoto.json" for each in models} <= names
    assert [hub_label(f"austen-4m-{recipe}.gguf") for recipe in OPTIONS.recipes] == list(OPTIONS.recipes)


def test_checksums_are_right(released: Path) -> None:
    lines = [line.split("  ") for line in (released / "SHA256SUMS").read_text().splitlines()]
    assert len(lines) > 10
    for digest, name in lines:
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest


def test_the_card_has_figures_and_front_matter(released: Path) -> None:
    card = ModelCard.load(released / "README.md")
    assert card.data.base_model == "org/austen-4m"
    assert card.data.base_model_relation == "quantized"
    results = json.loads((released / "divergence.json").read_text())
    by_name = {each["file"]: each for each in results["files"]}
    assert set(by_name) == {f"austen-4m-{recipe}.gguf" for recipe in OPTIONS.recipes}
    assert "llama-server -hf me/austen-4m-GGUF:Q4_K_M" in card.text
    assert f"{100 * by_name['austen-4m-Q8_0.gguf']['same_top']:.2f} %" in card.text
    assert str(ROOT) not in card.text + json.dumps(results)


def test_a_second_run_does_nothing(released: Path) -> None:
    before = {
        each: each.stat().st_mtime_ns for each in released.rglob("*") if each.is_file() and each.name != "done.json"
    }
    again = release(SOURCE, released, options=OPTIONS, threads=2)
    assert not again.made
    assert {each: each.stat().st_mtime_ns for each in before} == before


def test_a_file_that_was_removed_is_made_again(released: Path) -> None:
    file = released / "austen-4m-Q2_K_S.gguf"
    before = file.read_bytes()
    file.unlink()
    again = release(SOURCE, released, options=OPTIONS, threads=2)
    assert again.made == ["austen-4m-Q2_K_S.gguf"]
    assert file.read_bytes() == before


@pytest.mark.parametrize("call", [2, 9])
def test_a_killed_run_is_gone_on_with(released: Path, tmp_path: Path, call: int) -> None:
    check_killed(released, tmp_path, [call])


@pytest.mark.slow
def test_ten_kills(released: Path, tmp_path: Path) -> None:
    check_killed(released, tmp_path, [1, 2, 3, 4, 6, 8, 3, 5, 2, 1])


def check_killed(released: Path, tmp_path: Path, calls: list[int]) -> None:
    folder = tmp_path / "austen-4m-GGUF"
    for call in calls:
        done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(call)], cwd=ROOT, env=os.environ)
        assert done.returncode in (-signal.SIGKILL, 0)
    release(SOURCE, folder, options=OPTIONS, threads=2)
    assert contents(folder) == contents(released)


SEARCHED = ReleaseOptions(
    ladder="",
    recipes=("Q4_K_L",),
    imatrix="none",
    gptq=(str(ROOT / "examples" / "persuasion.txt"),),
    target_sizes=(2_200_000,),
    texts=OPTIONS.texts,
    chunks=2,
)
SEARCHED_KILLED = KILLED.replace("OPTIONS, SOURCE", "SEARCHED, SOURCE").replace("options=OPTIONS", "options=SEARCHED")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched") / "austen-4m-GGUF"
    release(SOURCE, folder, options=SEARCHED, threads=2)
    return folder


@pytest.mark.slow
def test_a_file_of_a_size_is_searched_for(searched: Path) -> None:
    name = "austen-4m-2.2MB-Q3_K_L_MIX"
    assert 2_150_000 < (searched / f"{name}.gguf").stat().st_size <= 2_200_000
    assert {f"{name}-recipe.txt", f"{name}.gguf.manifest.json", f"{name}.gguf.intoto.json"} <= set(contents(searched))
    assert hub_label(name) == "Q3_K_L_MIX"
    card = (searched / "README.md").read_text()
    assert f"`{name}.gguf`: recipe searched for this size" in card
    assert "GPTQ calibration on persuasion.txt" in card
    assert f"gguftools reproduce {name}.gguf --source CHECKPOINT" in card
    manifest = json.loads((searched / f"{name}.gguf.manifest.json").read_text())
    assert manifest["texts"][0]["name"] == "persuasion.txt"
    assert any(each.get("feedback") for each in manifest["tensors"])
    assert not release(SOURCE, searched, options=SEARCHED, threads=2).made


@pytest.mark.slow
def test_a_killed_search_is_gone_on_with(searched: Path, tmp_path: Path) -> None:
    folder = tmp_path / "austen-4m-GGUF"
    for call in (3, 20):
        command = [sys.executable, "-c", SEARCHED_KILLED, str(folder), str(call)]
        assert subprocess.run(command, cwd=ROOT, env=os.environ).returncode == -signal.SIGKILL
    release(SOURCE, folder, options=SEARCHED, threads=2)
    assert contents(folder) == contents(searched)


def test_a_target_is_planned_and_named(tmp_path: Path) -> None:
    options = ReleaseOptions(ladder="", target_sizes=(2_200_000, 3_000_000), split_max_size=2_500_000)
    report = release(SOURCE, tmp_path / "new", options=options, dry_run=True)
    assert [(each["file"], each["size_bytes"]) for each in report.plan["files"]] == [
        ("austen-4m-2.2MB-Q3_K_L_MIX.gguf", 2_200_000),
        ("3MB-Q5_K_M_MIX/austen-4m-3MB-Q5_K_M_MIX.gguf", 3_000_000),
    ]
    assert set(report.estimate.seconds) == {"imatrix", "search", "measure"} if report.estimate else False
    with pytest.raises(OptionError, match="cannot be reached"):
        release(SOURCE, tmp_path / "new", options=ReleaseOptions(target_sizes=(1000,)), dry_run=True)


def test_files_that_fallbacks_make_alike_are_named(tmp_path: Path) -> None:
    build("smolvlm", tmp_path / "smolvlm")
    options = ReleaseOptions(ladder="", recipes=("Q8_0", "Q6_K"))
    report = release(tmp_path / "smolvlm", tmp_path / "new", options=options, dry_run=True)
    assert "Q6_K has the same formats as Q8_0: rows of this model do not fit others" in report.warnings


@pytest.mark.slow
def test_a_searched_file_is_split_too(tmp_path: Path) -> None:
    options = ReleaseOptions(
        ladder="",
        target_sizes=(3_000_000,),
        imatrix="none",
        split_max_size=2_000_000,
        skip=("measure",),
        repository="me/new",
    )
    release(SOURCE, tmp_path, options=options, threads=2)
    name = "3MB-Q5_K_M_MIX/austen-4m-3MB-Q5_K_M_MIX"
    assert (tmp_path / f"{name}-00002-of-00002.gguf").is_file()
    card = (tmp_path / "README.md").read_text()
    assert f"`{name}-00001-of-00002.gguf`: recipe searched for this size" in card
    assert 'hf download me/new --include "3MB-Q5_K_M_MIX/*"' in card
    assert not release(SOURCE, tmp_path, options=options, threads=2).made


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "Q8_0.txt").write_text("attn=Q4_K")
    options = ReleaseOptions(ladder="", recipes=("Q8_0", str(tmp_path / "Q8_0.txt")))
    with pytest.raises(OptionError, match=r"two files would be called austen-4m-Q8_0\.gguf"):
        release(SOURCE, tmp_path / "new", options=options, dry_run=True)


def test_no_published_file_names_a_folder_of_this_machine(released: Path) -> None:
    for name, data in contents(released).items():
        assert str(ROOT).encode() not in data, name
        assert str(released.parent).encode() not in data, name
    text = (released / "release.toml").read_text()
    assert 'source = "austen-4m"' in text
    assert 'imatrix = "persuasion.txt"' in text
    assert f"# SHA-256 of persuasion.txt: {hashlib.sha256(Path(OPTIONS.imatrix).read_bytes()).hexdigest()}" in text


def test_a_run_by_the_published_settings_does_nothing(released: Path) -> None:
    source, options = read_settings(released / "release.toml")
    assert source == str(SOURCE)
    assert options == OPTIONS
    assert not release(source, released, options=options, threads=2).made


def test_a_run_of_one_part_leaves_the_settings(released: Path) -> None:
    before = (released / "release.toml").read_bytes()
    release(SOURCE, released, options=ReleaseOptions(ladder="small", only=("sums",)), threads=2)
    assert (released / "release.toml").read_bytes() == before


def test_a_stranger_runs_the_published_settings(released: Path, tmp_path: Path) -> None:
    """He has what was uploaded, and the texts next to it."""
    shutil.copy(released / "release.toml", tmp_path)
    shutil.copy(ROOT / "examples" / "persuasion.txt", tmp_path)
    source, options = read_settings(tmp_path / "release.toml")
    assert source == "austen-4m"
    assert options.imatrix == str(tmp_path / "persuasion.txt")
    release(SOURCE, tmp_path / "again", options=options, threads=2)
    again = contents(tmp_path / "again")
    assert {name: data for name, data in contents(released).items() if name != "report.html"} == {
        name: data for name, data in again.items() if name != "report.html"
    }


def test_recipes_and_a_matrix_are_published_with_the_settings(released: Path, tmp_path: Path) -> None:
    recipe, matrix, folder = tmp_path / "mix.txt", tmp_path / "old.dat", tmp_path / "new"
    recipe.write_text("attn=Q4_K\nffn=Q6_K\n")
    write_imatrix(read_imatrix(released / "austen-4m-imatrix.gguf"), matrix)
    options = ReleaseOptions(ladder="", recipes=(str(recipe),), imatrix=str(matrix), skip=("measure", "report"))
    release(SOURCE, folder, options=options, threads=2)
    assert (folder / "mix.txt").read_text() == recipe.read_text()
    assert (folder / "austen-4m-imatrix.gguf").read_bytes()[:4] == b"GGUF"
    recipe.unlink()
    matrix.unlink()
    source, again = read_settings(folder / "release.toml")
    assert [*again.recipes, again.imatrix] == [str(folder / "mix.txt"), str(folder / "austen-4m-imatrix.gguf")]
    assert release(str(source), folder, options=again, threads=2).made in ([], ["imatrix"])


def test_two_runs_at_once_are_refused(released: Path) -> None:
    with only_run(released), pytest.raises(FileError, match="another release is at work"):
        release(SOURCE, released, options=OPTIONS)
    assert not release(SOURCE, released, options=OPTIONS, threads=2).made


def test_a_plan_says_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = release(SOURCE, tmp_path / "new", options=ReleaseOptions(ladder="small"), dry_run=True)
    assert report.estimate is not None
    assert set(report.estimate.seconds) == {"imatrix", "quantize", "measure"}
    assert all(0 <= seconds < 600 for seconds in report.estimate.seconds.values())
    assert report.estimate.disk_bytes == report.plan["size_bytes"]
    with serving(Hub({"org/austen-4m": SOURCE})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        report = release("hf://org/austen-4m", tmp_path / "new", options=ReleaseOptions(ladder="small"), dry_run=True)
    assert report.estimate is not None
    assert report.estimate.fetch_bytes > (SOURCE / "model.safetensors").stat().st_size
    assert report.estimate.disk_bytes == report.plan["size_bytes"] + report.estimate.fetch_bytes
    assert report.estimate.seconds["fetch"] >= 0


def test_too_little_room_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguftools.publish.release.release.free_for", lambda folder: 1000)
    with pytest.raises(FileError, match="1,000 bytes free"):
        release(SOURCE, tmp_path / "new", options=OPTIONS)
    assert [each.name for each in (tmp_path / "new").iterdir()] == [".release"]


def test_a_plan_writes_nothing(tmp_path: Path) -> None:
    report = release(SOURCE, tmp_path / "new", options=ReleaseOptions(ladder="small"), dry_run=True)
    assert [each["recipe"] for each in report.plan["files"]] == list(LADDERS["small"])
    assert report.plan["size_bytes"] > 1e6
    assert not (tmp_path / "new").exists()


def test_a_file_of_someone_else_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "austen-4m-Q8_0.gguf"
    mine.write_text("mine")
    with pytest.raises(FileError, match="is there already"):
        release(SOURCE, tmp_path, options=OPTIONS)
    assert mine.read_text() == "mine"


def test_large_files_are_split_into_folders(tmp_path: Path) -> None:
    options = ReleaseOptions(
        ladder="", recipes=("Q8_0", "Q4_K_M"), imatrix="none", split_max_size=3_000_000, skip=("measure",)
    )
    release(SOURCE, tmp_path, options=options, threads=2)
    assert sorted(each.name for each in (tmp_path / "Q8_0").glob("*.gguf")) == [
        "austen-4m-Q8_0-00001-of-00002.gguf",
        "austen-4m-Q8_0-00002-of-00002.gguf",
    ]
    assert (tmp_path / "austen-4m-Q4_K_M.gguf").is_file()
    assert gguftools.validate(tmp_path / "Q8_0" / "austen-4m-Q8_0-00001-of-00002.gguf").ok
    assert "2 shards" in (tmp_path / "README.md").read_text()


def test_recipes_that_need_a_matrix_are_named_without_one(tmp_path: Path) -> None:
    options = ReleaseOptions(ladder="", recipes=("Q8_0", "IQ2_XXS"), imatrix="none")
    report = release(SOURCE, tmp_path / "new", options=options, dry_run=True)
    assert report.warnings == ["without an importance matrix IQ2_XXS cannot be made"]


def test_a_quantized_source_is_refused(released: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="has weights in"):
        release(released / "austen-4m-Q4_K_M.gguf", tmp_path / "new")


def test_settings_are_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "release.toml"
    file.write_text(OPTIONS.toml("org/model"))
    assert read_settings(file) == ("org/model", OPTIONS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ladder = 'huge'", "no ladder 'huge'"),
        ("laddder = 'small'", "no setting 'laddder'"),
        ("chunks = 'many'", "chunks is 'many'"),
        ("chunks = 0", "chunks is 0"),
        ("skip = ['cards']", "no part 'cards'"),
        ("recipes = ['Q9_K']", "no recipe 'Q9_K'"),
        ("only = ['card']\nskip = ['sums']", "exclude each other"),
        ("source = 3", "source is 3"),
        ("a = [", "is no TOML"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "release.toml"
    file.write_text(text)
    with pytest.raises(GgufToolsError, match=words):
        read_settings(file)


def test_settings_of_another_type_are_refused() -> None:
    values: dict[str, Any] = {"manifests": 1}
    with pytest.raises(OptionError, match="manifests is 1"):
        settings_of(values)


def test_a_model_on_the_hub_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ReleaseOptions(ladder="", recipes=("Q8_0",), imatrix="none", texts=OPTIONS.texts, chunks=2)
    with serving(Hub({"org/austen-4m": SOURCE})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        release("hf://org/austen-4m", tmp_path / "new", options=options, threads=2)
        again = release("hf://org/austen-4m", tmp_path / "new", options=options, threads=2)
        source, stored = read_settings(tmp_path / "new" / "release.toml")
        assert re.fullmatch(r"hf://org/austen-4m@\w{40}", str(source))
        assert not release(str(source), tmp_path / "new", options=stored, threads=2).made
        weights = [request for request, sent in hub.requests if "safetensors" in request and sent > 1e6]
    assert not again.made
    assert weights
    assert ModelCard.load(tmp_path / "new" / "README.md").data.base_model == "org/austen-4m"
    assert not (tmp_path / "new" / ".release" / "austen-4m").exists()


def test_what_is_fetched_can_be_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    mine = work / "austen-4m"
    shutil.copytree(SOURCE, mine)
    options = ReleaseOptions(ladder="", recipes=("Q8_0",), imatrix="none", skip=("measure",), work=str(work))
    with serving(Hub({"org/austen-4m": SOURCE})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        release("hf://org/austen-4m", tmp_path / "kept", options=replace(options, keep_source=True), threads=2)
        assert (work / ".release" / "austen-4m" / "model.safetensors").is_file()
        release("hf://org/austen-4m", tmp_path / "new", options=options, threads=2)
    assert not (work / ".release" / "austen-4m").exists()
    assert (mine / "model.safetensors").is_file()
    assert str(work) not in (tmp_path / "new" / "release.toml").read_text()


def test_a_place_for_what_is_not_fetched_is_refused(tmp_path: Path) -> None:
    for options in (ReleaseOptions(work=str(tmp_path / "work")), ReleaseOptions(keep_source=True)):
        with pytest.raises(OptionError, match="has no effect"):
            release(SOURCE, tmp_path / "new", options=options)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileError, match="is no folder"):
        release("hf://org/austen-4m", tmp_path / "new", options=ReleaseOptions(work=str(file)))
    assert not (tmp_path / "new").exists()


def test_a_model_with_encoders_has_both_files(tmp_path: Path) -> None:
    source = tmp_path / "smolvlm"
    build("smolvlm", source)
    shutil.copy(ENCODERS / "smolvlm" / "preprocessor_config.json", source)
    options = ReleaseOptions(ladder="", recipes=("Q8_0",), imatrix="none", skip=("measure",))
    report = release(source, tmp_path / "new", options=options, threads=2)
    assert report.made[:2] == ["mmproj", "smolvlm-Q8_0.gguf"]
    card = ModelCard.load(tmp_path / "new" / "README.md")
    assert card.data.pipeline_tag == "image-text-to-text"
    assert "--mmproj mmproj-smolvlm-BF16.gguf" in card.text
    assert "Ollama, from this folder, text only" in card.text
    assert "AutoModelForCausalLM" not in card.text
    assert "not measured" in card.text
    assert "name no license" in card.text


@pytest.mark.parametrize("name", ["SHA256SUMS", "Modelfile", "divergence.json", "austen-4m-imatrix.gguf", "README.md"])
def test_no_file_of_someone_else_is_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileError, match=r"is there already|no generated blocks"):
        release(SOURCE, tmp_path, options=OPTIONS)
    assert (tmp_path / name).read_text() == "mine"
    assert not list(tmp_path.glob("*.gguf.manifest.json"))


def test_the_source_is_no_output(tmp_path: Path) -> None:
    source = tmp_path / "austen-4m"
    shutil.copytree(SOURCE, source)
    with pytest.raises(OptionError, match="is the source"):
        release(source, source, options=OPTIONS)


def test_a_card_leaves_a_modelfile_that_differs(released: Path, tmp_path: Path) -> None:
    shutil.copy(released / "austen-4m-Q8_0.gguf", tmp_path)
    (tmp_path / "Modelfile").write_text("FROM mine")
    report = gguftools.card(tmp_path)
    assert (tmp_path / "Modelfile").read_text() == "FROM mine"
    assert any("Modelfile differs" in each for each in report.warnings)
    gguftools.card(tmp_path, options=gguftools.CardOptions(overwrite=True))
    assert (tmp_path / "Modelfile").read_text() != "FROM mine"
